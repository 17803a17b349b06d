package ingress

import (
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// withStates is a service whose endpoints on this node are in the states that the node itself knows, by their addresses.
// Draining ones that serve stay so: that is up to the servers.
func withStates(s *v1.IngressService, states map[string]string) *v1.IngressService {
	own := func(e *v1.IngressEndpoint) string {
		for _, address := range e.GetAddresses() {
			state, known := states[address]
			if known && ((state == spec.EndpointUnready) != (e.GetState() == spec.EndpointUnready) || state == spec.EndpointDraining && e.GetState() == spec.EndpointReady) {
				return state
			}
		}
		return ""
	}
	if !slices.ContainsFunc(s.GetEndpoints(), func(e *v1.IngressEndpoint) bool { return own(e) != "" }) {
		return s
	}
	s = proto.CloneOf(s)
	for _, e := range s.GetEndpoints() {
		if state := own(e); state != "" {
			e.State = state
		}
	}
	return s
}

// withOwn is a message in which all endpoints of this node are in the states that it knows. It leaves the message as it is.
func withOwn(d *v1.IngressDown, states map[string]string) *v1.IngressDown {
	if len(states) == 0 || len(d.GetServices()) == 0 {
		return d
	}
	own := &v1.IngressDown{
		Full: d.GetFull(), Settings: d.GetSettings(), Routes: d.GetRoutes(), RemovedRoutes: d.GetRemovedRoutes(),
		Certificates: d.GetCertificates(), RemovedCertificates: d.GetRemovedCertificates(),
		Challenges: d.GetChallenges(), RemovedChallenges: d.GetRemovedChallenges(), RemovedServices: d.GetRemovedServices(),
	}
	for _, s := range d.GetServices() {
		own.Services = append(own.Services, withStates(s, states))
	}
	return own
}
