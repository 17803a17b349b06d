// Package rollout decides the next step of one workload on its way to the desired state:
// how many replicas to create and which to stop.
//
// It is a pure function that takes one step. Called again with the result, it takes the
// next, until there are as many replicas of the current revision as desired. It guarantees
// that an update takes away at most one running replica at a time, and only while every
// placed replica of the current revision runs: a revision that does not come up stops
// there, with the rest still serving.
//
// A replica whose node is offline is away: it may still run there, unseen. It is covered by
// a new one if there is room, and lost only when the new one runs. If its node is back
// earlier, the least useful of all replicas go: first those that do not run yet, then those
// in the fullest places, then the newest. If there is no room elsewhere, it stays.
//
// An outdated replica is stopped before its successor is created, because in the network of
// the node both would need the same ports. The package knows only in which places nodes
// are: the scheduler decides where replicas go.
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
	// Serves is whether it does its work, see [spec.Serves].
	Serves  bool
	Desired string
	// Node is the uid of its node, or of the only one that it may go to.
	Node string
	// Away is whether its node is offline.
	Away bool
	// Succeeds is the uid of its predecessor, for whose room it waits; empty if there is
	// none.
	Succeeds string
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
		Desired:  cmp.Or(r.GetSpec().GetDesired(), spec.DesiredRunning),
		Node:     cmp.Or(r.GetSpec().GetNodeUid(), r.GetSpec().GetOnlyNodeUid()),
		Succeeds: r.GetSpec().GetSucceeds(),
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
	// Replicas are all known ones, in any order, even ended ones.
	Replicas []Replica
	// Places returns the places of a node, one of each kind over which replicas should be
	// level, the most important kind first. It may be nil.
	Places func(node string) []string
}

// Step is what to do now.
type Step struct {
	// Create is how many replicas of the current revision to create.
	Create int
	// Cover is how many more to create for those that are away, as far as there
	// is a node for them now.
	Cover int
	// Lose are the uids of replicas that are away and no longer needed.
	Lose []string
	// Stop are the uids of the replicas to stop.
	Stop []string
	// Replace are the uids of outdated running replicas, oldest first. One of them makes room next: the first one whose
	// successor would find a node.
	Replace []string
	// Succeed are the uids of stopping replicas that get a successor now: those whose
	// successor is itself outdated and stopped, as far as one is wanted.
	Succeed []string
	// Settled is whether the desired state is reached.
	Settled bool
}

// Next returns the next step.
func Next(in Input) Step {
	now := sortOut(in)
	want := max(0, in.Desired-now.done)
	if in.Deleting {
		want = 0
	}

	var step Step
	stop := func(r Replica) { step.Stop = append(step.Stop, r.UID) }

	// Too many: the least useful go at once.
	kept := now.wanted
	if surplus := len(kept) - want; surplus > 0 {
		slices.SortFunc(kept, in.leastUseful)
		if in.Places != nil {
			in.level(kept, surplus)
		}
		for _, r := range kept[:surplus] {
			stop(r)
		}
		kept = kept[surplus:]
	}

	// Outdated and not running: nothing is lost by replacing it at once.
	var running []Replica
	var successors successors
	current, starting, unplaced := 0, 0, 0
	for _, r := range kept {
		switch {
		case r.Revision == in.Revision:
			current++
			successors.add(r)
			switch {
			case r.Serves:
			case r.Phase == spec.PhasePending && r.Succeeds == "":
				unplaced++
			default:
				starting++
			}
		case r.Serves:
			running = append(running, r)
		default:
			stop(r)
			successors.outdated(r)
		}
	}

	// Too few: created at once, except that a leaving replica without a successor keeps its
	// place until it is gone. Replicas that are away are covered.
	missing := max(0, want-current-len(running))
	step.Succeed = successors.needing(now.leaving, missing)
	missing = max(0, missing-successors.lacking(now.leaving))
	step.Cover = min(missing, len(now.away))
	step.Create = missing - step.Cover

	// Away, and enough run without them.
	step.Lose = append(step.Lose, now.lost...)
	if surplus := len(now.away) + serving(kept) - want; surplus > 0 {
		slices.SortFunc(now.away, in.leastUseful)
		for _, r := range now.away[:min(surplus, len(now.away))] {
			step.Lose = append(step.Lose, r.UID)
		}
	}
	slices.Sort(step.Lose)

	// Outdated and running: the oldest goes when nothing else is in progress. A replica
	// without a node is no reason to wait: it may be waiting for that room.
	if len(running) > 0 && starting == 0 && len(now.leaving) == 0 && len(step.Stop) == 0 && step.Create == 0 {
		slices.SortFunc(running, byAge)
		for _, r := range running {
			step.Replace = append(step.Replace, r.UID)
		}
	}

	slices.Sort(step.Stop)
	step.Settled = len(step.Stop) == 0 && step.Create == 0 && len(running) == 0 && starting+unplaced == 0 && !now.stopping &&
		len(now.away) == 0 && len(step.Lose) == 0
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
	// stopping is whether any replica is stopping.
	stopping bool
	// away would be wanted if their nodes were not offline; lost are stopping on offline
	// nodes.
	away []Replica
	lost []string
}

func sortOut(in Input) situation {
	s := situation{wanted: make([]Replica, 0, len(in.Replicas))} // most are wanted
	for _, r := range in.Replicas {
		going := r.Desired == spec.DesiredStopped
		switch {
		case spec.Ended(r.Phase):
			if !going && r.Revision == in.Revision && done(r.Phase, in.Policy) {
				s.done++
			}
		case r.Away && going:
			s.lost = append(s.lost, r.UID)
		case r.Away:
			s.away = append(s.away, r)
		case going || r.Phase == spec.PhaseStopping:
			s.stopping = true
			if r.Revision != in.Revision && (r.Phase == spec.PhaseRunning || r.Phase == spec.PhaseStopping) {
				s.leaving = append(s.leaving, r.UID)
			}
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

// leastUseful orders replicas by usefulness, least useful first: those that do not run,
// then outdated ones, then the newest; see level for ties.
func (in Input) leastUseful(a, b Replica) int {
	return cmp.Or(in.usefulness(a)-in.usefulness(b), byAge(b, a))
}

func (in Input) usefulness(r Replica) (rank int) {
	if r.Serves {
		rank += 2
	}
	if r.Revision == in.Revision {
		rank++
	}
	return rank
}

// byAge puts older replicas first.
func byAge(a, b Replica) int { return cmp.Compare(a.UID, b.UID) }
