package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
)

// Job is the desired and the actual state of one job.
//
// A job is done when enough replicas of its revision have completed. It has failed when too
// many of them have failed, or when its deadline has passed; then the rest is stopped. A
// replica that is lost with its node, or is stopped, has not failed, and is replaced
// without a pause. A new revision starts over: replicas of the old one are stopped first.
type Job struct {
	// Completions is how many replicas must complete, Parallelism how many may run at a
	// time, Retries how many may fail.
	Completions, Parallelism, Retries int
	// Backoff is the pause after the second failure in a row. It doubles with each further
	// one, up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Deadline is when its time is over, zero for never.
	Deadline time.Time
	// Revision is the uid of the revision that should run.
	Revision string
	Deleting bool
	// Once is whether the work must never be done twice, not even by a replica that may still
	// run unseen. Then no replica is replaced: one that was stopped or lost has failed, and one
	// whose node is offline is waited for.
	Once bool
	// Outcome is how it ended, as an earlier step found; empty if it has not.
	Outcome string
	// Replicas are all known ones, in any order, even ended ones.
	Replicas []Replica
}

// JobStep is what to do now.
type JobStep struct {
	// Step has no Replace: a job need not keep serving.
	Step
	// Outcome is how the job has ended, spec.PhaseCompleted or spec.PhaseFailed, and Reason why
	// it failed.
	Outcome, Reason string
	Succeeded       int
	Failed          int
	// Again is when to look again if nothing changes before; zero for never.
	Again time.Time
}

// NextOfJob returns the next step of a job.
func NextOfJob(j Job, now time.Time) JobStep {
	w := j.survey()
	step := JobStep{Outcome: j.Outcome, Succeeded: w.succeeded, Failed: len(w.failures)}
	if step.Outcome == "" && !j.Deleting {
		step.Outcome, step.Reason = j.judge(w, now)
	}
	over := step.Outcome != "" || j.Deleting
	want := min(j.Parallelism, j.Completions-w.succeeded)
	if over {
		want = 0
	}

	// Surplus and outdated replicas stop at once. Their room goes to their successors.
	var successors successors
	for _, r := range w.outdated {
		step.Stop = append(step.Stop, r.UID)
		if successors.outdated(r); r.Phase != spec.PhasePending {
			successors.need(r.UID)
			w.leaving = append(w.leaving, r.UID)
		}
	}
	in := Input{Revision: j.Revision}
	slices.SortFunc(w.wanted, in.leastUseful)
	surplus := max(0, len(w.wanted)-want)
	for _, r := range w.wanted[:surplus] {
		step.Stop = append(step.Stop, r.UID)
	}
	kept := w.wanted[surplus:]

	step.Lose = append(step.Lose, w.lost...)
	if surplus := len(w.away) + serving(kept) - want; surplus > 0 {
		slices.SortFunc(w.away, in.leastTelling)
		for _, r := range w.away[:min(surplus, len(w.away))] {
			step.Lose = append(step.Lose, r.UID)
		}
	}
	slices.Sort(step.Stop)
	slices.Sort(step.Lose)

	// A leaving replica keeps its place until it is gone, if it has no successor yet.
	for _, r := range kept {
		successors.add(r)
	}
	missing := max(0, want-len(kept))
	step.Succeed = successors.needing(w.leaving, missing)
	missing = max(0, missing-successors.lacking(w.leaving))
	if until := j.pauseUntil(w, now); missing > 0 && now.Before(until) {
		missing, step.Again = 0, until
	}
	covered := min(missing, len(w.away))
	step.Create, step.Cover = missing-covered, max(0, covered-w.patient)
	if !over && !j.Deadline.IsZero() && (step.Again.IsZero() || j.Deadline.Before(step.Again)) {
		step.Again = j.Deadline
	}
	step.Settled = over && len(w.wanted)+len(w.outdated)+len(w.away)+len(w.lost)+len(w.leaving) == 0
	return step
}

// work is a job's replicas, classified.
type work struct {
	succeeded int
	// failures are when replicas failed, and lastSuccess when the newest completed.
	failures    []time.Time
	lastSuccess time.Time
	// wanted are live and of the current revision, outdated live and not; leaving are the
	// uids of those of both that are stopping.
	wanted, outdated []Replica
	leaving          []string
	// away, lost and patient are those of offline nodes, as in situation.
	away    []Replica
	lost    []string
	patient int
}

func (j Job) survey() work {
	var w work
	for _, r := range j.Replicas {
		going, current := r.Desired == spec.DesiredStopped, r.Revision == j.Revision
		switch {
		case spec.Ended(r.Phase):
			if !current || going && !j.Once {
				break
			}
			switch {
			case r.Phase == spec.PhaseCompleted:
				w.succeeded++
				if r.End.After(w.lastSuccess) {
					w.lastSuccess = r.End
				}
			case r.Phase == spec.PhaseFailed || j.Once:
				w.failures = append(w.failures, r.End)
			}
		case r.Away && j.Once && going:
			w.leaving = append(w.leaving, r.UID)
		case r.Away && j.Once:
			w.wanted = append(w.wanted, r)
		case r.Away && (going || !current):
			w.lost = append(w.lost, r.UID)
		case r.Away:
			w.away = append(w.away, r)
			if r.Patient {
				w.patient++
			}
		case going || r.Phase == spec.PhaseStopping:
			w.leaving = append(w.leaving, r.UID)
		case current:
			w.wanted = append(w.wanted, r)
		default:
			w.outdated = append(w.outdated, r)
		}
	}
	slices.SortFunc(w.failures, time.Time.Compare)
	return w
}

// judge says how a job has ended, if it has.
func (j Job) judge(w work, now time.Time) (outcome, reason string) {
	switch {
	case w.succeeded >= j.Completions:
		return spec.PhaseCompleted, ""
	case len(w.failures) > j.Retries:
		return spec.PhaseFailed, fmt.Sprintf("%d of its replicas failed, and %d may", len(w.failures), j.Retries)
	case !j.Deadline.IsZero() && !now.Before(j.Deadline):
		return spec.PhaseFailed, "its deadline is over"
	}
	return "", ""
}

// pauseUntil is when another replica may be created after the newest failure. A failure in
// the future was recorded by a server whose clock was ahead, and causes no wait.
func (j Job) pauseUntil(w work, now time.Time) time.Time {
	row := 0
	for _, at := range w.failures {
		if at.After(w.lastSuccess) {
			row++
		}
	}
	if row <= 1 {
		return time.Time{} // the first failure in a row is replaced at once
	}
	last := w.failures[len(w.failures)-1]
	if last.After(now) {
		return time.Time{}
	}
	pause := cmp.Or(j.MaxBackoff, j.Backoff)
	if times := min(row-2, 30); row <= 32 && j.Backoff<<times>>times == j.Backoff {
		pause = min(pause, j.Backoff<<times)
	}
	return last.Add(pause)
}
