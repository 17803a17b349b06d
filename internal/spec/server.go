package spec

import (
	"maps"

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
