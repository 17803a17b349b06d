package replicas

import (
	"fmt"
	"maps"
	"slices"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/state"
)

// Between the plan and its place in the log a node may be cordoned, tainted, lost
// or found smaller. So the commit itself checks every placement against the newest
// state: what goes to one node is one part of the transaction, which begins with a
// check that the node is still at the version that the plan was made from. Where
// it is not, that part is left out on every server, and nothing else is; the loop
// gets it back and plans it again. The configuration, which says how much of a
// node may be promised, is checked for the whole. No other can break a promise,
// because the loop is the only one who makes any.
//
// Where rules about where others are decide on one of those that are placed, all
// stand or fall together: they are one part. It begins with a check that those others
// are still there, and no node anywhere has changed: not of each of them, which could
// be thousands, but of the marks that the state moves when one does.
//
// A version changes with things that do not matter here, such as a node's
// reliability, too. Those are rare, and cost one more look at what goes to that
// node. Looking again just before proposing instead would leave open the time in
// which the log is written, which is the longest part.

// move is a replica with the place that a plan has for it and those who have to go
// first.
type move struct {
	replica *v1.Replica
	of      *scheduler.Revision
	to      scheduler.Placement
	victims []scheduler.Preemption
}

// takeAll takes room for all that a move changes, or for none of it.
func (t *tick) takeAll(m move) bool {
	var changed []string // by workload
	if t.stored(m.replica) {
		changed = append(changed, m.replica.GetSpec().GetWorkloadUid())
	}
	for _, v := range m.victims {
		if r := t.snap.Replica(v.Replica); r.GetSpec().GetNodeUid() != "" {
			changed = append(changed, r.GetSpec().GetWorkloadUid())
		}
	}
	if len(changed) > t.room {
		t.left.Workloads[m.replica.GetSpec().GetWorkloadUid()] = true
		t.room = 0 // what is less important does not come before
		return false
	}
	for _, workload := range changed {
		t.spend(workload)
	}
	return true
}

// commit adds moves to the batch, those to one node as one part.
func (t *tick) commit(moves []move) {
	slices.SortStableFunc(moves, func(a, b move) int { return compareNodes(a.to, b.to) })
	relies := t.relies(moves)
	t.many = len(moves) > fewPlaced
	moved := map[string]bool{}
	var unreserved []move
	for i, m := range moves {
		if i == 0 || m.to.Node != moves[i-1].to.Node {
			if i == 0 || !relies.others {
				t.batch.Part()
				t.checkMarks(relies)
			}
			t.batch.Check(state.KindNode, m.to.Node, t.snap.Node(m.to.Node).GetMetadata().GetVersion())
		}
		moved[m.replica.GetMetadata().GetUid()] = true
		if m.to.Preempts {
			t.reserve(m)
		} else {
			t.assign(m.replica, m.to)
		}
		if len(m.victims) > 0 {
			unreserved = append(unreserved, m)
		}
	}
	if len(moves) == 0 {
		return
	}
	t.batch.Whole()
	t.announce()
	if c := t.snap.Cluster(); c != nil {
		t.batch.Check(state.KindCluster, c.GetMetadata().GetUid(), c.GetMetadata().GetVersion())
	}
	for _, m := range moves {
		t.holdQuota(m.replica.GetMetadata().GetNamespace())
	}
	for _, m := range unreserved {
		t.unreserve(m, moved)
	}
}

// reliance is what moves rely on beside the nodes that they go to.
type reliance struct {
	// others is whether rules about others decide on one of them, and workloads are
	// the uids of those that must stay where they are.
	others    bool
	workloads map[string]bool
}

func (t *tick) relies(moves []move) reliance {
	r := reliance{workloads: map[string]bool{}}
	asked := map[*scheduler.Revision]bool{}
	for _, m := range moves {
		if asked[m.of] {
			continue
		}
		asked[m.of] = true
		others, workloads := t.cluster.view.Relies(m.of)
		r.others = r.others || others
		for _, uid := range workloads {
			r.workloads[uid] = true
		}
	}
	return r
}

// checkMarks adds a check that nothing has changed that moves rely on.
func (t *tick) checkMarks(r reliance) {
	if !r.others {
		return
	}
	t.batch.Check(state.KindMark, state.MarkLayout, t.snap.MarkVersion(state.MarkLayout))
	for _, uid := range slices.Sorted(maps.Keys(r.workloads)) {
		t.batch.Check(state.KindMark, uid, t.snap.MarkVersion(uid))
	}
}

func compareNodes(a, b scheduler.Placement) int {
	switch {
	case a.NodeName != b.NodeName && a.NodeName < b.NodeName, a.NodeName == b.NodeName && a.Node < b.Node:
		return -1
	case a.NodeName == b.NodeName && a.Node == b.Node:
		return 0
	}
	return 1
}

// HandedBack is what is due again of a transaction that was committed, because
// some of it was left out.
func HandedBack(tx *statev1.Transaction, result state.Result) Due {
	due := Due{Workloads: map[string]bool{}}
	if len(result.LeftOut) == 0 {
		return due
	}
	for _, change := range tx.GetChanges() {
		if r := change.GetPut().GetReplica(); r != nil && result.LeftOut[change.GetPart()] != nil {
			due.Workloads[r.GetSpec().GetWorkloadUid()] = true
		}
	}
	return due
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
