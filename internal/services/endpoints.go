package services

import (
	"iter"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Endpoints lists the endpoints of a service: the replicas of its workloads that have an address, the external ones of
// its spec, and the registered ones. Its cost grows with the endpoints and, for a service with a selector, with the
// workloads of the namespace. The objects must not be modified.
func Endpoints(snap *state.Snapshot, s *v1.Service) []*v1.Endpoint {
	var all []*v1.Endpoint
	for w := range Workloads(snap, s) {
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if e := ofReplica(snap, s, r); e != nil {
				all = append(all, e)
			}
		}
	}
	for _, given := range s.GetSpec().GetExternal() {
		e := newEndpoint(s, spec.SourceExternal, given.GetName(), s.GetMetadata().GetUid()+"/"+given.GetName(), given.GetAddresses())
		e.Spec.Weight, e.Status.State = given.GetWeight(), spec.EndpointReady
		all = append(all, e)
	}
	for stored := range snap.EndpointsOf(s.GetMetadata().GetUid()) {
		all = append(all, &v1.Endpoint{
			ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(), Metadata: stored.GetMetadata(), Spec: stored.GetSpec(),
			Status: &v1.EndpointStatus{State: stored.GetStatus().GetState(), Reason: stored.GetStatus().GetReason()},
		})
	}
	weigh(s.GetSpec().GetBalancer().GetWeights(), all)
	return all
}

// Usable are the endpoints that get new connections: the ready ones with a weight or, if there are none, the draining
// ones, which are better than nothing.
func Usable(all []*v1.Endpoint) []*v1.Endpoint {
	for _, wanted := range []string{spec.EndpointReady, spec.EndpointDraining} {
		var found []*v1.Endpoint
		for _, e := range all {
			if e.GetStatus().GetState() == wanted && e.GetStatus().GetWeight() > 0 {
				found = append(found, e)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// OrOffline makes replicas on offline nodes draining, if no endpoint takes connections and nothing else is wrong with
// them. When all nodes of a service seem to be offline at once, the cause is more often between them and the servers:
// after a partition has healed, some nodes are back earlier than others.
func OrOffline(snap *state.Snapshot, all []*v1.Endpoint) []*v1.Endpoint {
	if len(Usable(all)) > 0 {
		return all
	}
	for _, e := range all {
		node := snap.Node(e.GetSpec().GetNodeUid())
		if r := snap.Replica(e.GetMetadata().GetUid()); r != nil && node.GetStatus().GetState() == spec.NodeOffline && spec.Serves(r) {
			e.Status.State = spec.EndpointDraining
		}
	}
	return all
}

// Workloads yields the workloads whose replicas are endpoints of a service.
func Workloads(snap *state.Snapshot, s *v1.Service) iter.Seq[*v1.Workload] {
	m, selector := s.GetMetadata(), s.GetSpec().GetSelector()
	return func(yield func(*v1.Workload) bool) {
		if len(selector) == 0 {
			if w := snap.WorkloadByName(m.GetNamespace(), m.GetName()); w != nil {
				yield(w)
			}
			return
		}
		for w := range snap.Workloads(m.GetNamespace(), "") {
			if matches(selector, w.GetMetadata().GetLabels()) && !yield(w) {
				return
			}
		}
	}
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if have, ok := labels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

func newEndpoint(s *v1.Service, source, name, uid string, addresses []string) *v1.Endpoint {
	return &v1.Endpoint{
		ApiVersion: spec.APIVersion, Kind: spec.KindEndpoint,
		Metadata: &v1.Metadata{Uid: uid, Namespace: s.GetMetadata().GetNamespace(), Name: name},
		Spec: &v1.EndpointSpec{
			Service: s.GetMetadata().GetName(), ServiceUid: s.GetMetadata().GetUid(), Source: source, Addresses: addresses,
		},
		Status: &v1.EndpointStatus{},
	}
}

// ofReplica is a replica as an endpoint, or nil if it has no address or has ended.
func ofReplica(snap *state.Snapshot, s *v1.Service, r *v1.Replica) *v1.Endpoint {
	if !isListed(r) {
		return nil
	}
	node := snap.Node(r.GetSpec().GetNodeUid())
	e := newEndpoint(s, spec.SourceReplica, r.GetMetadata().GetName(), r.GetMetadata().GetUid(), r.GetStatus().GetAddresses())
	e.Spec.Workload, e.Spec.Node, e.Spec.NodeUid = r.GetSpec().GetWorkload(), r.GetSpec().GetNode(), r.GetSpec().GetNodeUid()
	e.Spec.Zone = node.GetMetadata().GetLabels()[spec.LabelZone]
	e.Status.State, e.Status.Reason = stateOf(r, node)
	return e
}

func isListed(r *v1.Replica) bool {
	return len(r.GetStatus().GetAddresses()) > 0 && r.GetSpec().GetNodeUid() != "" && spec.Live(r.GetStatus().GetPhase())
}

// stateOf says whether a replica takes connections, and why not.
func stateOf(r *v1.Replica, node *v1.Node) (state, reason string) {
	switch {
	case node == nil:
		return spec.EndpointUnready, "node " + r.GetSpec().GetNode() + " does not exist any more"
	case node.GetStatus().GetState() == spec.NodeOffline:
		return spec.EndpointUnready, "node " + r.GetSpec().GetNode() + " is offline"
	case r.GetSpec().GetDesired() == spec.DesiredStopped || r.GetStatus().GetPhase() == spec.PhaseStopping:
		return spec.EndpointDraining, "the replica is being stopped"
	case !spec.Serves(r):
		return spec.EndpointUnready, "the replica is " + r.GetStatus().GetPhase()
	case isDraining(node):
		return spec.EndpointDraining, "node " + r.GetSpec().GetNode() + " is being drained"
	}
	return spec.EndpointReady, ""
}

func isDraining(n *v1.Node) bool {
	return n.GetStatus().GetState() == spec.NodeDraining || n.GetSpec().GetAvailability() == spec.AvailabilityDraining
}

// weightUnit is the weight of a workload with a share of 1. A share is divided among the replicas of the workload, so
// the unit leaves room for fractions.
const weightUnit = 1000

// weigh computes the share of each endpoint.
func weigh(weights map[string]int32, all []*v1.Endpoint) {
	ready := map[string]int32{}
	for _, e := range all {
		if e.GetStatus().GetState() == spec.EndpointReady {
			ready[e.GetSpec().GetWorkload()]++
		}
	}
	for _, e := range all {
		workload := e.GetSpec().GetWorkload()
		share, named := weights[workload]
		switch {
		case workload == "": // not a replica: it has a share of its own
			e.Status.Weight = max(e.GetSpec().GetWeight(), 1) * weightUnit
		case len(weights) == 0:
			e.Status.Weight = weightUnit
		case named && share == 0:
			e.Status.Weight = 0
		default:
			e.Status.Weight = max(max(share, 1)*weightUnit/max(ready[workload], 1), 1)
		}
	}
}
