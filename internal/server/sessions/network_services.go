package sessions

import (
	"maps"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// serviceNews is a service that has changed, ready to be sent.
type serviceNews struct {
	uid, namespace string
	message        *v1.NetworkService // nil if the service is gone
	// everywhere and wasEverywhere say whether nodes without replicas of its namespace need it, and may have it.
	everywhere, wasEverywhere bool
}

// neededEverywhere reports whether nodes need a service although they have no replicas of its namespace.
func neededEverywhere(snap *state.Snapshot, s *v1.Service) bool {
	_, published := services.Published(snap, s)
	return s.GetSpec().GetExported() || len(published) > 0
}

// changedServices returns the services that changes affect.
func changedServices(snap *state.Snapshot, changes []state.Change) (news []serviceNews) {
	before := map[string]*v1.Service{}
	published := map[string]bool{} // paths of workloads that were published
	for _, c := range changes {
		if old, ok := c.Old.(*v1.Workload); ok && len(services.PublishedPorts(old)) > 0 {
			published[state.Path(old)] = true
		}
		if old, ok := c.Old.(*v1.Service); ok && before[old.GetMetadata().GetUid()] == nil {
			before[old.GetMetadata().GetUid()] = old
		}
	}
	for uid := range services.Affected(snap, changes) {
		one, old := snap.Service(uid), before[uid]
		n := serviceNews{uid: uid, wasEverywhere: old != nil && neededEverywhere(snap, old)}
		switch {
		case one != nil:
			n.namespace, n.everywhere, n.message = one.GetMetadata().GetNamespace(), neededEverywhere(snap, one), networkService(snap, one)
			n.wasEverywhere = n.wasEverywhere || published[state.Path(one)]
		case old != nil:
			n.namespace = old.GetMetadata().GetNamespace()
			n.wasEverywhere = n.wasEverywhere || published[state.Path(old)]
		default:
			continue // created and deleted before any node heard of it
		}
		news = append(news, n)
	}
	return news
}

// addTo adds the service to the message for an agent that follows some namespaces. It reports whether the agent needs
// the message.
func (n serviceNews) addTo(message *v1.Network, follows map[string]bool) bool {
	switch {
	case n.message != nil && (n.everywhere || follows[n.namespace]):
		message.Services = append(message.Services, n.message)
	case n.wasEverywhere || follows[n.namespace]:
		message.RemovedServices = append(message.RemovedServices, n.uid)
	default:
		return false
	}
	return true
}

// networkService is a service as nodes must know it.
func networkService(snap *state.Snapshot, s *v1.Service) *v1.NetworkService {
	m, balancer := s.GetMetadata(), s.GetSpec().GetBalancer()
	message := &v1.NetworkService{
		Uid: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(), Exported: s.GetSpec().GetExported(), Ports: s.GetSpec().GetPorts(),
		NearestFirst: balancer.GetLocality() != spec.LocalityNone,
	}
	if w, ports := services.Published(snap, s); len(ports) > 0 {
		message.Published, message.WorkloadUid = ports, w.GetMetadata().GetUid()
	}
	for _, address := range []string{s.GetStatus().GetAddressV4(), s.GetStatus().GetAddressV6()} {
		if address != "" {
			message.Addresses = append(message.Addresses, address)
		}
	}
	if timeout := spec.AffinityTimeout(balancer); timeout > 0 {
		message.Affinity = durationpb.New(timeout)
	}
	for _, e := range services.Endpoints(snap, s) {
		message.Endpoints = append(message.Endpoints, &v1.NetworkEndpoint{
			Name: e.GetMetadata().GetName(), Addresses: e.GetSpec().GetAddresses(), State: e.GetStatus().GetState(), Weight: e.GetStatus().GetWeight(),
			NodeUid: e.GetSpec().GetNodeUid(), Zone: e.GetSpec().GetZone(),
		})
	}
	return message
}

// follow adds namespaces to those that the agent follows, and queues their services. Namespaces without services are
// confirmed and not kept, so that lookups of names that do not exist leave room for others. A namespace beyond the limit
// is not confirmed: the node cannot answer lookups in it, and must not say that its services do not exist.
func (s *session) follow(namespaces []string, snapshot func() *state.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, message := snapshot(), &v1.Network{}
	for _, namespace := range namespaces {
		switch {
		case s.asked[namespace], !s.networkFull && !hasServices(snap, namespace):
		case !s.mayFollowMore(snap):
			continue
		default:
			s.asked[namespace] = true
			if !s.networkFull && !s.namespaces[namespace] {
				s.namespaces[namespace] = true
				addNamespace(message, snap, namespace)
			}
		}
		message.Followed = append(message.Followed, namespace)
	}
	if !s.networkFull && len(message.GetFollowed()) > 0 { // the full set has them by itself
		s.queueNetwork(message)
	}
}

// mayFollowMore reports whether the agent may follow another namespace. At the limit, those whose services are gone make
// room. The caller holds the lock.
func (s *session) mayFollowMore(snap *state.Snapshot) bool {
	if len(s.asked) == spec.MaxFollowed {
		s.unfollowEmpty(snap)
	}
	return len(s.asked) < spec.MaxFollowed
}

// unfollowEmpty forgets that the agent asked for namespaces that have no services. The caller holds the lock.
func (s *session) unfollowEmpty(snap *state.Snapshot) {
	maps.DeleteFunc(s.asked, func(namespace string, _ bool) bool { return !hasServices(snap, namespace) })
}

func hasServices(snap *state.Snapshot, namespace string) bool {
	for range snap.Services(namespace, "") {
		return true
	}
	return false
}
