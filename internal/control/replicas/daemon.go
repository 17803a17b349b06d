package replicas

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// daemon takes the next step of a daemon. Each replica is made for one node and fits only
// there.
func (t *tick) daemon(w *v1.Workload) {
	have := t.survey(w)
	if have.gone {
		t.remove(w)
		return
	}
	revision, err := t.cluster.revision(t.snap, w.GetStatus().GetRevisionUid())
	if err != nil && w.GetMetadata().GetDeleteTime() == nil {
		return // its needs are unknown
	}
	d, names := t.cluster.daemonOf(w, revision)
	d.Replicas = have.replicas
	step := rollout.NextOfDaemon(d)
	t.loseAndStop(step.Lose, step.Stop)
	t.addSuccessors(w, step.Succeed)
	t.replace(w, step.Replace)
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		t.waits(r)
	}
	for _, node := range step.Create {
		if !t.take(w.GetMetadata().GetUid()) {
			break
		}
		r := t.newReplica(w)
		r.Spec.OnlyNodeUid, r.Spec.OnlyNode = node, names[node]
		t.waits(r)
	}
}

// daemonOf reads a daemon without its replicas, and the names of nodes by uid. revision is
// nil if its needs are unknown.
func (c *cluster) daemonOf(w *v1.Workload, revision *scheduler.Revision) (d rollout.Daemon, names map[string]string) {
	d = rollout.Daemon{
		Revision: w.GetStatus().GetRevisionUid(), Deleting: w.GetMetadata().GetDeleteTime() != nil,
		Takes: map[string]bool{}, Keeps: map[string]bool{},
	}
	names = map[string]string{}
	if revision == nil {
		return d, names
	}
	for _, s := range c.view.Suits(revision) {
		d.Takes[s.Node], d.Keeps[s.Node], names[s.Node] = s.Takes, s.Keeps, s.NodeName
	}
	return d, names
}

// askFor asks for a place for replicas of one workload: on any node, or each on its own
// node. Room is already being made for the held ones.
func askFor(revision *scheduler.Revision, waiting, held []*v1.Replica) scheduler.Ask {
	on := onlyNodes(waiting)
	return scheduler.Ask{
		Revision: revision, Count: len(waiting), Held: uidsOf(held),
		On: on, Pinned: len(on)+len(onlyNodes(held)) > 0,
	}
}

// onlyNodes lists the nodes that the replicas are bound to.
func onlyNodes(replicas []*v1.Replica) (nodes []string) {
	for _, r := range replicas {
		if node := r.GetSpec().GetOnlyNodeUid(); node != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// takeFor removes from asked the replica that a placement is for, and returns it.
func takeFor(asked *[]*v1.Replica, p scheduler.Placement) *v1.Replica {
	at := 0
	if (*asked)[0].GetSpec().GetOnlyNodeUid() != "" {
		at = slices.IndexFunc(*asked, func(r *v1.Replica) bool { return r.GetSpec().GetOnlyNodeUid() == p.Node })
	}
	r := (*asked)[at]
	if at == 0 {
		*asked = (*asked)[1:]
	} else {
		*asked = slices.Delete(*asked, at, at+1)
	}
	return r
}

// keepPendingEach keeps replicas pending that are bound to one node each, with that node's
// reason.
func (t *tick) keepPendingEach(replicas []*v1.Replica, u scheduler.Unplaced) {
	reasons := reasonsByNode(u)
	for _, r := range replicas {
		reason := reasons[r.GetSpec().GetOnlyNodeUid()]
		t.keepPending([]*v1.Replica{r}, fmt.Sprintf("1 replica of %s cannot be placed: %s: %s", u.Name, r.GetSpec().GetOnlyNode(), reason))
	}
}

// reasonsByNode maps each node to the reason why its replica does not fit there.
func reasonsByNode(u scheduler.Unplaced) map[string]string {
	reasons := map[string]string{}
	for _, n := range u.Nodes {
		if reasons[n.Node] = n.String(); u.Quota != "" {
			reasons[n.Node] = u.Quota
		}
	}
	return reasons
}

// followDaemons tracks which workloads are daemons. It makes all of them due when nodes
// change in a way that may suit other daemons.
func (m *memory) followDaemons(changes []state.Change, due *Due) {
	other := false
	for _, c := range changes {
		switch c.Kind {
		case state.KindWorkload:
			if w, _ := c.New.(*v1.Workload); w.GetSpec().GetKind() == spec.KindDaemon {
				m.addDaemon(w)
			} else if c.New == nil {
				delete(m.daemons, c.Old.GetMetadata().GetUid())
			}
		case state.KindNode:
			before, _ := c.Old.(*v1.Node)
			after, _ := c.New.(*v1.Node)
			other = other || after == nil || daemonsMayChange(before, after)
		}
	}
	if other {
		for uid := range m.daemons {
			due.Workloads[uid] = true
		}
	}
}

func (m *memory) addDaemon(w *v1.Workload) {
	if m.daemons == nil {
		m.daemons = map[string]bool{}
	}
	m.daemons[w.GetMetadata().GetUid()] = true
}

// daemonsMayChange reports whether a node may suit other daemons than before.
func daemonsMayChange(before, after *v1.Node) bool {
	return placementMayChange(before, after) ||
		!slices.EqualFunc(before.GetSpec().GetTaints(), after.GetSpec().GetTaints(), func(a, b *v1.Taint) bool { return proto.Equal(a, b) }) ||
		!slices.EqualFunc(before.GetStatus().GetConditions(), after.GetStatus().GetConditions(), func(a, b *v1.Condition) bool {
			return a.GetType() == b.GetType() && a.GetStatus() == b.GetStatus()
		})
}

// Nodes counts the nodes that should run a daemon: nodes that accept it, and nodes that
// keep the replica they have.
func (Placement) Nodes(snap *state.Snapshot, w *v1.Workload) int {
	c := emptyCluster(snap)
	revision, err := c.revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return 0
	}
	has := map[string]bool{}
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if node := r.GetSpec().GetNodeUid(); node != "" && wanted(r) {
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
	c := newCluster(snap)
	revision, err := c.revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil
	}
	request := scheduler.Request{Asks: []scheduler.Ask{{Revision: revision, Pinned: true}}}
	ask := &request.Asks[0]
	for _, r := range byUID(snap, w.GetMetadata().GetUid()) {
		switch {
		case !wanted(r) || Away(snap, r) || awaitsRoom(snap, r): // replicas whose room is coming are explained separately
		case r.GetSpec().GetNodeUid() == "":
			ask.On = append(ask.On, r.GetSpec().GetOnlyNodeUid())
		case r.GetSpec().GetRevisionUid() != revision.UID:
			ask.On = append(ask.On, r.GetSpec().GetNodeUid())
			request.Without = append(request.Without, r.GetMetadata().GetUid())
		}
	}
	if len(ask.On) == 0 {
		return nil
	}
	var reasons []*v1.NodeReason
	for _, u := range c.view.Plan(request).Unplaced {
		why := reasonsByNode(u)
		for _, n := range u.Nodes {
			reasons = append(reasons, &v1.NodeReason{Node: n.NodeName, Reason: why[n.Node]})
		}
	}
	return reasons
}
