// Package rollout decides the next step of one workload on its way to the desired state:
// how many replicas to create and which to stop.
//
// It is a pure function that takes one step. Called again with the result, it takes the
// next, until there are as many replicas of the current revision as desired.
//
// An update starts new replicas first, as many more than desired as the surge allows, and
// stops an outdated replica only when the serving ones without it are enough. Where a new
// replica finds no node, an outdated one makes room for it instead: one at a time, and only
// while every placed replica of the current revision serves. In both cases the first
// outdated replica goes only after a new one has proven itself. A revision that does not
// come up stops there, with the rest still serving. Until then, replicas of the last good
// revision that have failed or were just started stay, too: they may serve again sooner.
//
// A replica whose node is offline is away: it may still run there, unseen. It is covered by
// a new one if there is room, unless the workload still waits for the node, and lost only
// when the new one serves. If its node is back earlier, the least useful of all replicas go: first those that do not serve yet, then those
// in the fullest places, then the newest. If there is no room elsewhere, it stays.
//
// A replica that must leave its node is covered in the same way, and departs when the others
// are enough without it.
//
// The package knows only in which places nodes are: the scheduler decides where replicas go.
//
// Next is for services; jobs have NextOfJob and daemons NextOfDaemon.
package rollout

import (
	"cmp"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Replica is what is known of one replica. Uids are UUIDv7, so that their order
// is the order of creation.
type Replica struct {
	UID string
	// Revision is the uid of the revision that it runs.
	Revision string
	Phase    string
	// Serves is whether it does its work, see [spec.Serves], and Steady whether it has done
	// so for long enough, see [spec.Steady].
	Serves, Steady bool
	Desired        string
	// Node is the uid of its node, or of the only one that it may go to.
	Node string
	// Away is whether its node is offline. Patient is whether its workload still waits for the
	// node to come back.
	Away, Patient bool
	// Chain is how many replicas in a row were lost soon after they had started, of which it is
	// the last; 0 if its node is not offline.
	Chain int
	// Leaves is whether it must leave its node. It serves until others make up for it.
	Leaves bool
	// Idle is whether it gets no traffic even if it serves.
	Idle bool
	// Held is whether it may still run although its node is away, and no other replica of its
	// workload may run meanwhile. It is not lost before that is over, or lost already.
	Held bool
	// Succeeds is the uid of its predecessor, for whose room it waits; empty if there is
	// none.
	Succeeds string
	// Crashes is how often its program has ended by itself.
	Crashes int
	// End is when it ended, zero if it has not.
	End time.Time
}

// ReplicaFromProto reads a replica. One without a phase is pending.
func ReplicaFromProto(r *v1.Replica) Replica {
	one := Replica{
		UID:      r.GetMetadata().GetUid(),
		Revision: r.GetSpec().GetRevisionUid(),
		Phase:    cmp.Or(r.GetStatus().GetPhase(), spec.PhasePending),
		Serves:   spec.Serves(r),
		Steady:   spec.Steady(r),
		Desired:  cmp.Or(r.GetSpec().GetDesired(), spec.DesiredRunning),
		Node:     cmp.Or(r.GetSpec().GetNodeUid(), r.GetSpec().GetOnlyNodeUid()),
		Succeeds: r.GetSpec().GetSucceeds(),
	}
	if one.Crashes = int(r.GetStatus().GetRestarts()); one.Phase == spec.PhaseBackoff {
		one.Crashes++
	}
	if end := r.GetStatus().GetEndTime(); end != nil {
		one.End = end.AsTime()
	}
	return one
}

// Input is the desired and the actual state of one workload.
type Input struct {
	// Desired is the number of replicas.
	Desired int
	// Revision is the uid of the revision that should run.
	Revision string
	// Policy is the restart policy: "always", "on-failure" or "never".
	Policy string
	// Deleting is whether the workload is being deleted.
	Deleting bool
	// Update is how outdated replicas are replaced.
	Update Update
	// Replicas are all known ones, in any order, even ended ones.
	Replicas []Replica
	// Places returns the places of a node, one of each kind over which replicas should be
	// level, the most important kind first. It may be nil.
	Places func(node string) []string

	// recovering is the outdated revision whose replicas are kept now although they do not serve, empty if there is none.
	recovering string
}

// Step is what to do now.
type Step struct {
	// Create is how many replicas of the current revision to create.
	Create int
	// Cover is how many more to create for those that are away or must leave, and Surge how
	// many more to start before outdated ones are stopped. Both are created as far as there is
	// a node for them now.
	Cover, Surge int
	// Lose are the uids of replicas that are away and no longer needed.
	Lose []string
	// Stop are the uids of the replicas to stop.
	Stop []string
	// Depart are the uids of the replicas that must leave their node and are not needed there
	// any more.
	Depart []string
	// Stranded is whether others that must leave stay, and no replica is in progress that makes up
	// for them. Unless a Surge finds a node, none will.
	Stranded bool
	// Replace are the uids of outdated serving replicas, oldest first. If there is no Surge or
	// it finds no node, one of them makes room next: the first one whose successor would find
	// a node.
	Replace []string
	// Succeed are the uids of stopping replicas that get a successor now: those whose
	// successor is itself outdated and stopped, as far as one is wanted.
	Succeed []string
	// Blocked is whether outdated replicas stay, although nothing else is in progress: there is
	// no room for new ones, and none may make room.
	Blocked bool
	// Settled is whether the desired state is reached.
	Settled bool
}

// Next returns the next step.
func Next(in Input) Step {
	now := sortOut(in)
	in.recovering = in.recovery(now.wanted)
	want := max(0, in.Desired-now.done)
	if in.Deleting {
		want = 0
	}

	var step Step
	stop := func(r Replica) { step.Stop = append(step.Stop, r.UID) }

	// Too many: the least useful go at once.
	surplus, kept := in.surplus(now.wanted, want)
	for _, r := range surplus {
		stop(r)
	}

	// Outdated and not serving: nothing is lost by replacing it at once, unless it may serve again sooner than an unproven
	// new one.
	var u update
	var successors successors
	for _, r := range kept {
		switch {
		case r.Revision == in.Revision:
			u.addCurrent(r)
			successors.add(r)
		case r.Serves && !in.Update.Recreate:
			u.outdated = append(u.outdated, r)
		case in.recovers(r):
			u.recovering = append(u.recovering, r)
		default:
			stop(r)
			successors.outdated(r)
		}
	}
	held := in.Update.Recreate && (now.outdated || len(step.Stop) > 0) || // until the outdated ones are gone
		in.Update.Single && now.stopping || now.held
	if !in.Update.Paused && !in.Deleting {
		for _, r := range u.retire(in, want) {
			stop(r)
		}
	}

	// Too few: created at once. Where there is no surge, a leaving replica without a successor
	// keeps its place until it is gone, because only one of the two may fit. Replicas that are
	// away are covered.
	missing := max(0, want-u.current-len(u.outdated)-len(u.recovering))
	step.Succeed = successors.needing(now.leaving, missing)
	if missing -= len(step.Succeed); in.Update.Surge == 0 {
		missing = max(0, missing+len(step.Succeed)-successors.lacking(now.leaving))
	}
	if held {
		missing, step.Succeed = 0, nil
	} else if in.Update.Recreate {
		missing = max(0, missing-now.going)
	}
	step.Depart = in.depart(now.departing, slices.Concat(u.outdated, u.serving), want)
	covered := min(missing, len(now.away)+len(now.departing)-len(step.Depart))
	step.Create, step.Cover = missing-covered, max(0, covered-now.patient)
	step.Stranded = len(now.departing) > len(step.Depart) && missing+len(step.Succeed)+len(step.Stop) == 0 && !now.stopping && u.still()

	// Away, and enough run without them.
	step.Lose = append(step.Lose, now.lost...)
	if surplus := len(now.away) + serving(kept) - want; surplus > 0 {
		slices.SortFunc(now.away, in.leastTelling)
		for _, r := range now.away[:min(surplus, len(now.away))] {
			step.Lose = append(step.Lose, r.UID)
		}
	}
	slices.Sort(step.Lose)

	if !in.Update.Paused && step.Create == 0 {
		if step.Cover == 0 && len(step.Succeed) == 0 {
			step.Surge = u.surge(in, want)
		}
		if len(now.leaving) == 0 && len(step.Stop)+len(step.Depart) == 0 {
			step.Replace = u.replace(in)
			step.Blocked = u.waits() && step.Surge+len(step.Replace) == 0 && !in.Update.Hold
		}
	}
	slices.Sort(step.Stop)
	step.Settled = !now.held && len(step.Stop) == 0 && step.Create == 0 && u.settled() && !now.stopping &&
		len(now.away)+len(now.departing) == 0 && len(step.Lose) == 0
	return step
}

// situation is the classified replicas.
type situation struct {
	// wanted are live and should keep running.
	wanted []Replica
	// done counts those of the current revision that have done their work.
	done int
	// leaving are the uids of outdated stopping replicas whose program may still hold what
	// a successor needs.
	leaving []string
	// stopping is whether any replica is stopping, and outdated whether an outdated one is.
	// going counts them.
	stopping, outdated bool
	going              int
	// away would be wanted if their nodes were not offline; lost are stopping on offline
	// nodes. patient counts those of the current revision that are away and not covered yet.
	away    []Replica
	lost    []string
	patient int
	// departing would be wanted on another node.
	departing []Replica
	// held is whether one on an offline node may still run and must be the only one.
	held bool
}

func sortOut(in Input) situation {
	s := situation{wanted: make([]Replica, 0, len(in.Replicas))} // most are wanted
	for _, r := range in.Replicas {
		going := r.Desired == spec.DesiredStopped
		switch {
		case r.Held:
			s.held = true
		case spec.Ended(r.Phase):
			if !going && r.Revision == in.Revision && done(r.Phase, in.Policy) {
				s.done++
			}
		case r.Away && going:
			s.lost = append(s.lost, r.UID)
		case r.Away:
			s.away = append(s.away, r)
			if r.Patient && r.Revision == in.Revision {
				s.patient++
			}
		case going || r.Phase == spec.PhaseStopping:
			s.stopping = true
			s.going++
			s.outdated = s.outdated || r.Revision != in.Revision
			if r.Revision != in.Revision && (r.Phase == spec.PhaseRunning || r.Phase == spec.PhaseStopping) {
				s.leaving = append(s.leaving, r.UID)
			}
		case r.Leaves:
			s.departing = append(s.departing, r)
		default:
			s.wanted = append(s.wanted, r)
		}
	}
	return s
}

// serving counts those that serve.
func serving(replicas []Replica) (n int) {
	for _, r := range replicas {
		if r.Serves {
			n++
		}
	}
	return n
}

// leastUsefulFirst moves the surplus to the front.
func (in Input) leastUsefulFirst(replicas []Replica, surplus int) {
	slices.SortFunc(replicas, in.leastUseful)
	if in.Places != nil {
		in.level(replicas, surplus)
	}
}

// surplus divides replicas into those that are too many, the least useful ones, and the rest. An update that holds
// outdated replicas has two sets, and neither makes up for the other: each has a limit of its own.
func (in Input) surplus(replicas []Replica, want int) (gone, rest []Replica) {
	most := func(set []Replica, limit int) {
		surplus := max(0, len(set)-limit)
		if surplus > 0 {
			in.leastUsefulFirst(set, surplus)
		}
		gone, rest = append(gone, set[:surplus]...), append(rest, set[surplus:]...)
	}
	if !in.Update.Hold {
		most(replicas, want+in.surge(replicas, want))
		return gone, rest
	}
	var old, others []Replica
	for _, r := range replicas {
		if r.Revision != in.Revision && r.Serves {
			old = append(old, r)
		} else {
			others = append(others, r)
		}
	}
	most(old, want)
	most(others, want)
	return gone, rest
}

// leastUseful orders replicas by usefulness, least useful first: those that do not serve, then those without traffic,
// then outdated ones, then the newest; see level for ties. Of those that do not serve, new ones go before those that
// recover.
func (in Input) leastUseful(a, b Replica) int {
	return cmp.Or(in.usefulness(a)-in.usefulness(b), byAge(b, a))
}

// leastTelling orders replicas that are away: those that show least about their workload go
// first. Otherwise a replica that took its node down would be forgotten before the others.
func (in Input) leastTelling(a, b Replica) int { return cmp.Or(a.Chain-b.Chain, in.leastUseful(a, b)) }

func (in Input) usefulness(r Replica) (rank int) {
	if in.recovers(r) {
		return 2
	}
	if r.Serves {
		rank += 4
	}
	if r.Serves && !r.Idle {
		rank += 2
	}
	if r.Revision == in.Revision {
		rank++
	}
	return rank
}

// byAge puts older replicas first.
func byAge(a, b Replica) int { return cmp.Compare(a.UID, b.UID) }
