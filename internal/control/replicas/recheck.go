package replicas

import (
	"iter"
	"maps"
	"slices"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Between plan and commit a node may be cordoned, tainted, lost or found smaller. So the
// commit itself checks every placement against the newest state. Everything that goes to
// one node is one part of the transaction, which begins with a check of the node's version.
// If the node has changed, all servers leave that part out, and nothing else; the loop
// plans it again. The cluster configuration sets the overcommit, so the whole transaction
// checks it. No other writer can overcommit a node, because only the loop places replicas.
//
// Placements under affinity rules form one part together with the placements in the same
// plan that the rules are about. The part begins with a check that those other replicas are
// still there and that no node has changed. It checks marks, which the state advances on
// such changes, because there could be thousands of objects. Rules match the labels of
// workloads, whose versions are checked.
//
// Covers for replicas on offline nodes are created only if the covered replicas have not
// ended: one may just have reported that it is done. The covers of one workload are one
// part, too.
//
// A preemption relies on enough other replicas of the victim's service to keep its
// minAvailable. The commit checks that they still run on the same nodes.
//
// A version also changes for reasons that do not matter here, such as a node's reliability.
// That is rare and costs one more look at that part. Checking just before the proposal
// instead would miss changes while the log is written, which takes longest.

// move is a replica with its planned place and its victims.
type move struct {
	replica *v1.Replica
	of      *scheduler.Revision
	to      scheduler.Placement
	victims []scheduler.Preemption
	// from is the replica whose place it takes, if it is moved. The commit checks that it still
	// runs, and that its workload has not changed.
	from *v1.Replica
}

// takeAll takes room for everything a move changes, or for nothing. Once a move finds no
// room, later moves get none: they may rely on it, and less important ones must not
// overtake it. The first move always has room: a node may have more small replicas than a
// tick moves, and a replica that needs all of them gone would wait forever.
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
	t.many = len(moves) > maxPlacedEvents
	t.victims = victimsOf(moves)
	t.commitEach(free, rules)
	for _, uid := range slices.Sorted(maps.Keys(covering)) {
		t.commitTogether(covering[uid], rules, func() { t.checkAway(uid) })
	}
	t.commitTogether(ruled, rules, func() { t.checkRuled(ruled, rules) })
	t.checkWhole(moves)
}

// commitEach adds one part for each node.
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

// commitTogether adds moves as one part, which begins with the checks that all of them rely
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

// move adds one move to a part, with the checks of its own that the part does not have yet.
func (t *tick) move(m move, rules ruled, checked map[string]bool) {
	check := func(kind state.Kind, uid string) {
		if !checked[uid] {
			t.batch.Check(kind, uid, t.snap.Get(kind, uid).GetMetadata().GetVersion())
			checked[uid] = true
		}
	}
	check(state.KindNode, m.to.Node)
	if m.from != nil {
		check(state.KindReplica, m.from.GetMetadata().GetUid())
	}
	if rules.labels[m.of] || m.to.Preempts || m.from != nil {
		check(state.KindWorkload, m.of.Workload)
	}
	if m.to.Preempts {
		for _, v := range m.victims {
			check(state.KindWorkload, v.Workload) // its priority or minAvailable may have changed
			t.checkKept(v.Workload, check)
		}
		t.reserve(m)
	} else {
		t.assign(m.replica, m.to)
	}
}

// checkKept checks as many running replicas of a victim's service as its minAvailable, and
// their nodes.
func (t *tick) checkKept(workloadUID string, check func(state.Kind, string)) {
	keeps := t.snap.Workload(workloadUID).GetSpec().GetMinAvailable()
	if keeps == 0 {
		return
	}
	for r := range t.snap.ReplicasOf(workloadUID) {
		uid := r.GetMetadata().GetUid()
		if !placement.Wanted(r) || !spec.Serves(r) || placement.Away(t.snap, r) || t.stopped[uid] || t.victims[uid] {
			continue
		}
		check(state.KindReplica, uid)
		check(state.KindNode, r.GetSpec().GetNodeUid())
		if keeps--; keeps == 0 {
			return
		}
	}
}

// victimsOf lists the uids of all replicas that moves preempt.
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
			t.cancelReservations(m, moved)
		}
	}
}

// ruled holds the revisions placed by affinity rules, and the revisions in the same plan
// that those rules are about.
type ruled struct {
	revisions map[*scheduler.Revision]bool
	// workloads are the uids of workloads whose replicas must not end.
	workloads map[string]bool
	// labels are the revisions whose workloads must keep their labels.
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
		on := t.cluster.View.Relies(m.of)
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

// checkRuled adds the checks that placements under affinity rules rely on.
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

// checkMarks adds a check that nothing changed that rules rely on.
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

// handedBack is what is due again because a commit left it out.
func handedBack(tx *statev1.Transaction, result state.Result) Due {
	due := Due{Workloads: map[string]bool{}}
	for r := range leftOut(tx, result) {
		due.Workloads[r.GetSpec().GetWorkloadUid()] = true
	}
	return due
}

// leftOut lists the replicas that a commit did not write.
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
