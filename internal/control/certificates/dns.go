package certificates

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func sha256Sum(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

// SealSettings returns the configuration of a cluster as it is stored: what a user has written about a DNS provider is
// sealed, even if it looks as if it were, and what is empty stays as it is stored, if the provider is the same.
func SealSettings(sealer *identity.Sealer, stored, written *v1.ClusterSpec) (*v1.ClusterSpec, error) {
	dns := written.GetAcme().GetDns()
	if len(dns.GetSettings()) == 0 {
		return written, nil
	}
	kept := map[string]string{}
	if old := stored.GetAcme().GetDns(); old.GetProvider() == dns.GetProvider() {
		kept = old.GetSettings()
	}
	now := proto.CloneOf(written)
	for key, value := range dns.GetSettings() {
		context := state.DNSSettingContext(dns.GetProvider(), key)
		switch {
		case value == "" && kept[key] == "":
			return nil, refuseSetting(key, "is empty, and no value of %s is stored: give one, or leave the setting out", dns.GetProvider())
		case value == "":
			now.Acme.Dns.Settings[key] = kept[key]
			continue
		case len(value) > spec.MaxDNSSetting:
			return nil, refuseSetting(key, "is too long: it may have at most %d bytes", spec.MaxDNSSetting)
		case kept[key] != "":
			// The same value stays the same text, so that nothing seems to have changed.
			if old, err := unsealSetting(sealer, kept[key], context); err == nil && old == value {
				now.Acme.Dns.Settings[key] = kept[key]
				continue
			}
		}
		sealed, err := sealer.Seal([]byte(value), context)
		if err != nil {
			return nil, err
		}
		now.Acme.Dns.Settings[key] = state.SettingText(sealed)
	}
	return now, nil
}

func refuseSetting(key, format string, args ...any) error {
	return &spec.Error{Violations: []spec.Violation{{Field: "spec.cluster.acme.dns.settings[" + key + "]", Message: fmt.Sprintf(format, args...)}}}
}

// WithoutSettings returns the configuration of a cluster without what is sealed in it.
func WithoutSettings(c *v1.ClusterSpec) *v1.ClusterSpec {
	if len(c.GetAcme().GetDns().GetSettings()) == 0 {
		return c
	}
	shown := proto.CloneOf(c)
	for key := range shown.GetAcme().GetDns().GetSettings() {
		shown.Acme.Dns.Settings[key] = ""
	}
	return shown
}

func unsealSetting(sealer *identity.Sealer, text, context string) (string, error) {
	sealed, ok := state.SealedSetting(text)
	if !ok {
		return "", fmt.Errorf("unseal %s: it is not sealed", context)
	}
	plain, err := sealer.Unseal(sealed, context)
	return string(plain), err
}

// openSettings opens the settings of a DNS provider.
func openSettings(sealer *identity.Sealer, dns *v1.AcmeDns) (map[string]string, error) {
	settings := map[string]string{}
	for key, value := range dns.GetSettings() {
		plain, err := unsealSetting(sealer, value, state.DNSSettingContext(dns.GetProvider(), key))
		if err != nil {
			return nil, err
		}
		settings[key] = plain
	}
	return settings, nil
}
