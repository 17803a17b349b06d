package replicas

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Replicas that their nodes have taken down are replaced by new ones, which remember what they
// replace, see placement.Casualty. The replacement of a suspect is created at once, so that
// users see it, and is placed later: one at a time, and the next one when it has survived for
// as long as the pause before it was.

// casualties are the replicas of a workload that were lost with their nodes or evicted and have
// no replacement yet.
type casualties struct {
	// lost may still run on their offline nodes. fenced are those of singletons that certainly
	// do not.
	lost, fenced, evicted []placement.Casualty
	// replaced are the uids of replicas that were replaced, and covered those of which the
	// replacement is alive and does not serve.
	replaced, covered map[string]bool
}

// look takes note of one replica.
func (c *casualties) look(t *tick, r *v1.Replica, away, patient bool) (chain int) {
	phase := r.GetStatus().GetPhase()
	if uid := r.GetSpec().GetReplaces().GetReplicaUid(); uid != "" {
		if c.replaced == nil {
			c.replaced, c.covered = map[string]bool{}, map[string]bool{}
		}
		c.replaced[uid] = true
		if placement.Wanted(r) && (away || !spec.Serves(r)) {
			c.covered[uid] = true
		}
	}
	switch {
	case away && placement.Wanted(r):
		one := t.fallen.Of(r)
		if !patient {
			c.lost = append(c.lost, one)
		}
		return one.Times
	case spec.Ended(phase) && placement.WasEvicted(r):
		c.evicted = append(c.evicted, placement.Evicted(r))
	}
	return 0
}

// finish leaves those that have no replacement, the least suspicious first.
func (c *casualties) finish() {
	uid := func(one placement.Casualty) string { return one.Replica.GetMetadata().GetUid() }
	c.lost = slices.DeleteFunc(c.lost, func(one placement.Casualty) bool { return c.covered[uid(one)] })
	c.evicted = slices.DeleteFunc(c.evicted, func(one placement.Casualty) bool { return c.replaced[uid(one)] })
	slices.SortFunc(c.lost, func(a, b placement.Casualty) int { return cmp.Or(a.Times-b.Times, cmp.Compare(uid(a), uid(b))) })
	slices.SortFunc(c.evicted, func(a, b placement.Casualty) int { return cmp.Or(b.End.Compare(a.End), cmp.Compare(uid(a), uid(b))) })
}

// next returns what the next new replica of a workload replaces, if anything but a lost one.
func (c *casualties) next() (one placement.Casualty, some bool) {
	for _, list := range []*[]placement.Casualty{&c.fenced, &c.evicted} {
		if len(*list) > 0 {
			one, *list = (*list)[0], (*list)[1:]
			return one, true
		}
	}
	return one, false
}

// outdated reports whether an update replaces a casualty anyway.
func outdated(w *v1.Workload, c placement.Casualty) bool {
	return c.Replica.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid()
}

// start creates a replica, for a casualty unless that is nil. It returns false if the replica
// has to wait for a time.
func (t *tick) start(w *v1.Workload, of *placement.Casualty) (r *v1.Replica, started bool) {
	r = t.newReplica(w)
	if of != nil {
		if outdated(w, *of) {
			of = &placement.Casualty{Replica: of.Replica} // a new revision is not to blame
		}
		r.Spec.Replaces = of.Replaced()
		if of.Suspect() {
			r.Spec.NotBefore = timestamppb.New(of.NotBefore(t.now))
		}
	}
	if !t.admit(r) {
		r.Status.Reason = placement.HeldReason(r)
		t.delayed = append(t.delayed, r)
		return r, false
	}
	t.waits(r)
	return r, true
}

// trial says what the replacements of a suspect wait for.
type trial struct {
	// until is when the next one may be placed. undecided is whether one was placed that has
	// not begun to run.
	until     time.Time
	undecided bool
	// first is the uid of the one that goes first, if there are stored ones. over is whether
	// one has survived, so that all may go.
	first string
	over  bool
}

// trialOf examines the replicas of a workload.
func (t *tick) trialOf(w *v1.Workload) *trial {
	uid := w.GetMetadata().GetUid()
	key := uid + " " + w.GetStatus().GetRevisionUid()
	if known := t.trials[key]; known != nil {
		return known
	}
	it := &trial{}
	t.trials[key] = it
	var first *v1.Replica
	var newest, survived time.Time // casualty, survivor
	for _, r := range placement.ByUID(t.snap, uid) {
		if r.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() {
			continue
		}
		switch away := placement.Away(t.snap, r); {
		case away || spec.Ended(r.GetStatus().GetPhase()) && placement.WasEvicted(r):
			one := placement.Evicted(r)
			if away {
				one = t.fallen.Of(r)
			}
			if one.Suspect() && one.Recent(t.now) {
				it.until, newest = later(it.until, one.NotBefore(t.now)), later(newest, one.End)
			}
		case !placement.Wanted(r) || r.GetSpec().GetNotBefore() == nil:
		case placement.Held(r):
			if first == nil || r.GetSpec().GetReplaces().GetTimes() > first.GetSpec().GetReplaces().GetTimes() {
				first, it.first = r, r.GetMetadata().GetUid()
			}
		default:
			placed := r.GetSpec().GetNotBefore().AsTime()
			switch ends, begun := placement.TrialEnds(t.now, r); {
			case !begun:
				it.undecided = true
			case t.now.Before(ends):
				it.until = later(it.until, ends)
			default:
				survived = later(survived, placed)
			}
		}
	}
	it.over = survived.After(newest)
	return it
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// admit reports whether a replica may be placed now. One that waits for a time makes its
// workload due then.
func (t *tick) admit(r *v1.Replica) bool {
	if r.GetSpec().GetNotBefore() == nil || r.GetSpec().GetNodeUid() != "" {
		return true
	}
	w := t.runningAs(r)
	if w == nil {
		return true // it is about to stop
	}
	it, at := t.trialOf(w), r.GetSpec().GetNotBefore().AsTime()
	if !placement.Believable(t.now, r) {
		at = t.now
	}
	if !it.over {
		at = later(at, it.until)
	}
	switch {
	case t.now.Before(at):
		t.later(w.GetMetadata().GetUid(), at)
		if at.After(r.GetSpec().GetNotBefore().AsTime()) {
			t.postpone(r, at)
		}
		return false
	case it.over:
		return true
	case it.undecided || it.first != "" && it.first != r.GetMetadata().GetUid():
		return false // the one before it comes first, and its change wakes the workload
	}
	it.first, it.undecided = r.GetMetadata().GetUid(), !t.stored(r)
	return true
}

// postpone lets a replica wait longer, because another one was on trial meanwhile.
func (t *tick) postpone(old *v1.Replica, at time.Time) {
	if !t.stored(old) {
		old.Spec.NotBefore = timestamppb.New(at)
		return
	}
	uid := old.GetMetadata().GetUid()
	if t.postponed[uid] || !t.take(old.GetSpec().GetWorkloadUid()) {
		return
	}
	t.postponed[uid] = true
	r := proto.CloneOf(old)
	r.Spec.NotBefore = timestamppb.New(at)
	r.Status.Reason = placement.HeldReason(r)
	t.batch.Update(r, old.GetMetadata().GetVersion())
}

// finishDelays writes the new replicas that wait for a time, with one event for each workload.
func (t *tick) finishDelays() {
	count, order := map[string]int{}, []*v1.Replica{}
	for _, r := range t.delayed {
		t.batch.Create(r)
		if workload := r.GetSpec().GetWorkloadUid(); count[workload] == 0 {
			order = append(order, r)
		}
		count[r.GetSpec().GetWorkloadUid()]++
	}
	for _, r := range order {
		which := "a new replica"
		if n := count[r.GetSpec().GetWorkloadUid()]; n > 1 {
			which = fmt.Sprintf("each of %d new replicas", n)
		}
		t.event(t.snap.Workload(r.GetSpec().GetWorkloadUid()), "Delayed", which+" "+placement.HeldReason(r), state.SeverityWarning)
	}
}
