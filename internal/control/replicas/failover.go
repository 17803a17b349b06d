package replicas

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The configuration may limit how many lost replicas are replaced within a time. How many were
// replaced follows from the replacements themselves, so a new leader goes on where the last one
// stopped. Singletons, which have nothing else that serves, go first. Then more important
// workloads go before less important ones, and what is missing to the minAvailable of a
// workload before what equally important ones have lost beyond that.

// pace is how fast lost replicas are replaced.
type pace struct {
	history
	// deferred counts the lost replicas of workloads, by uid, that wait for their turn.
	deferred map[string]int
	// announced is whether an event says so.
	announced bool
	// announcing is whether the last tick has such an event.
	announcing bool
}

// backlog is how many lost replicas wait for their turn.
func (p *pace) backlog() (waiting int) {
	for _, n := range p.deferred {
		waiting += n
	}
	return waiting
}

// budget is how many lost replicas this tick may replace.
type budget struct {
	spec.Failover
	// left is how many more.
	left int
	// used are the times of those within the last Per, and given counts those of this tick.
	used  []time.Time
	given int
	// covers are what is to be replaced, if there is a limit.
	covers []covers
	// returned is whether the replacement of a lost replica found no place.
	returned bool
}

// covers are the lost replicas of a workload.
type covers struct {
	workload *v1.Workload
	lost     []placement.Casualty
	away     map[string]bool
	urgent   bool
}

func (t *tick) limited() bool { return t.budget.Replicas > 0 && !t.cluster.foreseeing }

// readBudget reads the limit.
func (t *tick) readBudget() {
	b := &t.budget
	if b.Failover = spec.FailoverOf(t.snap.Cluster().GetSpec()); !t.limited() {
		clear(t.cluster.pace.deferred)
		return
	}
	p := &t.cluster.pace
	if !p.known {
		p.announced = len(p.within(t.now, t.snap, 2*b.Per)) >= b.Replicas // by the leader before
	}
	b.used = p.within(t.now, t.snap, b.Per)
	b.left = max(0, b.Replicas-len(b.used))
}

// spend takes the turn of one lost replica, if it has come.
func (t *tick) spend() bool {
	if !t.limited() {
		return true
	}
	if t.budget.left == 0 {
		return false
	}
	t.budget.left, t.budget.given = t.budget.left-1, t.budget.given+1
	return true
}

// coverLost replaces lost replicas, or collects them if there is a limit.
func (t *tick) coverLost(w *v1.Workload, lost []placement.Casualty, have survey) {
	if !t.limited() {
		t.coverEach(w, lost, have.away)
		return
	}
	lost = slices.Clone(lost)
	slices.SortStableFunc(lost, func(a, b placement.Casualty) int { return -compareBools(outdated(w, a), outdated(w, b)) })
	urgent := 0
	if w.GetSpec().GetKind() != spec.KindJob {
		urgent = min(max(0, max(1, int(w.GetSpec().GetMinAvailable()))-have.serving), len(lost))
	}
	t.budget.covers = append(t.budget.covers,
		covers{workload: w, lost: lost[:urgent], away: have.away, urgent: true},
		covers{workload: w, lost: lost[urgent:], away: have.away})
}

// coverEach creates a cover for each lost replica, as far as the tick has room and the limit
// allows it. It returns how many have to wait for their turn.
func (t *tick) coverEach(w *v1.Workload, lost []placement.Casualty, away map[string]bool) (waiting int) {
	for i := range lost {
		if !t.room.has(1) {
			t.uncovered = append(t.uncovered, w.GetMetadata().GetUid())
			return 0
		}
		if !outdated(w, lost[i]) && !t.spend() {
			return len(lost) - i
		}
		t.cover(w, &lost[i], away)
	}
	return 0
}

// cover creates a cover.
func (t *tick) cover(w *v1.Workload, of *placement.Casualty, away map[string]bool) {
	t.room.take(t.labelsOf(w.GetMetadata().GetUid()))
	if r, started := t.start(w, of); started {
		t.covers[r.GetMetadata().GetUid()] = reasons(away)
	}
}

// coverInTurn creates the collected covers, the most important first.
func (t *tick) coverInTurn() {
	slices.SortStableFunc(t.budget.covers, func(a, b covers) int {
		return cmp.Or(cmp.Compare(b.workload.GetSpec().GetPriority(), a.workload.GetSpec().GetPriority()), -compareBools(a.urgent, b.urgent))
	})
	for _, c := range t.budget.covers {
		t.deferTurn(c.workload, t.coverEach(c.workload, c.lost, c.away))
	}
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// deferTurn lets lost replicas of a workload wait for their turn.
func (t *tick) deferTurn(w *v1.Workload, count int) {
	if count > 0 {
		t.cluster.pace.deferred[w.GetMetadata().GetUid()] += count
	}
}

// turnsPerWake is into how many steps the time of a limit is divided at least: the waiting
// workloads are looked at when so large a part of it is free.
const turnsPerWake = 10

// finishTurns makes the workloads that wait for their turn due when it comes, and says that they
// wait.
func (t *tick) finishTurns() {
	p, b := &t.cluster.pace, &t.budget
	maps.DeleteFunc(p.deferred, func(uid string, _ int) bool { return t.placeless[uid] }) // they wait for room instead
	if p.announcing = false; len(p.deferred) == 0 {
		p.announced = false
		return
	}
	if b.returned {
		for uid := range p.deferred { // others may have the turn of those without a place
			t.left.Workloads[uid] = true
		}
		return
	}
	turns := append(slices.Clone(b.used), slices.Repeat([]time.Time{t.now}, b.given)...)
	need := min(p.backlog(), max(1, b.Replicas/turnsPerWake))
	next := t.now.Add(b.Per)
	if at := len(turns) - b.Replicas + need - 1; at >= 0 && at < len(turns) {
		next = turns[at].Add(b.Per)
	}
	for uid := range p.deferred {
		t.later(uid, next)
	}
	if c := t.snap.Cluster(); !p.announced {
		p.announcing = true
		t.event(c, "FailoverLimited", fmt.Sprintf("%s: %s; the most important workloads go first",
			waitText(p.backlog()), b.Failover), state.SeverityWarning)
	}
}

func waitText(count int) string {
	if count == 1 {
		return "1 lost replica waits"
	}
	return fmt.Sprintf("%d lost replicas wait", count)
}

// failoverChanged reports whether a change of the configuration changes the limit.
func failoverChanged(change state.Change) bool {
	before, _ := change.Old.(*v1.Cluster)
	after, _ := change.New.(*v1.Cluster)
	return spec.FailoverOf(before.GetSpec()) != spec.FailoverOf(after.GetSpec())
}
