package replicas

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// If the configuration asks for it, replicas of services that run are moved to better nodes: one
// at a time, when nothing else is due, at a limited rate, and only for a gain that is large
// enough. Package scheduler finds the best move. The new replica is created with its place, and
// remembers which one it takes the place of. From then on, that one has to leave its node, as in
// a drain: it departs when the others are enough without it. If the new replica does not come
// up, it is one too many, and stops.
//
// Rebalancing looks at few replicas at a time, and at others the next time, so that it delays
// nothing in a large cluster.

const (
	// lookSoon is the pause until the next look if something else was due, lookSeldom if there
	// was nothing to gain.
	lookSoon, lookSeldom = time.Second, 15 * time.Second
	// maxReviews is for how many replicas one look compares all nodes, and maxLooked how many
	// workloads and replicas it reads for that.
	maxReviews, maxLooked = 64, 16 << 10

	eventMoving, eventMoved, eventStays = "Moving", "Moved", "MoveCancelled"
)

// balance is what rebalancing remembers. A new leader begins with the state.
type balance struct {
	// made are the times of moves.
	made history
	// to maps the uid of each replica that is being moved to that of the new one.
	to map[string]string
	// begun is when this leader began, since when a node has been in its state, and changed are
	// nodes whose state has changed at a time that is not noted yet. All by uid.
	begun   time.Time
	since   map[string]time.Time
	changed map[string]bool
	// next is when to look again; zero if rebalancing is off.
	next time.Time
	// after is the path of the workload after which the next look begins, and skipped how many
	// places of large workloads it leaves out.
	after   string
	skipped int
}

func newBalance(snap *state.Snapshot) balance {
	b := balance{to: map[string]string{}, since: map[string]time.Time{}, changed: map[string]bool{}}
	b.made.cause = placement.CauseMoved
	for r := range snap.Replicas("", "") {
		if r.GetSpec().GetReplaces() != nil {
			b.follow(snap, nil, r)
		}
	}
	return b
}

// follow notes which replicas are being moved.
func (b *balance) follow(snap *state.Snapshot, before, after *v1.Replica) {
	b.made.follow(before, after)
	if after == nil || spec.Ended(after.GetStatus().GetPhase()) {
		delete(b.to, cmp.Or(after, before).GetMetadata().GetUid())
	}
	to := cmp.Or(after, before)
	from := to.GetSpec().GetReplaces()
	switch uid := to.GetMetadata().GetUid(); {
	case from.GetCause() != placement.CauseMoved:
	case after != nil && placement.Wanted(after) && spec.Live(snap.Replica(from.GetReplicaUid()).GetStatus().GetPhase()):
		b.to[from.GetReplicaUid()] = uid
	case b.to[from.GetReplicaUid()] == uid:
		delete(b.to, from.GetReplicaUid())
	}
}

// followNode notes a node whose state has changed.
func (b *balance) followNode(before, after *v1.Node) {
	switch uid := cmp.Or(after, before).GetMetadata().GetUid(); {
	case after == nil:
		delete(b.since, uid)
		delete(b.changed, uid)
	case before.GetStatus().GetState() != after.GetStatus().GetState():
		b.changed[uid] = true
	}
}

// note notes the time of what has changed.
func (b *balance) note(now time.Time) {
	if b.begun.IsZero() {
		b.begun = now
	}
	for uid := range b.changed {
		b.since[uid] = now
	}
	clear(b.changed)
}

// calm reports whether a node has been in its state for long enough to get replicas. What was
// before this leader is not known.
func (b *balance) calm(node string, now time.Time, limit spec.Rebalance) bool {
	return now.Sub(later(b.begun, b.since[node])) >= limit.Calm()
}

// elapsed reports whether it is time to look.
func (b *balance) elapsed(until time.Time) bool {
	due := !b.next.IsZero() && !b.next.After(until)
	if due {
		b.next = time.Time{}
	}
	return due
}

// relocation is why a replica moves.
type relocation struct {
	from *v1.Replica
	why  string
}

// rebalance moves one replica to a better node, if it is time to look for one. Other decisions
// go first.
func (t *tick) rebalance(due bool) {
	b := &t.cluster.balance
	b.note(t.now)
	limit := spec.RebalanceOf(t.snap.Cluster().GetSpec())
	switch {
	case t.cluster.foreseeing || !limit.Enabled:
		b.next = time.Time{}
	case !due:
	case t.batch.Len()+len(t.left.Workloads) > 0:
		b.next = t.now.Add(lookSoon)
	default:
		b.next = t.now.Add(t.lookForMove(limit))
	}
}

// lookForMove moves one replica if it is time to, and returns the pause until the next look.
func (t *tick) lookForMove(limit spec.Rebalance) (pause time.Duration) {
	b := &t.cluster.balance
	soon := min(max(limit.Per/time.Duration(limit.Replicas), lookSoon), lookSeldom)
	made := b.made.within(t.now, t.snap, limit.Per)
	if over := len(made) - limit.Replicas; over >= 0 {
		return max(made[over].Add(limit.Per).Sub(t.now), time.Millisecond)
	}
	var leaving []string
	for uid := range b.to {
		leaving = append(leaving, uid)
	}
	if len(leaving) >= limit.Replicas || placement.Unsettled(t.snap) != "" {
		return soon
	}
	slices.Sort(leaving)
	move, found := t.cluster.View.Rebalance(scheduler.Rebalancing{
		Replicas: t.movable(limit), Leaving: leaving, MinGain: limit.MinGain,
		May: func(node string) bool { return b.calm(node, t.now, limit) },
	})
	if !found {
		return soon
	}
	t.startMove(move, limit)
	return lookSoon
}

// movable lists replicas that may be moved, one for each workload and node: those of one workload
// on one node gain the same.
func (t *tick) movable(limit spec.Rebalance) (uids []string) {
	b := &t.cluster.balance
	looked, first := 0, b.after
	look := func(w *v1.Workload) (enough bool) {
		all := t.movableOf(w, limit, &looked)
		if most := maxReviews - len(uids); len(all) > most {
			skip := b.skipped % len(all)
			all = slices.Concat(all[skip:], all[:skip])[:most]
			b.skipped += most
		}
		uids = append(uids, all...)
		if enough = len(uids) >= maxReviews || looked >= maxLooked; enough {
			b.after = w.GetMetadata().GetNamespace() + "/" + w.GetMetadata().GetName()
		}
		return enough
	}
	for w := range t.snap.Workloads("", first) {
		if look(w) {
			return uids
		}
	}
	b.after = ""
	for w := range t.snap.Workloads("", "") {
		if path := w.GetMetadata().GetNamespace() + "/" + w.GetMetadata().GetName(); first == "" || path > first || look(w) {
			break
		}
	}
	return uids
}

// movableOf lists those of one workload, the newest of each node.
func (t *tick) movableOf(w *v1.Workload, limit spec.Rebalance, looked *int) (uids []string) {
	*looked++
	if w.GetSpec().GetKind() != "" {
		return nil
	}
	*looked += int(spec.Replicas(w))
	if placement.Unmovable(t.snap, w) != "" {
		return nil
	}
	rests, newest := placement.RestsOf(t.snap, w), map[string]string{} // by node
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		uid, node := r.GetMetadata().GetUid(), r.GetSpec().GetNodeUid()
		if spec.Live(r.GetStatus().GetPhase()) && uid > newest[node] && !t.now.Before(rests[uid].Until(t.now, limit)) {
			newest[node] = uid
		}
	}
	for _, uid := range newest {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

// startMove creates the replica that takes the place of another one.
func (t *tick) startMove(m scheduler.Move, limit spec.Rebalance) {
	from := t.snap.Replica(m.Replica)
	w := t.snap.Workload(from.GetSpec().GetWorkloadUid())
	revision, err := t.cluster.Revision(t.snap, from.GetSpec().GetRevisionUid())
	if err != nil || !t.take(w.GetMetadata().GetUid()) {
		return
	}
	r := t.newReplica(w)
	r.Spec.Replaces = &v1.Replaced{
		ReplicaUid: m.Replica, Cause: placement.CauseMoved,
		Times: int32(placement.RestsOf(t.snap, w)[m.Replica].Next(t.now, limit)),
	}
	t.relocations = map[string]relocation{r.GetMetadata().GetUid(): {from: from, why: m.Why()}}
	t.commit([]move{{replica: r, of: revision, to: m.Placement, from: from}})
}

// obeyMove marks a replica to leave its node while another one takes its place.
func (t *tick) obeyMove(w *v1.Workload, r *v1.Replica, one *rollout.Replica) (why string) {
	to := t.snap.Replica(t.cluster.balance.to[one.UID])
	if to == nil || one.Leaves || one.Away || one.Desired == spec.DesiredStopped || spec.Ended(one.Phase) {
		return ""
	}
	until, moves := placement.Moves(t.snap, t.now, r, to)
	if at, taint, _ := t.cluster.expiry(t.snap, to); !moves || taint != nil && !at.After(t.now) {
		return "" // the other one does not get there, or must leave its node, too
	}
	if !until.IsZero() {
		t.later(w.GetMetadata().GetUid(), until)
	}
	one.Leaves = true
	t.departures[w.GetMetadata().GetUid()] = append(t.departures[w.GetMetadata().GetUid()], departure{
		replica: r, event: eventMoved, voluntary: true, coveredOnly: true,
		why: fmt.Sprintf("from node %s to node %s, where %s serves in its place", r.GetSpec().GetNode(), to.GetSpec().GetNode(), to.GetMetadata().GetName()),
	})
	return ""
}

// announceMove says why a replica moves.
func (t *tick) announceMove(of relocation, to *v1.Replica) {
	t.event(of.from, eventMoving, fmt.Sprintf("from node %s to node %s, as soon as %s serves there: %s",
		of.from.GetSpec().GetNode(), to.GetSpec().GetNode(), to.GetMetadata().GetName(), of.why), state.SeverityInfo)
}

// announceStay says that a replica stays where it is, because the one that should take its place
// stops.
func (t *tick) announceStay(to *v1.Replica) {
	from := t.snap.Replica(to.GetSpec().GetReplaces().GetReplicaUid())
	if to.GetSpec().GetReplaces().GetCause() != placement.CauseMoved || from == nil || !placement.Wanted(from) || t.stopped[from.GetMetadata().GetUid()] {
		return
	}
	why := "it is not needed any more"
	if !spec.Steady(to) {
		why = "it does not serve"
		if detail := cmp.Or(to.GetStatus().GetUnready(), to.GetStatus().GetReason()); detail != "" {
			why += ": " + detail
		}
	}
	t.event(from, eventStays, fmt.Sprintf("it stays on node %s, and %s on node %s stops: %s",
		from.GetSpec().GetNode(), to.GetMetadata().GetName(), to.GetSpec().GetNode(), why), state.SeverityWarning)
}

// rebalanceChanged reports whether a change of the configuration is about rebalancing.
func rebalanceChanged(change state.Change) bool {
	before, _ := change.Old.(*v1.Cluster)
	after, _ := change.New.(*v1.Cluster)
	return spec.RebalanceOf(before.GetSpec()) != spec.RebalanceOf(after.GetSpec())
}
