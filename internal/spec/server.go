package spec

import (
	"maps"
	"net"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The labels of a server that the cluster knows by itself.
const (
	LabelServerName    = "server.cloudless/name"
	LabelServerVersion = "server.cloudless/version"
)

// ServerLabels are all labels of a server: those of its metadata, its zone, its name and its version.
func ServerLabels(s *v1.Server) map[string]string {
	all := map[string]string{LabelServerName: s.GetMetadata().GetName()}
	if zone := s.GetSpec().GetZone(); zone != "" {
		all[LabelZone] = zone
	}
	if version := s.GetSpec().GetVersion(); version != "" {
		all[LabelServerVersion] = version
	}
	maps.Copy(all, s.GetMetadata().GetLabels())
	return all
}

// LoopbackAddress returns the address at which a listener is reached from its own machine. It differs from the listener's
// only if that listens on all interfaces.
func LoopbackAddress(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listen
}
