package services

import (
	"iter"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Endpoints lists the endpoints of a service: the replicas of its workloads that have an address, the external ones of
// its spec, and the registered ones. Its cost grows with the endpoints and, for a service with a selector, with the
// workloads of the namespace. The objects must not be modified.
func Endpoints(snap *state.Snapshot, s *v1.Service) []*v1.Endpoint {
	var all []*v1.Endpoint
	var idle []*v1.Endpoint // they get no connection even if no other endpoint is ready
	var splits []*split
	for w := range Workloads(snap, s) {
		traffic := trafficOf(snap, w)
		canary := traffic.split()
		if canary != nil {
			splits = append(splits, canary)
		}
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if e := ofReplica(snap, s, r); e != nil {
				traffic.apply(r, e)
				all = append(all, e)
				canary.add(r, e)
				if traffic.passesBy(r.GetSpec().GetRevisionUid()) {
					idle = append(idle, e)
				}
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
	for _, canary := range splits {
		canary.weigh()
	}
	for _, e := range idle {
		e.Status.Weight = 0
	}
	useOffline(snap, all)
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

// useOffline makes replicas on offline nodes draining, if no endpoint takes connections and nothing else is wrong with
// them. When all nodes of a service seem to be offline at once, the cause is more often between them and the servers:
// after a partition has healed, some nodes are back earlier than others.
func useOffline(snap *state.Snapshot, all []*v1.Endpoint) {
	takesConnections := func(e *v1.Endpoint) bool {
		return e.GetStatus().GetState() != spec.EndpointUnready && e.GetStatus().GetWeight() > 0
	}
	if slices.ContainsFunc(all, takesConnections) {
		return
	}
	for _, e := range all {
		if r := snap.Replica(e.GetMetadata().GetUid()); r != nil && onOfflineNode(snap, e) && spec.Serves(r) && e.GetStatus().GetWeight() > 0 {
			e.Status.State = spec.EndpointDraining
			e.Status.Reason += ", and is used because no other endpoint is ready"
		}
	}
}

func onOfflineNode(snap *state.Snapshot, e *v1.Endpoint) bool {
	return snap.Node(e.GetSpec().GetNodeUid()).GetStatus().GetState() == spec.NodeOffline
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

// Chooses reports whether the replicas of a workload are endpoints of a service of its namespace.
func Chooses(s *v1.Service, w *v1.Workload) bool {
	if selector := s.GetSpec().GetSelector(); len(selector) > 0 {
		return matches(selector, w.GetMetadata().GetLabels())
	}
	return s.GetMetadata().GetName() == w.GetMetadata().GetName()
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

// traffic says which revisions of a workload get the traffic. Its zero value leads to all of them.
type traffic struct {
	// Blue-green: only is the revision that gets the traffic, which is the last good one before the switch and the new
	// one after it. not is the new revision before the switch. Further revisions are those of earlier deployments, which
	// may still be kept.
	only, not string
	// Rolling: unproven is the new revision before the first of its replicas is steady. It gets connections only if
	// nothing else does: a release that ends soon after its start harms nobody. why says so.
	unproven, why string
	// Canary: canary is the new revision, and share what it gets of the traffic, in percent: exactly that, or at least
	// that if more of its replicas are on their way. It is 0 before all replicas of the first step have proven themselves.
	canary  string
	share   int
	atLeast bool
}

// trafficOf reads the newest deployment of a workload. One that ended without a switch leads to all revisions, because
// the workload had another strategy then; but one that was rolled back still has replicas to stop.
func trafficOf(snap *state.Snapshot, w *v1.Workload) traffic {
	d := snap.Deployment(w.GetStatus().GetDeploymentUid())
	revision := d.GetSpec().GetRevisionUid()
	blueGreen := spec.DeploymentStrategy(d, w.GetSpec()) == spec.StrategyBlueGreen
	canary := spec.CanaryOf(d) != nil
	switch {
	case d.GetSpec().GetPreviousUid() == "":
		return traffic{}
	case blueGreen && d.GetStatus().GetSwitched():
		return traffic{only: revision}
	case !spec.DeploymentOpen(d) && d.GetStatus().GetPhase() != spec.DeploymentRolledBack:
		return traffic{}
	case blueGreen:
		return traffic{only: d.GetSpec().GetPreviousUid(), not: revision}
	case canary && (!spec.DeploymentOpen(d) || spec.CanaryStepping(d) && d.GetStatus().GetWeight() == 0): // not yet, or not any more
		return traffic{unproven: revision, why: "its revision gets no share of the traffic now"}
	case canary && d.GetStatus().GetWeight() > 0:
		return traffic{canary: revision, share: int(d.GetStatus().GetWeight()), atLeast: !spec.CanaryStepping(d)}
	case proven(snap, w, revision):
		return traffic{}
	}
	return traffic{unproven: revision, why: "no replica of its revision has served for long enough yet"}
}

// proven reports whether a replica of a revision has served for long enough.
func proven(snap *state.Snapshot, w *v1.Workload, revision string) bool {
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if r.GetSpec().GetRevisionUid() == revision && spec.Steady(r) {
			return true
		}
	}
	return false
}

// Idle says which replicas of a blue-green workload get no traffic even if they serve.
func Idle(snap *state.Snapshot, w *v1.Workload) func(*v1.Replica) bool {
	t := trafficOf(snap, w)
	return func(r *v1.Replica) bool { return t.passesBy(r.GetSpec().GetRevisionUid()) }
}

func (t traffic) passesBy(revision string) bool {
	return t.only != "" && t.only != revision || t.not != "" && t.not == revision
}

// apply takes the endpoint of a replica out of balancing if its revision gets no traffic.
func (t traffic) apply(r *v1.Replica, e *v1.Endpoint) {
	revision := r.GetSpec().GetRevisionUid()
	switch {
	case e.GetStatus().GetState() != spec.EndpointReady:
	case t.unproven != "" && t.unproven == revision:
		e.Status.State, e.Status.Reason = spec.EndpointDraining, t.why
	case t.not != "" && t.not == revision:
		e.Status.State, e.Status.Reason = spec.EndpointUnready, "its revision gets no traffic before the switch"
	case t.passesBy(revision):
		e.Status.State, e.Status.Reason = spec.EndpointDraining, "another revision gets the traffic"
	}
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
	case r.GetSpec().GetDesired() == spec.DesiredStopped && spec.Serves(r), r.GetStatus().GetPhase() == spec.PhaseStopping && r.GetStatus().GetUnready() == "":
		return spec.EndpointDraining, "the replica is being stopped"
	case !spec.Serves(r) && r.GetStatus().GetPhase() == spec.PhaseRunning:
		return spec.EndpointUnready, "the replica is not ready: " + r.GetStatus().GetUnready()
	case !spec.Serves(r):
		return spec.EndpointUnready, "the replica is " + r.GetStatus().GetPhase()
	case departs(node):
		return spec.EndpointDraining, "node " + r.GetSpec().GetNode() + " is about to shut down or sleep"
	}
	return spec.EndpointReady, ""
}

// departs reports whether a machine is about to shut down or sleep. A node that an operator drains has time: each of its
// replicas takes connections until others make up for it and it is stopped, as minAvailable demands.
func departs(n *v1.Node) bool {
	return n.GetStatus().GetState() == spec.NodeDraining && n.GetSpec().GetAvailability() != spec.AvailabilityDraining
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
