package rollout_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

// replicas reads "1 old running, 2 new backoff stopped": uid, revision, phase and, if it is
// not running, the desired state; "away" at the end means that its node is offline.
func replicas(texts ...string) (rs []rollout.Replica) {
	for _, s := range texts {
		r := rollout.Replica{Desired: spec.DesiredRunning}
		// A missing last word leaves the default.
		_, _ = fmt.Sscan(strings.TrimSuffix(s, " away"), &r.UID, &r.Revision, &r.Phase, &r.Desired)
		r.Away = strings.HasSuffix(s, " away")
		rs = append(rs, r)
	}
	serve(rs)
	return rs
}

// serve lets the replicas serve that run, and have served for long enough.
func serve(rs []rollout.Replica) {
	for i := range rs {
		rs[i].Serves = rs[i].Phase == spec.PhaseRunning
		rs[i].Steady = rs[i].Serves
	}
}

// A replica that runs but does not serve is like one that is starting: an update waits for it, and it goes first.
func TestReplicaThatRunsButDoesNotServe(t *testing.T) {
	all := replicas("1 old running", "2 old running", "3 new running")
	all[2].Serves = false
	if got := rollout.Next(rollout.Input{Desired: 3, Revision: "new", Policy: "always", Replicas: all}); !reflect.DeepEqual(got, rollout.Step{}) {
		t.Errorf("the update goes on with %+v", got)
	}
	if got := rollout.Next(rollout.Input{Desired: 2, Revision: "new", Policy: "always", Replicas: all}).Stop; !slices.Equal(got, []string{"3"}) {
		t.Errorf("scaling down stops %v", got)
	}
}

// A replica that is away may still run, so it is not given up for one that must leave its node itself.
func TestLeavingReplicaDoesNotMakeUpForOneThatIsAway(t *testing.T) {
	all := replicas("1 new running away", "2 new running", "3 new running")
	all[2].Leaves = true
	want := rollout.Step{Cover: 1}
	if got := rollout.Next(rollout.Input{Desired: 2, Revision: "new", Policy: "always", Replicas: all}); !reflect.DeepEqual(got, want) {
		t.Errorf("the next step is %+v, want %+v", got, want)
	}
}

func TestNext(t *testing.T) {
	for _, c := range []struct {
		name    string
		desired int
		policy  string
		have    []rollout.Replica
		want    rollout.Step
	}{
		{"the first replicas are created at once", 3, "always", nil, rollout.Step{Create: 3}},
		{"what is there is enough", 2, "always", replicas("1 new running", "2 new running"), rollout.Step{Settled: true}},
		{"what comes up is waited for", 1, "always", replicas("1 new preparing"), rollout.Step{}},
		{"scaling up adds what is missing", 3, "always", replicas("1 new running"), rollout.Step{Create: 2}},
		{"scaling down takes the newest", 1, "always", replicas("1 new running", "2 new running", "3 new running"), rollout.Step{Stop: []string{"2", "3"}}},
		{"but first what does not run", 1, "always", replicas("1 new backoff", "2 new running", "3 new pending"), rollout.Step{Stop: []string{"1", "3"}}},
		{"and then what is outdated", 1, "always", replicas("1 old running", "2 new running"), rollout.Step{Stop: []string{"1"}}},
		{"scaling to none stops all", 0, "always", replicas("1 old running", "2 new pending"), rollout.Step{Stop: []string{"1", "2"}}},
		{"one outdated replica is replaced first, the oldest", 2, "always", replicas("2 old running", "1 old running"), rollout.Step{Replace: []string{"1", "2"}}},
		{"its successor waits until it is gone", 2, "always", replicas("1 old stopping stopped", "2 old running"), rollout.Step{}},
		{"and then is created", 2, "always", replicas("1 old stopped stopped", "2 old running"), rollout.Step{Create: 1}},
		{"the next one waits until the successor runs", 2, "always", replicas("2 old running", "3 new preparing"), rollout.Step{}},
		{"and for ever if it does not", 2, "always", replicas("2 old running", "3 new backoff"), rollout.Step{}},
		{"then it is its turn", 2, "always", replicas("2 old running", "3 new running"), rollout.Step{Replace: []string{"2"}}},
		{"one that has no node waits for room, so room is made", 2, "always", replicas("2 old running", "3 new pending"), rollout.Step{Replace: []string{"2"}}},
		{"outdated ones that do not run are all replaced at once", 3, "always", replicas("1 old pending", "2 old backoff", "3 old running"), rollout.Step{Create: 2, Stop: []string{"1", "2"}}},
		{"a stopping replica of the current revision does not delay scaling up", 2, "always", replicas("1 new running", "2 new stopping stopped"), rollout.Step{Create: 1}},
		{"a lost replica is replaced", 1, "always", replicas("1 new lost"), rollout.Step{Create: 1}},
		{"what ended is replaced under always", 2, "always", replicas("1 new completed", "2 new failed"), rollout.Step{Create: 2}},
		{"what completed is done under on-failure", 2, "on-failure", replicas("1 new completed", "2 new failed"), rollout.Step{Create: 1}},
		{"what ended is done under never", 2, "never", replicas("1 new completed", "2 new failed"), rollout.Step{Settled: true}},
		{"a lost job runs again under never", 1, "never", replicas("1 new lost"), rollout.Step{Create: 1}},
		{"a done job of an old revision runs again", 1, "never", replicas("1 old completed"), rollout.Step{Create: 1}},
		{"what was stopped is not done", 1, "never", replicas("1 new completed stopped"), rollout.Step{Create: 1}},
		{"one whose node is offline is covered", 1, "always", replicas("1 new running away"), rollout.Step{Cover: 1}},
		{"its successor is waited for", 1, "always", replicas("1 new running away", "2 new preparing"), rollout.Step{}},
		{"and when it runs, the first is given up", 1, "always", replicas("1 new running away", "2 new running"), rollout.Step{Lose: []string{"1"}}},
		{"one that is back before has the older right", 1, "always", replicas("1 new running", "2 new preparing"), rollout.Step{Stop: []string{"2"}}},
		{"also when both run", 1, "always", replicas("1 new running", "2 new running"), rollout.Step{Stop: []string{"2"}}},
		{"of several as many are given up as run elsewhere", 3, "always", replicas("1 new running away", "2 new running away", "3 new running", "4 new running", "5 new preparing"), rollout.Step{Lose: []string{"2"}}},
		{"what is missing besides is created whether it fits or not", 3, "always", replicas("1 new running away"), rollout.Step{Create: 2, Cover: 1}},
		{"what should stop is given up at once", 1, "always", replicas("1 new running", "2 new stopping stopped away"), rollout.Step{Lose: []string{"2"}}},
		{"scaling to none does not wait for it", 0, "always", replicas("1 new running away"), rollout.Step{Lose: []string{"1"}}},
		{"an outdated one is covered by the new revision", 1, "always", replicas("1 old running away"), rollout.Step{Cover: 1}},
		{"a job that ran there runs again", 1, "never", replicas("1 new running away"), rollout.Step{Cover: 1}},
		{"one that was done is not", 1, "never", replicas("1 new completed away"), rollout.Step{Settled: true}},
		{"a job whose successor is done is given up", 1, "never", replicas("1 new running away", "2 new completed"), rollout.Step{Lose: []string{"1"}}},
		{"done ones count when scaling", 2, "never", replicas("1 new completed", "2 new running", "3 new running"), rollout.Step{Stop: []string{"3"}}},
	} {
		got := rollout.Next(rollout.Input{Desired: c.desired, Revision: "new", Policy: c.policy, Replicas: c.have})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestDeleting(t *testing.T) {
	in := rollout.Input{Desired: 3, Revision: "new", Policy: "always", Deleting: true, Replicas: replicas(
		"1 new running", "2 old pending", "3 new stopping stopped", "4 new failed")}
	if got, want := rollout.Next(in), (rollout.Step{Stop: []string{"1", "2"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	in.Replicas = replicas("1 new stopped stopped", "4 new failed")
	if got := rollout.Next(in); !reflect.DeepEqual(got, rollout.Step{Settled: true}) {
		t.Errorf("got %+v when all are gone", got)
	}
}

func TestReplicaFromProto(t *testing.T) {
	got := rollout.ReplicaFromProto(&v1.Replica{Metadata: &v1.Metadata{Uid: "1"}, Spec: &v1.ReplicaSpec{RevisionUid: "r"}})
	if want := (rollout.Replica{UID: "1", Revision: "r", Phase: "pending", Desired: "running"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// world is one workload whose replicas run, fail and are lost.
type world struct {
	in   rollout.Input
	made int
}

// act takes one step and checks what it may take away.
func (w *world) act(t *rapid.T) rollout.Step {
	serve(w.in.Replicas)
	before := slices.Clone(w.in.Replicas)
	step := rollout.Next(w.in)
	if !slices.Equal(before, w.in.Replicas) {
		t.Fatal("the input was changed")
	}
	live, starting, taken := 0, 0, 0
	for i := range w.in.Replicas {
		r := &w.in.Replicas[i]
		going := slices.Contains(step.Stop, r.UID) || len(step.Replace) > 0 && r.UID == step.Replace[0]
		if going && (r.Desired == spec.DesiredStopped || spec.Ended(r.Phase)) {
			t.Fatalf("%+v is stopped again", *r)
		}
		if r.Desired == spec.DesiredRunning && spec.Live(r.Phase) && r.Phase != spec.PhaseStopping {
			live++
			switch {
			case r.Phase == spec.PhaseRunning && going:
				taken++
			case r.Phase != spec.PhaseRunning && r.Phase != spec.PhasePending && !going:
				starting++
			}
		}
		if going {
			r.Desired = spec.DesiredStopped
		}
	}
	want := w.want()
	if live <= want && taken > 0 && (taken > 1 || starting > 0) {
		t.Fatalf("a replacement takes away %d running replicas while %d others start: %+v", taken, starting, before)
	}
	if live-len(step.Stop)+step.Create > max(want, live) {
		t.Fatalf("%+v makes too many of %+v", step, before)
	}
	for range step.Create {
		w.made++
		w.in.Replicas = append(w.in.Replicas, rollout.Replica{
			UID: fmt.Sprintf("%05d", w.made), Revision: w.in.Revision, Phase: spec.PhasePending, Desired: spec.DesiredRunning,
		})
	}
	return step
}

// want is how many replicas have yet to run.
func (w *world) want() int {
	if w.in.Deleting {
		return 0
	}
	return max(0, w.in.Desired-w.doneCount())
}

func (w *world) doneCount() int {
	n := 0
	for _, r := range w.in.Replicas {
		if r.Revision != w.in.Revision || r.Desired != spec.DesiredRunning {
			continue
		}
		completed, failed := r.Phase == spec.PhaseCompleted, r.Phase == spec.PhaseFailed
		if completed && w.in.Policy != "always" || failed && w.in.Policy == "never" {
			n++
		}
	}
	return n
}

// advance lets a replica take its next step; with trouble it may be a bad one.
func (w *world) advance(t *rapid.T, r *rollout.Replica, trouble bool) {
	switch {
	case spec.Ended(r.Phase):
	case trouble && r.Phase != spec.PhasePending && rapid.IntRange(0, 19).Draw(t, "lost") == 0:
		r.Phase = spec.PhaseLost
	case r.Desired == spec.DesiredStopped:
		if r.Phase == spec.PhaseStopping || r.Phase == spec.PhasePending {
			r.Phase = spec.PhaseStopped
		} else {
			r.Phase = spec.PhaseStopping
		}
	case r.Phase == spec.PhasePending:
		r.Phase = spec.PhasePlaced
	case r.Phase == spec.PhasePlaced:
		r.Phase = spec.PhasePreparing
	case r.Phase == spec.PhasePreparing, r.Phase == spec.PhaseBackoff:
		r.Phase = spec.PhaseRunning
	case trouble && rapid.IntRange(0, 4).Draw(t, "exit") == 0:
		w.exit(r, rapid.Bool().Draw(t, "well"))
	}
}

// exit ends a program and does what the policy says.
func (w *world) exit(r *rollout.Replica, well bool) {
	switch {
	case w.in.Policy == "always", w.in.Policy == "on-failure" && !well:
		r.Phase = spec.PhaseBackoff
	case well:
		r.Phase = spec.PhaseCompleted
	default:
		r.Phase = spec.PhaseFailed
	}
}

// However a workload is changed and whatever happens to its replicas: afterwards it settles
// at exactly the desired number of the newest revision.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: rollout.Input{Revision: "r0", Policy: rapid.SampledFrom([]string{"always", "on-failure", "never"}).Draw(t, "policy")}}
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "change") {
			case 0:
				w.in.Desired = rapid.IntRange(0, 6).Draw(t, "desired")
			case 1:
				w.in.Revision = fmt.Sprint("r", i+1)
			case 2, 3, 4, 5:
				w.act(t)
			default:
				if n := len(w.in.Replicas); n > 0 {
					w.advance(t, &w.in.Replicas[rapid.IntRange(0, n-1).Draw(t, "replica")], true)
				}
			}
		}
		w.in.Deleting = rapid.IntRange(0, 9).Draw(t, "delete") == 0
		w.settle(t)

		running := 0
		for _, r := range w.in.Replicas {
			if spec.Ended(r.Phase) {
				continue
			}
			if r.Phase != spec.PhaseRunning || r.Revision != w.in.Revision {
				t.Fatalf("settled with %+v", r)
			}
			running++
		}
		if running != w.want() {
			t.Fatalf("settled with %d running, want %d of %+v", running, w.want(), w.in)
		}
	})
}

// settle continues without trouble until nothing is left to do.
func (w *world) settle(t *rapid.T) {
	for range 200 {
		if w.act(t).Settled {
			return
		}
		for i := range w.in.Replicas {
			w.advance(t, &w.in.Replicas[i], false)
		}
	}
	t.Fatalf("does not come to rest: %+v", w.in)
}
