package nodenet

// LikeOldKernel makes IPv6 forward as Linux before 6.17 does.
func (o *Options) LikeOldKernel() { o.noForceForwarding = true }

// WithoutBridgeRules is like a kernel without CONFIG_NF_TABLES_BRIDGE.
func (o *Options) WithoutBridgeRules() { o.noBridgeRules = true }
