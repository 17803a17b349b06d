// Package cron is the leader's loop that creates the jobs of crons when they are due, and
// removes finished jobs beyond the history limits.
//
// Tick is pure: a time and a snapshot in, changes and the next time out. Each time of a
// schedule gets at most one job, however often the leader changes: the job's name follows
// from the time, and the decision about a time is stored in the same transaction. Of the
// times missed while there was no leader, only the newest is caught up on.
//
// It knows nothing of replicas or nodes: a job is a workload like any other, which package
// replicas runs.
package cron

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/crontab"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// maxChanges keeps one transaction small; the next tick does the rest.
const maxChanges = 256

// Tick returns the changes that are due now, and when to call it again if nothing changes;
// zero means never.
func Tick(now time.Time, snap *state.Snapshot, newUID func() string) (batch *state.Batch, next time.Time) {
	t := &tick{now: now, snap: snap, newUID: newUID, batch: &state.Batch{}, runs: map[string][]*v1.Workload{}}
	var crons []*v1.Workload
	var owners []string
	for w := range snap.Workloads("", "") {
		if owner := w.GetStatus().GetOwnerUid(); owner != "" {
			if t.runs[owner] == nil {
				owners = append(owners, owner)
			}
			t.runs[owner] = append(t.runs[owner], w)
		}
		if w.GetSpec().GetKind() == spec.KindCron {
			crons = append(crons, w)
		}
	}
	for _, owner := range owners {
		if snap.Workload(owner) == nil {
			t.deleteRuns(t.runs[owner])
		}
	}
	for _, w := range crons {
		t.cron(w)
		if t.batch.Len() >= maxChanges {
			return t.batch, now
		}
	}
	return t.batch, t.next
}

// tick collects the changes of one call.
type tick struct {
	now    time.Time
	snap   *state.Snapshot
	newUID func() string
	batch  *state.Batch
	// runs are the jobs of crons, by the uid of the cron.
	runs map[string][]*v1.Workload
	next time.Time
}

func (t *tick) cron(w *v1.Workload) {
	runs := t.runs[w.GetMetadata().GetUid()]
	if w.GetMetadata().GetDeleteTime() != nil {
		if t.deleteRuns(runs); len(runs) == 0 {
			t.remove(w)
		}
		return
	}
	t.trim(w, runs)
	times, err := readTimes(w)
	if err != nil || w.GetSpec().GetCron().GetSuspend() {
		return // unreadable schedules are refused before they are stored
	}
	decided := Decided(t.snap, w)
	if due := times.newest(decided, t.now); !due.IsZero() {
		t.decide(w, due, runs)
		decided = due
	}
	next := times.after(later(decided, t.now))
	if t.next.IsZero() || !next.IsZero() && next.Before(t.next) {
		t.next = next
	}
}

// times are those of a cron's schedule in its zone.
type times struct {
	schedule crontab.Schedule
	zone     *time.Location
}

func readTimes(w *v1.Workload) (times, error) {
	c := w.GetSpec().GetCron()
	s, err := crontab.Parse(c.GetSchedule())
	if err != nil {
		return times{}, fmt.Errorf("read the schedule of %s: %w", w.GetMetadata().GetName(), err)
	}
	zone, err := crontab.Zone(c.GetTimeZone())
	if err != nil {
		return times{}, fmt.Errorf("read the time zone of %s: %w", w.GetMetadata().GetName(), err)
	}
	return times{s, zone}, nil
}

func (t times) after(at time.Time) time.Time { return t.schedule.Next(at, t.zone) }

func (t times) newest(after, until time.Time) time.Time {
	return t.schedule.Newest(after, until, t.zone)
}

// Decided is the time up to which everything is decided about a cron: its newest decided
// time, or the creation of its current revision. Times before a change, or while it was
// suspended, are not caught up on.
func Decided(snap *state.Snapshot, w *v1.Workload) time.Time {
	var seen time.Time
	if at := w.GetStatus().GetCron().GetSeenTime(); at != nil {
		seen = at.AsTime()
	}
	return later(seen, snap.Revision(w.GetStatus().GetRevisionUid()).GetMetadata().GetCreateTime().AsTime())
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// decide creates the job of a time, or records why not. Either way the time is decided.
func (t *tick) decide(old *v1.Workload, due time.Time, runs []*v1.Workload) {
	w := proto.CloneOf(old)
	if w.Status.Cron == nil {
		w.Status.Cron = &v1.CronStatus{}
	}
	w.Status.Cron.SeenTime = timestamppb.New(due)
	name := rollout.RunName(w.GetMetadata().GetName(), due)
	if obstacle := t.obstacle(w, name, due, runs); obstacle != "" {
		t.event(w, "Skipped", fmt.Sprintf("the job of %s was not made: %s", due.UTC().Format(time.RFC3339), obstacle), state.SeverityWarning)
	} else if t.snap.WorkloadByName(w.GetMetadata().GetNamespace(), name) == nil {
		t.run(w, name, due, runs)
	}
	t.batch.Update(w, old.GetMetadata().GetVersion())
}

// obstacle says why no job is created for a time. It is empty if there is no obstacle.
func (t *tick) obstacle(w *v1.Workload, name string, due time.Time, runs []*v1.Workload) string {
	c := w.GetSpec().GetCron()
	if limit, err := spec.ParseDuration(c.GetStartDeadline()); err == nil && t.now.Sub(due) > limit {
		return fmt.Sprintf("it is %s late, and may be %s late", spec.FormatDuration(t.now.Sub(due).Truncate(time.Second)), c.GetStartDeadline())
	}
	if other := t.snap.WorkloadByName(w.GetMetadata().GetNamespace(), name); other != nil {
		if other.GetStatus().GetOwnerUid() != w.GetMetadata().GetUid() {
			return fmt.Sprintf("another workload has the name %s; remove that one", name)
		}
		return ""
	}
	if open := active(runs); len(open) > 0 && c.GetOverlap() == spec.OverlapSkip {
		return fmt.Sprintf("%s is not over yet, and overlap is skip", open[0].GetMetadata().GetName())
	}
	if most := spec.MostWorkloads(t.snap.Cluster().GetSpec()); t.snap.Count(state.KindWorkload) >= most {
		return fmt.Sprintf("the cluster allows %d workloads and has as many; delete some, or keep fewer with keepSucceeded", most)
	}
	return ""
}

// run creates a job, and ends those that it replaces.
func (t *tick) run(w *v1.Workload, name string, due time.Time, runs []*v1.Workload) {
	if w.GetSpec().GetCron().GetOverlap() == spec.OverlapReplace {
		for _, old := range active(runs) {
			if old.GetMetadata().GetDeleteTime() == nil {
				t.end(old, "it was replaced by "+name)
			}
		}
	}
	run, revision := rollout.NewRun(w, t.snap.Revision(w.GetStatus().GetRevisionUid()), name, t.newUID)
	secret.Pin(t.snap, revision, t.now)
	t.batch.Create(revision)
	t.batch.Create(run)
	w.Status.Cron.LastRun = timestamppb.New(due)
	t.event(w, "Run", "job "+name+" was made", state.SeverityInfo)
}

// end fails a job. Package replicas then stops its replicas.
func (t *tick) end(old *v1.Workload, reason string) {
	w := proto.CloneOf(old)
	w.Status.Job = &v1.JobStatus{
		Outcome: spec.PhaseFailed, Reason: reason, EndTime: timestamppb.New(t.now), RevisionUid: old.GetStatus().GetRevisionUid(),
	}
	t.batch.Update(w, old.GetMetadata().GetVersion())
	t.event(w, "Failed", reason, state.SeverityWarning)
}

// active are the jobs that have not ended.
func active(runs []*v1.Workload) []*v1.Workload {
	var open []*v1.Workload
	for _, r := range runs {
		if rollout.Outcome(r) == "" {
			open = append(open, r)
		}
	}
	return open
}

// trim removes the oldest ended jobs beyond the history limits.
func (t *tick) trim(w *v1.Workload, runs []*v1.Workload) {
	c := w.GetSpec().GetCron()
	for _, kept := range []struct {
		outcome string
		count   int
	}{{spec.PhaseCompleted, int(c.GetKeepSucceeded())}, {spec.PhaseFailed, int(c.GetKeepFailed())}} {
		var over []*v1.Workload
		for _, r := range runs {
			if rollout.Outcome(r) == kept.outcome && r.GetMetadata().GetDeleteTime() == nil {
				over = append(over, r)
			}
		}
		slices.SortFunc(over, func(a, b *v1.Workload) int {
			return strings.Compare(a.GetMetadata().GetUid(), b.GetMetadata().GetUid())
		})
		t.deleteRuns(over[:max(0, len(over)-kept.count)])
	}
}

// deleteRuns deletes jobs, in order, as far as there is room.
func (t *tick) deleteRuns(runs []*v1.Workload) {
	for _, old := range runs {
		if old.GetMetadata().GetDeleteTime() != nil || t.batch.Len() >= maxChanges {
			continue
		}
		w := proto.CloneOf(old)
		w.Metadata.DeleteTime = timestamppb.New(t.now)
		t.batch.Update(w, old.GetMetadata().GetVersion())
	}
}

// remove deletes a cron that has no jobs any more.
func (t *tick) remove(w *v1.Workload) {
	t.batch.DeleteWorkload(t.snap, w)
	t.event(w, "Deleted", "", state.SeverityInfo)
}

func (t *tick) event(about state.Object, reason, message, severity string) {
	t.batch.Create(state.NewEvent(t.newUID(), t.now, about, severity, reason, message, "cron"))
}
