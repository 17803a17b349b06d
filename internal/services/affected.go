package services

import (
	"maps"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Matters reports whether a change can affect a service at all. It is cheaper than [Affected].
func Matters(c state.Change) bool {
	switch c.Kind {
	case state.KindService, state.KindEndpoint:
		return true
	case state.KindWorkload:
		before, _ := c.Old.(*v1.Workload)
		after, _ := c.New.(*v1.Workload)
		return before == nil || after == nil || !samePublished(before, after) ||
			before.GetStatus().GetDeploymentUid() != after.GetStatus().GetDeploymentUid() || spec.StrategyOf(before.GetSpec()) != spec.StrategyOf(after.GetSpec()) ||
			!maps.Equal(before.GetMetadata().GetLabels(), after.GetMetadata().GetLabels())
	case state.KindReplica:
		before, _ := c.Old.(*v1.Replica)
		after, _ := c.New.(*v1.Replica)
		return !looksTheSame(before, after)
	case state.KindDeployment:
		before, _ := c.Old.(*v1.Deployment)
		after, _ := c.New.(*v1.Deployment)
		return before == nil || after == nil || before.GetStatus().GetSwitched() != after.GetStatus().GetSwitched() ||
			before.GetStatus().GetPhase() != after.GetStatus().GetPhase() ||
			before.GetStatus().GetWeight() != after.GetStatus().GetWeight() || before.GetStatus().GetStep() != after.GetStatus().GetStep()
	case state.KindNode:
		before, _ := c.Old.(*v1.Node)
		after, _ := c.New.(*v1.Node)
		return nodeView(before) != nodeView(after)
	}
	return false
}

// Affected returns the uids of the services whose spec, addresses, endpoints or published ports may differ after some
// changes, which led to the snapshot. A deleted service is among them. Changes that no endpoint shows, such as the process id of a replica,
// affect none. The cost of a change does not depend on the number of services without a selector.
func Affected(snap *state.Snapshot, changes []state.Change) map[string]bool {
	a := affected{snap: snap, uids: map[string]bool{}}
	for _, c := range changes {
		if !Matters(c) {
			continue
		}
		switch c.Kind {
		case state.KindService:
			a.object(c.Old)
			a.object(c.New)
		case state.KindEndpoint:
			for _, o := range []state.Object{c.Old, c.New} {
				if e, ok := o.(*v1.Endpoint); ok {
					a.uids[e.GetSpec().GetServiceUid()] = true
				}
			}
		case state.KindWorkload:
			a.workload(c)
		case state.KindDeployment:
			a.deployment(c)
		case state.KindReplica:
			a.replica(c)
		case state.KindNode:
			a.node(c)
		}
	}
	return a.uids
}

type affected struct {
	snap *state.Snapshot
	uids map[string]bool
}

func (a *affected) object(o state.Object) {
	if s, ok := o.(*v1.Service); ok {
		a.uids[s.GetMetadata().GetUid()] = true
	}
}

// workload affects the services that choose it before or after the change, and the one that it publishes.
func (a *affected) workload(c state.Change) {
	for _, o := range []state.Object{c.Old, c.New} {
		if w, ok := o.(*v1.Workload); ok {
			if s := a.snap.ServiceByName(w.GetMetadata().GetNamespace(), w.GetMetadata().GetName()); s != nil {
				a.object(s)
			}
			a.choosing(w.GetMetadata().GetNamespace(), w.GetMetadata().GetName(), w.GetMetadata().GetLabels())
		}
	}
}

// choosing affects the services that choose a workload: by its name, or by its labels.
func (a *affected) choosing(namespace, name string, labels map[string]string) {
	if s := a.snap.ServiceByName(namespace, name); s != nil && len(s.GetSpec().GetSelector()) == 0 {
		a.object(s)
	}
	for s := range a.snap.SelectingServices(namespace) {
		if matches(s.GetSpec().GetSelector(), labels) {
			a.object(s)
		}
	}
}

// deployment affects the services of its workload.
func (a *affected) deployment(c state.Change) {
	d, ok := c.New.(*v1.Deployment)
	if !ok {
		d, _ = c.Old.(*v1.Deployment)
	}
	if w := a.snap.Workload(d.GetSpec().GetWorkloadUid()); w != nil {
		a.choosing(w.GetMetadata().GetNamespace(), w.GetMetadata().GetName(), w.GetMetadata().GetLabels())
	}
}

func (a *affected) replica(c state.Change) {
	r, ok := c.New.(*v1.Replica)
	if !ok {
		r, _ = c.Old.(*v1.Replica)
	}
	a.replicaServices(r)
}

func (a *affected) replicaServices(r *v1.Replica) {
	w := a.snap.Workload(r.GetSpec().GetWorkloadUid())
	a.choosing(r.GetMetadata().GetNamespace(), r.GetSpec().GetWorkload(), w.GetMetadata().GetLabels())
}

// looksTheSame reports whether a replica is the same endpoint before and after a change, or none at both times.
func looksTheSame(before, after *v1.Replica) bool {
	if was, is := isListed(before), isListed(after); !was || !is {
		return was == is
	}
	return before.GetStatus().GetPhase() == after.GetStatus().GetPhase() && before.GetStatus().GetUnready() == after.GetStatus().GetUnready() &&
		before.GetStatus().GetSettling() == after.GetStatus().GetSettling() && before.GetSpec().GetDesired() == after.GetSpec().GetDesired() &&
		before.GetSpec().GetRevisionUid() == after.GetSpec().GetRevisionUid() &&
		before.GetSpec().GetNodeUid() == after.GetSpec().GetNodeUid() &&
		slices.Equal(before.GetStatus().GetAddresses(), after.GetStatus().GetAddresses())
}

// node affects the services of the replicas on a node that goes offline, comes back, departs or moves to a zone.
func (a *affected) node(c state.Change) {
	n, ok := c.New.(*v1.Node)
	if !ok {
		n, _ = c.Old.(*v1.Node)
	}
	for r := range a.snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if isListed(r) {
			a.replicaServices(r)
		}
	}
}

// nodeView is what an endpoint shows of its node.
func nodeView(n *v1.Node) (view struct {
	exists, offline, departs bool
	zone                     string
},
) {
	view.exists = n != nil
	view.offline = n.GetStatus().GetState() == spec.NodeOffline
	view.departs = departs(n)
	view.zone = n.GetMetadata().GetLabels()[spec.LabelZone]
	return view
}
