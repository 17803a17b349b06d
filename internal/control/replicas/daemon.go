package replicas

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
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
	if t.followGroup(w) {
		return
	}
	revision, err := t.cluster.Revision(t.snap, w.GetStatus().GetRevisionUid())
	if err != nil && w.GetMetadata().GetDeleteTime() == nil {
		return // its needs are unknown
	}
	d, names := t.cluster.DaemonOf(w, revision)
	if t.deploy(w, d.Size(), have.replicas) {
		return
	}
	if before := t.target(w); before != w {
		if before == nil {
			return
		}
		if revision, err = t.cluster.Revision(t.snap, before.GetStatus().GetRevisionUid()); err != nil {
			return
		}
		w = before
		d, names = t.cluster.DaemonOf(w, revision)
	}
	d.Replicas = have.replicas
	t.steer(w, &d.Update)
	step := rollout.NextOfDaemon(d)
	t.loseAndStop(step.Lose, step.Stop)
	t.addSuccessors(w, step.Succeed)
	var beside []*v1.Replica
	for _, node := range step.Surge {
		beside = append(beside, t.newReplicaOn(w, node, names[node]))
	}
	t.surge(w, beside, step.Beside, step.Replace, step.Blocked)
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		t.waits(r)
	}
	for _, node := range step.Create {
		if !t.take(w.GetMetadata().GetUid()) {
			break
		}
		t.waits(t.newReplicaOn(w, node, names[node]))
	}
}

// newReplicaOn is a new replica that may only go to one node.
func (t *tick) newReplicaOn(w *v1.Workload, uid, name string) *v1.Replica {
	r := t.newReplica(w)
	r.Spec.OnlyNodeUid, r.Spec.OnlyNode = uid, name
	return r
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
	reasons := placement.ReasonsByNode(u)
	for _, r := range replicas {
		reason := reasons[r.GetSpec().GetOnlyNodeUid()]
		t.keepPending([]*v1.Replica{r}, fmt.Sprintf("1 replica of %s cannot be placed: %s: %s", u.Name, r.GetSpec().GetOnlyNode(), reason))
	}
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
		case state.KindPolicy:
			other = other || placement.ChangesPlacement(c)
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
