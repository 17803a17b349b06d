package rollout_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// ended sets the end times of ended replicas: the last one at noon, and each a second
// before the next.
func ended(rs []rollout.Replica) []rollout.Replica {
	for i := range rs {
		if spec.Ended(rs[i].Phase) {
			rs[i].End = noon.Add(time.Duration(i-len(rs)+1) * time.Second)
		}
	}
	return rs
}

func TestNextOfJob(t *testing.T) {
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	const long = time.Hour
	for _, c := range []struct {
		name                  string
		completions, parallel int
		since                 time.Duration // noon
		have                  []rollout.Replica
		want                  rollout.JobStep
	}{
		{"as many begin as may run at once", 5, 2, 0, nil, rollout.JobStep{Step: rollout.Step{Create: 2}}},
		{"what runs is waited for", 5, 2, 0, replicas("1 new running", "2 new preparing"), rollout.JobStep{}},
		{"a completed replica makes room for the next", 5, 2, 0, replicas("1 new completed", "2 new running"), rollout.JobStep{Step: rollout.Step{Create: 1}, Succeeded: 1}},
		{"no more begin than must complete", 3, 2, 0, replicas("1 new completed", "2 new completed"), rollout.JobStep{Step: rollout.Step{Create: 1}, Succeeded: 2}},
		{"when enough have completed it is done", 2, 2, 0, replicas("1 new completed", "2 new completed"), rollout.JobStep{Step: rollout.Step{Settled: true}, Outcome: "completed", Succeeded: 2}},
		{"the first that fails is replaced at once", 1, 1, 0, replicas("1 new failed"), rollout.JobStep{Step: rollout.Step{Create: 1}, Failed: 1}},
		{"the next after a pause", 1, 1, 0, replicas("1 new failed", "2 new failed"), rollout.JobStep{Failed: 2, Again: at(time.Second)}},
		{"and then is", 1, 1, time.Second, replicas("1 new failed", "2 new failed"), rollout.JobStep{Step: rollout.Step{Create: 1}, Failed: 2}},
		{"the pause grows", 1, 1, 0, replicas("1 new failed", "2 new failed", "3 new failed"), rollout.JobStep{Failed: 3, Again: at(2 * time.Second)}},
		{"and starts over after a success", 3, 1, 0, replicas("1 new failed", "2 new completed", "3 new failed"), rollout.JobStep{Step: rollout.Step{Create: 1}, Succeeded: 1, Failed: 2}},
		{"others go on meanwhile", 2, 2, 0, replicas("3 new running", "1 new failed", "2 new failed"), rollout.JobStep{Failed: 2, Again: at(time.Second)}},
		{"a failure that lies ahead is by a clock that was wrong", 1, 1, -long, replicas("1 new failed"), rollout.JobStep{Step: rollout.Step{Create: 1}, Failed: 1}},
		{
			"one too many has failed", 2, 2, long, replicas("1 new running", "2 new failed", "3 new failed", "4 new failed", "5 new failed"),
			rollout.JobStep{Step: rollout.Step{Stop: []string{"1"}}, Outcome: "failed", Reason: "4 of its replicas failed, and 3 may", Failed: 4},
		},
		{"what is lost with its node has not failed", 1, 1, 0, replicas("1 new lost"), rollout.JobStep{Step: rollout.Step{Create: 1}}},
		{"nor what was stopped", 1, 1, 0, replicas("1 new failed stopped"), rollout.JobStep{Step: rollout.Step{Create: 1}}},
		{"what was stopped and completes does not count", 1, 1, 0, replicas("1 new completed stopped"), rollout.JobStep{Step: rollout.Step{Create: 1}}},
		{"one whose node is offline is covered", 1, 1, 0, replicas("1 new running away"), rollout.JobStep{Step: rollout.Step{Cover: 1}}},
		{"and given up when its successor runs", 1, 1, 0, replicas("1 new running away", "2 new running"), rollout.JobStep{Step: rollout.Step{Lose: []string{"1"}}}},
		{"or has completed", 1, 1, 0, replicas("1 new running away", "2 new completed"), rollout.JobStep{Step: rollout.Step{Lose: []string{"1"}}, Outcome: "completed", Succeeded: 1}},
		{"one that is back has the older right", 1, 1, 0, replicas("1 new running", "2 new running"), rollout.JobStep{Step: rollout.Step{Stop: []string{"2"}}}},
		{"a new revision stops the old one first, and has its room", 1, 1, 0, replicas("1 old running"), rollout.JobStep{Step: rollout.Step{Stop: []string{"1"}, Succeed: []string{"1"}}}},
		{"and waits until it is gone", 1, 1, 0, replicas("1 old stopping stopped"), rollout.JobStep{}},
		{"and then does the work again", 1, 1, 0, replicas("1 old completed", "2 old failed"), rollout.JobStep{Step: rollout.Step{Create: 1}}},
		{"an old one that is away is given up", 1, 1, 0, replicas("1 old running away"), rollout.JobStep{Step: rollout.Step{Lose: []string{"1"}, Create: 1}}},
		{"less at once stops the newest", 4, 1, 0, replicas("1 new running", "2 new running"), rollout.JobStep{Step: rollout.Step{Stop: []string{"2"}}}},
	} {
		job := rollout.Job{
			Completions: c.completions, Parallelism: c.parallel, Retries: 3, Backoff: time.Second, MaxBackoff: time.Minute,
			Revision: "new", Replicas: ended(c.have),
		}
		if got := rollout.NextOfJob(job, noon.Add(c.since)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

func TestJobHasADeadline(t *testing.T) {
	job := rollout.Job{Completions: 2, Parallelism: 2, Revision: "new", Deadline: noon, Replicas: replicas("1 new running", "2 new preparing")}
	if got := rollout.NextOfJob(job, noon.Add(-time.Second)); !reflect.DeepEqual(got, rollout.JobStep{Again: noon}) {
		t.Errorf("before it: %+v", got)
	}
	want := rollout.JobStep{Step: rollout.Step{Stop: []string{"1", "2"}}, Outcome: "failed", Reason: "its deadline is over"}
	if got := rollout.NextOfJob(job, noon); !reflect.DeepEqual(got, want) {
		t.Errorf("when it is over: %+v", got)
	}
	job.Replicas = ended(replicas("1 new completed", "2 new completed"))
	if got := rollout.NextOfJob(job, noon.Add(time.Hour)); got.Outcome != spec.PhaseCompleted {
		t.Errorf("what was done by then: %+v", got)
	}
}

// A finished job stays finished, whatever its replicas are.
func TestFinishedJobStaysFinished(t *testing.T) {
	for _, outcome := range []string{spec.PhaseCompleted, spec.PhaseFailed} {
		job := rollout.Job{Completions: 1, Parallelism: 1, Revision: "new", Outcome: outcome}
		if got := rollout.NextOfJob(job, noon); !reflect.DeepEqual(got, rollout.JobStep{Step: rollout.Step{Settled: true}, Outcome: outcome}) {
			t.Errorf("%s: %+v", outcome, got)
		}
		job.Replicas = replicas("1 new running", "2 new running away")
		want := rollout.JobStep{Step: rollout.Step{Stop: []string{"1"}, Lose: []string{"2"}}, Outcome: outcome}
		if got := rollout.NextOfJob(job, noon); !reflect.DeepEqual(got, want) {
			t.Errorf("%s with something left: %+v", outcome, got)
		}
	}
	job := rollout.Job{Completions: 3, Parallelism: 3, Revision: "new", Deleting: true, Replicas: replicas("1 new running")}
	if got := rollout.NextOfJob(job, noon); !reflect.DeepEqual(got, rollout.JobStep{Step: rollout.Step{Stop: []string{"1"}}}) {
		t.Errorf("while it is deleted: %+v", got)
	}
}

// Replicas of jobs complete, fail and get lost: never more run than may, no more complete
// than should, nothing starts after the end, and every job ends for a reason.
func TestJobsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		completions := rapid.IntRange(1, 8).Draw(t, "completions")
		job := rollout.Job{
			Completions: completions, Parallelism: rapid.IntRange(1, completions).Draw(t, "parallelism"), Retries: rapid.IntRange(0, 4).Draw(t, "retries"),
			Backoff: time.Second, MaxBackoff: 10 * time.Second, Revision: "r",
		}
		now, made, succeeded, failed := noon, 0, 0, 0
		for range 2000 {
			serve(job.Replicas)
			before := slices.Clone(job.Replicas)
			step := rollout.NextOfJob(job, now)
			if !slices.Equal(before, job.Replicas) {
				t.Fatal("the input was changed")
			}
			if job.Outcome != "" && (step.Create+step.Cover > 0 || step.Outcome != job.Outcome) {
				t.Fatalf("it is over and yet %+v", step)
			}
			job.Outcome = step.Outcome
			if step.Settled {
				break
			}
			for i := range job.Replicas {
				r := &job.Replicas[i]
				if slices.Contains(step.Stop, r.UID) {
					r.Desired = spec.DesiredStopped
				}
				if slices.Contains(step.Lose, r.UID) {
					r.Phase, r.End = spec.PhaseLost, now
				}
			}
			for range step.Create + step.Cover {
				made++
				job.Replicas = append(job.Replicas, rollout.Replica{UID: fmt.Sprintf("%05d", made), Revision: "r", Phase: spec.PhaseRunning, Desired: spec.DesiredRunning})
			}
			live := 0
			for _, r := range job.Replicas {
				if spec.Live(r.Phase) && !r.Away {
					live++
				}
			}
			if live > job.Parallelism {
				t.Fatalf("%d live at once, and %d may: %+v", live, job.Parallelism, job.Replicas)
			}
			if !step.Again.IsZero() && step.Create+step.Cover == 0 {
				now = step.Again
			}
			now = now.Add(time.Second)
			for i := range job.Replicas {
				r := &job.Replicas[i]
				switch {
				case spec.Ended(r.Phase):
					continue
				case r.Desired == spec.DesiredStopped:
					r.Phase = spec.PhaseStopped
				default:
					r.Phase = rapid.SampledFrom([]string{"running", "completed", "completed", "failed", "lost"}).Draw(t, "becomes")
				}
				switch r.Phase {
				case spec.PhaseCompleted:
					succeeded++
				case spec.PhaseFailed:
					failed++
				}
				if spec.Ended(r.Phase) {
					r.End = now
				}
			}
		}
		if succeeded > completions {
			t.Fatalf("%d completed, and %d should", succeeded, completions)
		}
		if done := job.Outcome == spec.PhaseCompleted; job.Outcome == "" || done != (succeeded == completions) || !done && failed <= job.Retries {
			t.Fatalf("it is %q with %d of %d completed and %d failed of %d that may", job.Outcome, succeeded, completions, failed, job.Retries)
		}
	})
}
