package spec

import "net"

// LoopbackAddress returns the address at which a listener is reached from its own machine. It differs from the listener's
// only if that listens on all interfaces.
func LoopbackAddress(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listen
}
