package cron

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/crontab"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// fatal is what tests and properties have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a state with a clock, in which jobs end when a test says so.
type world struct {
	t     fatal
	store *state.Store
	index uint64
	uids  int
	now   time.Time
}

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func newWorld(t fatal) *world { return &world{t: t, store: state.New(), now: noon} }

func (w *world) newUID() string {
	w.uids++
	return fmt.Sprintf("%08d-0000-7000-8000-0000%08d", w.uids, w.uids)
}

func (w *world) snap() *state.Snapshot { return w.store.Snapshot() }

func (w *world) apply(b *state.Batch) {
	w.t.Helper()
	w.index++
	tx := proto.CloneOf(b.Transaction(w.now))
	if err := state.Validate(tx); err != nil {
		w.t.Fatalf("the changes are not valid: %v", err)
	}
	if _, err := w.store.Apply(w.index, tx); err != nil {
		w.t.Fatalf("the changes do not fit to the state they were made from: %v", err)
	}
}

// add creates a cron with a schedule, changed as a test needs it.
func (w *world) add(name, schedule string, change func(*v1.Cron)) {
	w.t.Helper()
	c := &v1.Cron{Schedule: schedule}
	if change != nil {
		change(c)
	}
	made := &v1.Workload{
		Metadata: &v1.Metadata{Uid: w.newUID(), Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec:     spec.Normalized(&v1.WorkloadSpec{Image: "a:1", Kind: spec.KindCron, Cron: c}),
		Status:   &v1.WorkloadStatus{},
	}
	var b state.Batch
	w.revise(&b, made)
	b.Create(made)
	w.apply(&b)
}

func (w *world) revise(b *state.Batch, of *v1.Workload) {
	of.Status.Revision++
	of.Status.RevisionUid = w.newUID()
	b.Create(&v1.Revision{
		Metadata: &v1.Metadata{Uid: of.GetStatus().GetRevisionUid()},
		Spec: &v1.RevisionSpec{
			WorkloadUid: of.GetMetadata().GetUid(), Number: of.GetStatus().GetRevision(), Workload: proto.CloneOf(of.GetSpec()), Image: "a@sha256:1",
		},
	})
}

// edit changes a workload, with a new revision if revise is set.
func (w *world) edit(name string, revise bool, f func(*v1.Workload)) {
	w.t.Helper()
	old := w.snap().WorkloadByName("default", name)
	edited := proto.CloneOf(old)
	f(edited)
	var b state.Batch
	if revise {
		w.revise(&b, edited)
	}
	b.Update(edited, old.GetMetadata().GetVersion())
	w.apply(&b)
}

// end ends a job.
func (w *world) end(name, outcome string) {
	w.t.Helper()
	w.edit(name, false, func(job *v1.Workload) {
		job.Status.Job = &v1.JobStatus{Outcome: outcome, RevisionUid: job.GetStatus().GetRevisionUid()}
	})
}

// at ticks at a time of day until nothing is left to do, and returns when the next tick is
// due.
func (w *world) at(clock string) time.Time {
	w.t.Helper()
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	w.now = time.Date(2026, 5, 1, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	return w.tick()
}

func (w *world) tick() time.Time {
	w.t.Helper()
	for range 100 {
		batch, next := Tick(w.now, w.snap(), w.newUID)
		if batch.Len() == 0 {
			return next
		}
		w.apply(batch)
	}
	w.t.Fatalf("it never comes to rest")
	return time.Time{}
}

// jobs lists the jobs with their outcomes.
func (w *world) jobs() string {
	var all []string
	for job := range w.snap().Workloads("", "") {
		if job.GetSpec().GetKind() != spec.KindJob {
			continue
		}
		text := job.GetMetadata().GetName()
		if outcome := rollout.Outcome(job); outcome != "" {
			text += " " + outcome
		}
		if job.GetMetadata().GetDeleteTime() != nil {
			text += " deleting"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.jobs(); got != want {
		w.t.Fatalf("the jobs are %q, want %q", got, want)
	}
}

func (w *world) events() string {
	var all []string
	for e := range w.snap().Events("") {
		all = append(all, e.GetSpec().GetReason()+": "+e.GetSpec().GetMessage())
	}
	slices.Reverse(all)
	return strings.Join(all, "\n")
}

func TestJobsAreCreatedOnTime(t *testing.T) {
	w := newWorld(t)
	w.add("backup", "30 * * * *", nil)
	if next := w.at("12:00:00"); !next.Equal(noon.Add(30 * time.Minute)) {
		t.Errorf("the next look is at %s", next)
	}
	w.expect("")
	w.at("12:30:00")
	w.expect("backup-20260501-1230")
	job := w.snap().WorkloadByName("default", "backup-20260501-1230")
	revision := w.snap().Revision(job.GetStatus().GetRevisionUid())
	cron := w.snap().WorkloadByName("default", "backup")
	if job.GetStatus().GetOwner() != "backup" || job.GetStatus().GetOwnerUid() != cron.GetMetadata().GetUid() || job.GetMetadata().GetLabels()["app"] != "backup" {
		t.Errorf("the job is %v", job)
	}
	if revision.GetSpec().GetImage() != "a@sha256:1" || revision.GetSpec().GetWorkload().GetKind() != spec.KindJob || revision.GetSpec().GetWorkload().GetCron() != nil {
		t.Errorf("its revision is %v", revision)
	}
	if err := spec.Validate(job); err != nil {
		t.Errorf("the job is not valid: %v", err)
	}
	if last := cron.GetStatus().GetCron().GetLastRun(); !last.AsTime().Equal(noon.Add(30 * time.Minute)) {
		t.Errorf("the last run was at %v", last)
	}
	w.at("12:30:59")
	w.expect("backup-20260501-1230")
	w.end("backup-20260501-1230", "completed")
	w.at("13:30:20")
	w.expect("backup-20260501-1230 completed, backup-20260501-1330")
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct{ overlap, want, event string }{
		{"skip", "backup-20260501-1205", "Skipped: the job of 2026-05-01T12:10:00Z was not made: backup-20260501-1205 is not over yet, and overlap is skip"},
		{"allow", "backup-20260501-1205, backup-20260501-1210", "Run: job backup-20260501-1210 was made"},
		{"replace", "backup-20260501-1205 failed, backup-20260501-1210", "Failed: it was replaced by backup-20260501-1210"},
	} {
		w := newWorld(t)
		w.add("backup", "*/5 * * * *", func(s *v1.Cron) { s.Overlap = c.overlap })
		w.at("12:05:00")
		w.at("12:10:00")
		w.expect(c.want)
		if !strings.Contains(w.events(), c.event) {
			t.Errorf("%s: the events are\n%s", c.overlap, w.events())
		}
		// A skipped time is not caught up on.
		w.end("backup-20260501-1205", "completed")
		w.at("12:10:30")
		w.expect(strings.Replace(strings.Replace(c.want, "1205 failed", "1205", 1), "1205", "1205 completed", 1))
	}
}

// Without a leader, times are missed. The newest is caught up on if it is not too late, the
// others are not.
func TestMissedTimesAreCaughtUp(t *testing.T) {
	w := newWorld(t)
	w.add("backup", "*/5 * * * *", nil)
	w.add("strict", "*/30 * * * *", func(c *v1.Cron) { c.StartDeadline = "1m" })
	w.at("12:47:00")
	w.expect("backup-20260501-1245")
	if want := "Skipped: the job of 2026-05-01T12:30:00Z was not made: it is 17m late, and may be 1m late"; !strings.Contains(w.events(), want) {
		t.Errorf("the events are\n%s", w.events())
	}
	w.at("13:00:59")
	if !strings.Contains(w.jobs(), "strict-20260501-1300") {
		t.Errorf("the jobs are %s", w.jobs())
	}
}

func TestSuspended(t *testing.T) {
	w := newWorld(t)
	w.add("backup", "*/5 * * * *", func(c *v1.Cron) { c.Suspend = true })
	if next := w.at("12:31:00"); !next.IsZero() {
		t.Errorf("a suspended cron is looked at again at %s", next)
	}
	w.expect("")
	w.edit("backup", true, func(cron *v1.Workload) { cron.Spec.Cron.Suspend = false })
	w.at("12:31:01") // times while suspended are not caught up on
	w.expect("")
	w.at("12:35:00")
	w.expect("backup-20260501-1235")
}

func TestHistoryIsTrimmed(t *testing.T) {
	w := newWorld(t)
	w.add("backup", "*/5 * * * *", func(c *v1.Cron) { c.KeepSucceeded, c.KeepFailed = proto.Int32(2), proto.Int32(1) })
	for i, outcome := range []string{"completed", "failed", "completed", "failed", "completed"} {
		clock := fmt.Sprintf("12:%02d:00", 5*(i+1))
		w.at(clock)
		w.end("backup-20260501-"+clock[:2]+clock[3:5], outcome)
	}
	w.tick()
	w.expect("backup-20260501-1205 completed deleting, backup-20260501-1210 failed deleting, " +
		"backup-20260501-1215 completed, backup-20260501-1220 failed, backup-20260501-1225 completed")
}

func TestDeletedCronTakesItsJobsAlong(t *testing.T) {
	w := newWorld(t)
	w.add("backup", "*/5 * * * *", nil)
	w.at("12:05:00")
	w.edit("backup", false, func(cron *v1.Workload) { cron.Metadata.DeleteTime = timestamppb.New(w.now) })
	w.at("12:10:00")
	w.expect("backup-20260501-1205 deleting")
	if w.snap().WorkloadByName("default", "backup") == nil {
		t.Fatal("it went before its jobs")
	}
	job := w.snap().WorkloadByName("default", "backup-20260501-1205")
	var b state.Batch
	b.DeleteVersion(state.KindWorkload, job.GetMetadata().GetUid(), job.GetMetadata().GetVersion())
	w.apply(&b)
	w.tick()
	if w.snap().WorkloadByName("default", "backup") != nil || w.snap().Count(state.KindRevision) != 1 { // of the job
		t.Error("it is still there")
	}
}

func TestJobNameInUse(t *testing.T) {
	w := newWorld(t)
	w.add("backup", "*/5 * * * *", nil)
	w.add("backup-20260501-1205", "@yearly", nil)
	w.at("12:05:00")
	w.expect("")
	if want := "another workload has the name backup-20260501-1205; remove that one"; !strings.Contains(w.events(), want) {
		t.Errorf("the events are\n%s", w.events())
	}
	w.at("12:10:00")
	w.expect("backup-20260501-1210")
}

// Many crons at the same minute are created in several transactions.
func TestManyCronsAtOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 200 {
		w.add(fmt.Sprintf("cron%03d", i), "@hourly", nil)
	}
	w.now = noon.Add(time.Hour)
	batch, next := Tick(w.now, w.snap(), w.newUID)
	if batch.Len() > maxChanges+8 || !next.Equal(w.now) {
		t.Errorf("%d changes at once, the next at %s", batch.Len(), next)
	}
	w.tick()
	if got := strings.Count(w.jobs(), "-20260501-1300"); got != 200 {
		t.Errorf("%d jobs were made", got)
	}
}

// Leaders come, go and have wrong clocks, and jobs end or not: no time has two jobs, and
// none is missed while there is a leader.
func TestEveryTimeGetsOneJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		text := rapid.SampledFrom([]string{"*/5 * * * *", "30 * * * *", "0 13 * * *"}).Draw(t, "schedule")
		w.add("c", text, func(c *v1.Cron) { c.Overlap = spec.OverlapAllow; c.KeepSucceeded = proto.Int32(1) })
		times, err := crontab.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		made, seen := map[string]string{}, w.now
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			w.now = w.now.Add(time.Duration(rapid.IntRange(-300, 1200).Draw(t, "seconds")) * time.Second)
			due := times.Newest(seen, w.now, time.UTC)
			seen = later(seen, w.now)
			w.tick()
			for job := range w.snap().Workloads("", "") {
				name, uid := job.GetMetadata().GetName(), job.GetMetadata().GetUid()
				if earlier := made[name]; earlier != "" && earlier != uid {
					t.Fatalf("%s was made twice", name)
				}
				made[name] = uid
			}
			if name := rollout.RunName("c", due); !due.IsZero() && made[name] == "" {
				t.Fatalf("%s was not made by %s: %s", name, w.now, w.jobs())
			}
			for job := range w.snap().Workloads("", "") {
				if job.GetSpec().GetKind() == spec.KindJob && rollout.Outcome(job) == "" && rapid.Bool().Draw(t, "ends") {
					w.end(job.GetMetadata().GetName(), "completed")
				}
			}
		}
	})
}

// The priority of a cron may change without a new revision: its next job has the new
// priority.
func TestJobHasTheCurrentPriorityOfItsCron(t *testing.T) {
	w := newWorld(t)
	w.add("backup", "*/5 * * * *", nil)
	w.edit("backup", false, func(cron *v1.Workload) { cron.Spec.Priority = proto.Int32(600) })
	w.at("12:05:00")
	job := w.snap().WorkloadByName("default", "backup-20260501-1205")
	revision := w.snap().Revision(job.GetStatus().GetRevisionUid())
	if is, runs := job.GetSpec().GetPriority(), revision.GetSpec().GetWorkload().GetPriority(); is != 600 || runs != 600 {
		t.Errorf("the job has priority %d and its revision %d", is, runs)
	}
}
