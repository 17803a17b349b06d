package placement

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/state"
)

// DaemonOf reads a daemon without its replicas, and the names of nodes by uid. revision is
// nil if its needs are unknown.
func (c *Model) DaemonOf(w *v1.Workload, revision *scheduler.Revision) (d rollout.Daemon, names map[string]string) {
	d = rollout.Daemon{
		Revision: w.GetStatus().GetRevisionUid(), Deleting: w.GetMetadata().GetDeleteTime() != nil,
		Takes: map[string]bool{}, Keeps: map[string]bool{},
	}
	names = map[string]string{}
	if revision == nil {
		return d, names
	}
	for _, s := range c.View.Suits(revision) {
		d.Takes[s.Node], d.Keeps[s.Node], names[s.Node] = s.Takes, s.Keeps, s.NodeName
	}
	d.Update = UpdateOf(w, len(d.Takes))
	return d, names
}

// AskFor asks for a place for replicas of one workload: on any node, or each on its own
// node. Room is already being made for the held ones.
func AskFor(revision *scheduler.Revision, waiting, held []*v1.Replica) scheduler.Ask {
	on := OnlyNodes(waiting)
	return scheduler.Ask{
		Revision: revision, Count: len(waiting), Held: UIDsOf(held),
		On: on, Pinned: len(on)+len(OnlyNodes(held)) > 0,
	}
}

// OnlyNodes lists the nodes that the replicas are bound to.
func OnlyNodes(replicas []*v1.Replica) (nodes []string) {
	for _, r := range replicas {
		if node := r.GetSpec().GetOnlyNodeUid(); node != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// ReasonsByNode maps each node to the reason why its replica does not fit there.
func ReasonsByNode(u scheduler.Unplaced) map[string]string {
	reasons := map[string]string{}
	for _, n := range u.Nodes {
		if reasons[n.Node] = n.String(); u.Quota != "" {
			reasons[n.Node] = u.Quota
		}
	}
	return reasons
}

// Nodes counts the nodes that should run a daemon: nodes that accept it, and nodes that
// keep the replica they have.
func (Queries) Nodes(snap *state.Snapshot, w *v1.Workload) int {
	c := emptyModel(snap)
	revision, err := c.Revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return 0
	}
	has := map[string]bool{}
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if node := r.GetSpec().GetNodeUid(); node != "" && Wanted(r) {
			has[node] = true
		}
	}
	count := 0
	for n := range snap.Nodes("") {
		node := viewNode(snap, n)
		if s := scheduler.SuitOf(revision, &node); s.Takes || s.Keeps && has[s.Node] {
			count++
		}
	}
	return count
}

// explainDaemon is Explain for a daemon: each node has its own reason.
func explainDaemon(snap *state.Snapshot, w *v1.Workload) []*v1.NodeReason {
	c := NewModel(snap)
	revision, err := c.Revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil
	}
	request := scheduler.Request{Asks: []scheduler.Ask{{Revision: revision, Pinned: true}}}
	ask, mayMakeRoom := &request.Asks[0], mayMakeRoom(snap, w)
	ask.Modest = !mayMakeRoom
	for _, r := range ByUID(snap, w.GetMetadata().GetUid()) {
		switch {
		case !Wanted(r) || Away(snap, r) || awaitsRoom(snap, r): // replicas whose room is coming are explained separately
		case r.GetSpec().GetNodeUid() == "":
			ask.On = append(ask.On, r.GetSpec().GetOnlyNodeUid())
		case r.GetSpec().GetRevisionUid() != revision.UID:
			ask.On = append(ask.On, r.GetSpec().GetNodeUid())
			if mayMakeRoom {
				request.Without = append(request.Without, r.GetMetadata().GetUid())
			}
		}
	}
	if len(ask.On) == 0 {
		return nil
	}
	var reasons []*v1.NodeReason
	for _, u := range c.View.Plan(request).Unplaced {
		why := ReasonsByNode(u)
		for _, n := range u.Nodes {
			reasons = append(reasons, &v1.NodeReason{Node: n.NodeName, Reason: why[n.Node]})
		}
	}
	return reasons
}
