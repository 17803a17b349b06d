package replicas

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
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
// Those on which rules about where others are decide stand or fall together, with
// those of the plan that the rules are about: they are one part. It begins with a check
// that those others are still there, and no node anywhere has changed: not of each of
// them, which could be thousands, but of the marks that the state moves when one does.
// Labels that rules may be about are those of the workloads, whose versions are checked.
//
// Replicas that are to do the work of others on offline nodes are made only if those have
// not ended in between: one may just have reported that it is done. Those of one workload
// are one part, too.
//
// A preemption counts on replicas of the victim's service that stay, as many as its
// minAvailable. The commit checks that these still run on the nodes that they had.
//
// A version changes with things that do not matter here, such as a node's
// reliability, too. Those are rare, and cost one more look at what is in that part.
// Looking again just before proposing instead would leave open the time in which the
// log is written, which is the longest.

// move is a replica with the place that a plan has for it and those who have to go
// first.
type move struct {
	replica *v1.Replica
	of      *scheduler.Revision
	to      scheduler.Placement
	victims []scheduler.Preemption
}

// takeAll takes room for all that a move changes, or for none of it. After one for
// which there was none there is none for others: they may rely on it, and what is less
// important does not come before. The first one has room however many have to go for it:
// a node may have more small replicas than a tick moves, and the one that needs it all
// would wait for ever.
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
	if first := t.moves == newRoom(); !first && !t.moves.has(len(changed)) {
		t.left.Workloads[m.replica.GetSpec().GetWorkloadUid()] = true
		t.moves, t.room = room{}, room{}
		return false
	}
	for _, workload := range changed {
		t.moves.take(t.labelsOf(workload))
	}
	return true
}

// commit adds moves to the batch.
func (t *tick) commit(moves []move) {
	if len(moves) == 0 {
		return
	}
	slices.SortStableFunc(moves, func(a, b move) int { return compareNodes(a.to, b.to) })
	rules := t.ruled(moves)
	var free, ruled []move
	covering := map[string][]move{} // by workload
	for _, m := range moves {
		switch {
		case rules.revisions[m.of]:
			ruled = append(ruled, m)
		case t.coversWork(m.replica):
			covering[m.of.Workload] = append(covering[m.of.Workload], m)
		default:
			free = append(free, m)
		}
	}
	t.many = len(moves) > fewPlaced
	t.victims = victimsOf(moves)
	t.commitEach(free, rules)
	for _, uid := range slices.Sorted(maps.Keys(covering)) {
		t.commitTogether(covering[uid], rules, func() { t.checkAway(uid) })
	}
	t.commitTogether(ruled, rules, func() { t.checkRuled(ruled, rules) })
	t.checkWhole(moves)
}

// commitEach adds what goes to one node as one part, for each of the nodes.
func (t *tick) commitEach(moves []move, rules ruled) {
	checked := map[string]bool{} // in this part
	for i, m := range moves {
		if i == 0 || m.to.Node != moves[i-1].to.Node {
			t.batch.BeginPart()
			clear(checked)
		}
		t.move(m, rules, checked)
	}
	t.batch.EndPart()
	t.announce()
}

// commitTogether adds moves as one part, which begins with checks of what all of them rely
// on.
func (t *tick) commitTogether(moves []move, rules ruled, check func()) {
	if len(moves) == 0 {
		return
	}
	t.batch.BeginPart()
	check()
	checked := map[string]bool{}
	for _, m := range moves {
		t.move(m, rules, checked)
	}
	t.announce()
	t.batch.EndPart()
}

// move adds one move to a part, and what it relies on of its own that is not checked
// there yet.
func (t *tick) move(m move, rules ruled, checked map[string]bool) {
	check := func(kind state.Kind, uid string) {
		if !checked[uid] {
			t.batch.Check(kind, uid, t.snap.Get(kind, uid).GetMetadata().GetVersion())
			checked[uid] = true
		}
	}
	check(state.KindNode, m.to.Node)
	if rules.labels[m.of] || m.to.Preempts {
		check(state.KindWorkload, m.of.Workload)
	}
	if m.to.Preempts {
		for _, v := range m.victims {
			check(state.KindWorkload, v.Workload) // which may be more important or want to keep more by now
			t.checkKept(v.Workload, check)
		}
		t.reserve(m)
	} else {
		t.assign(m.replica, m.to)
	}
}

// checkKept checks as many running replicas of a victim's service as its minAvailable,
// and their nodes.
func (t *tick) checkKept(workloadUID string, check func(state.Kind, string)) {
	keeps := t.snap.Workload(workloadUID).GetSpec().GetMinAvailable()
	if keeps == 0 {
		return
	}
	for r := range t.snap.ReplicasOf(workloadUID) {
		uid := r.GetMetadata().GetUid()
		if !wanted(r) || r.GetStatus().GetPhase() != rollout.PhaseRunning || Away(t.snap, r) || t.stopped[uid] || t.victims[uid] {
			continue
		}
		check(state.KindReplica, uid)
		check(state.KindNode, r.GetSpec().GetNodeUid())
		if keeps--; keeps == 0 {
			return
		}
	}
}

// victimsOf are the uids of all replicas that moves push out.
func victimsOf(moves []move) map[string]bool {
	uids := map[string]bool{}
	for _, m := range moves {
		for _, v := range m.victims {
			uids[v.Replica] = true
		}
	}
	return uids
}

// checkWhole adds what all moves need.
func (t *tick) checkWhole(moves []move) {
	if c := t.snap.Cluster(); c != nil {
		t.batch.Check(state.KindCluster, c.GetMetadata().GetUid(), c.GetMetadata().GetVersion())
	}
	moved := map[string]bool{}
	for _, m := range moves {
		t.holdQuota(m.replica.GetMetadata().GetNamespace())
		moved[m.replica.GetMetadata().GetUid()] = true
	}
	for _, m := range moves {
		if len(m.victims) > 0 {
			t.unreserve(m, moved)
		}
	}
}

// ruled are the revisions that are placed by rules about where others are, with those
// of the same plan that the rules are about.
type ruled struct {
	revisions map[*scheduler.Revision]bool
	// workloads are the uids of those of which nothing may end.
	workloads map[string]bool
	// labels are the revisions whose workloads must have the labels that they had.
	labels map[*scheduler.Revision]bool
}

func (t *tick) ruled(moves []move) ruled {
	r := ruled{revisions: map[*scheduler.Revision]bool{}, workloads: map[string]bool{}, labels: map[*scheduler.Revision]bool{}}
	all := map[*scheduler.Revision]bool{}
	for _, m := range moves {
		if all[m.of] {
			continue
		}
		all[m.of] = true
		on := t.cluster.view.Relies(m.of)
		if on.Others {
			r.revisions[m.of] = true
		}
		if on.Labels {
			r.labels[m.of] = true
		}
		for _, uid := range on.Workloads {
			r.workloads[uid] = true
		}
	}
	rules := slices.Collect(maps.Keys(r.revisions))
	for revision := range all {
		for _, rule := range rules {
			is, might := rule.About(revision)
			r.revisions[revision] = r.revisions[revision] || is
			r.labels[revision] = r.labels[revision] || might
		}
	}
	return r
}

// checkRuled adds what those that are placed by rules about others rely on.
func (t *tick) checkRuled(moves []move, r ruled) {
	t.checkMarks(r)
	checked := map[string]bool{}
	for _, m := range moves {
		if uid := m.of.Workload; t.coversWork(m.replica) && !checked[uid] {
			t.checkAway(uid)
			checked[uid] = true
		}
	}
}

// checkMarks adds a check that nothing has changed that rules rely on.
func (t *tick) checkMarks(r ruled) {
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

// handedBack is what is due again of a transaction that was committed, because
// some of it was left out.
func handedBack(tx *statev1.Transaction, result state.Result) Due {
	due := Due{Workloads: map[string]bool{}}
	for r := range leftOut(tx, result) {
		due.Workloads[r.GetSpec().GetWorkloadUid()] = true
	}
	return due
}

// leftOut are the replicas that a commit did not put.
func leftOut(tx *statev1.Transaction, result state.Result) iter.Seq[*v1.Replica] {
	return func(yield func(*v1.Replica) bool) {
		if len(result.LeftOut) == 0 {
			return
		}
		for _, change := range tx.GetChanges() {
			if r := change.GetPut().GetReplica(); r != nil && result.LeftOut[change.GetPart()] != nil && !yield(r) {
				return
			}
		}
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
