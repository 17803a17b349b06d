package rollout_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

func TestCanariesAreRoundedUp(t *testing.T) {
	for _, c := range []struct{ desired, share, want int }{{10, 5, 1}, {10, 25, 3}, {1, 5, 1}, {200, 5, 10}, {201, 5, 11}, {3, 99, 3}, {0, 50, 0}} {
		if got := rollout.Canaries(c.desired, c.share); got != c.want {
			t.Errorf("%d%% of %d replicas need %d, want %d", c.share, c.desired, got, c.want)
		}
	}
}

// canarying are the two inputs of a canary deployment of as many replicas.
func canarying(desired, canaries int, have []rollout.Replica) (base, fresh rollout.Input) {
	update := rollout.Update{Surge: 1, MinAvailable: desired}
	base = rollout.Input{Desired: desired, Revision: "old", Policy: "always", Update: update, Replicas: have}
	fresh = base
	fresh.Revision, fresh.Desired, fresh.Update.Good = "new", canaries, "old"
	return base, fresh
}

func TestNextOfCanary(t *testing.T) {
	for _, c := range []struct {
		name              string
		desired, canaries int
		have              []rollout.Replica
		base, fresh       rollout.Step
	}{
		{"canaries start beside the base", 2, 1, replicas("1 old running", "2 old running"), rollout.Step{Settled: true}, rollout.Step{Create: 1}},
		{"and stop nothing of it", 2, 1, replicas("1 old running", "2 old running", "3 new running"), rollout.Step{Settled: true}, rollout.Step{Settled: true}},
		{"the next step adds to them", 4, 2, replicas("1 old running", "2 old running", "3 old running", "4 old running", "5 new running"), rollout.Step{Settled: true}, rollout.Step{Create: 1}},
		{"the base covers what it loses", 2, 1, replicas("1 old running away", "2 old running", "3 new running"), rollout.Step{Cover: 1}, rollout.Step{Settled: true}},
		{"and canaries what they lose", 2, 1, replicas("1 old running", "2 old running", "3 new running away"), rollout.Step{Settled: true}, rollout.Step{Cover: 1}},
		{"scaling up concerns both", 4, 2, replicas("1 old running", "2 old running", "3 new running"), rollout.Step{Create: 2}, rollout.Step{Create: 1}},
		{
			"scaling down, too", 1, 1, replicas("1 old running", "2 old running", "3 new running", "4 new running"),
			rollout.Step{Stop: []string{"2"}},
			rollout.Step{Stop: []string{"4"}},
		},
		{"what an earlier canary has left goes", 2, 1, replicas("1 old running", "2 old running", "3 older running"), rollout.Step{Stop: []string{"3"}}, rollout.Step{Create: 1}},
	} {
		base, fresh := rollout.NextOfCanary(canarying(c.desired, c.canaries, c.have))
		if !reflect.DeepEqual(base, c.base) || !reflect.DeepEqual(fresh, c.fresh) {
			t.Errorf("%s:\n got %+v and %+v\nwant %+v and %+v", c.name, base, fresh, c.base, c.fresh)
		}
	}
}

// releasing is a canary deployment with the loop and the nodes around the planner.
type releasing struct {
	updating
	steps []int
	step  int // more than there are when the rest is replaced
}

// next takes one step of the planner, and checks it.
func (w *releasing) next(t *rapid.T) {
	stepping := w.step < len(w.steps)
	if !stepping {
		w.Update.Good = "old"
		w.act(t, true)
		return
	}
	canaries := rollout.Canaries(w.Desired, w.steps[w.step])
	base, fresh := w.Input, w.Input
	base.Revision, fresh.Desired = "old", canaries
	ofBase, ofFresh := rollout.NextOfCanary(base, fresh)
	before := w.servingOf("old")
	for _, step := range []rollout.Step{ofBase, ofFresh} {
		for _, uid := range step.Stop {
			for i := range w.Replicas {
				if w.Replicas[i].UID == uid {
					w.Replicas[i].Desired = spec.DesiredStopped
				}
			}
		}
	}
	w.make("old", ofBase.Create+ofBase.Surge)
	w.make("new", ofFresh.Create+ofFresh.Surge)
	if after := w.servingOf("old"); after < before && after < w.Desired {
		t.Fatalf("a canary takes the base from %d to %d of %d", before, after, w.Desired)
	}
	if all := w.wanted(); all > w.Desired+canaries {
		t.Fatalf("%d replicas are wanted, with %d and %d canaries", all, w.Desired, canaries)
	}
}

func (w *releasing) make(revision string, count int) {
	for range count {
		w.create("")
		w.Replicas[len(w.Replicas)-1].Revision = revision
	}
}

func (w *releasing) servingOf(revision string) (n int) {
	for _, r := range w.Replicas {
		if r.Serves && r.Desired == spec.DesiredRunning && r.Revision == revision {
			n++
		}
	}
	return n
}

// From every reachable state a canary deployment comes to its end, forward or back. Meanwhile the base never gives up a
// replica that it needs, and there are never more canaries than the share of the step needs.
func TestCanariesTerminate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &releasing{steps: rapid.SampledFrom([][]int{{5, 25, 50}, {10}, {1, 99}}).Draw(t, "steps")}
		w.Input = rollout.Input{Revision: "new", Policy: "always", Desired: rapid.IntRange(1, 6).Draw(t, "desired")}
		w.Update = rollout.Update{Surge: rapid.IntRange(1, 3).Draw(t, "surge"), MinAvailable: rapid.IntRange(0, w.Desired).Draw(t, "minAvailable")}
		w.make("old", w.Desired)
		for i := range w.Replicas {
			w.Replicas[i].Phase, w.Replicas[i].Serves, w.Replicas[i].Steady = spec.PhaseRunning, true, true
		}
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			switch rapid.IntRange(0, 9).Draw(t, "move") {
			case 0:
				w.step = min(w.step+1, len(w.steps))
			case 1:
				if w.step < len(w.steps) {
					w.Desired = rapid.IntRange(1, 6).Draw(t, "scaled")
					w.Update.MinAvailable = min(w.Update.MinAvailable, w.Desired)
				}
				w.next(t)
			case 2, 3, 4:
				w.next(t)
			default:
				r := &w.Replicas[rapid.IntRange(0, len(w.Replicas)-1).Draw(t, "replica")]
				if r.Phase == spec.PhaseRunning && rapid.IntRange(0, 3).Draw(t, "crash") == 0 {
					r.Phase, r.Serves, r.Steady = spec.PhaseBackoff, false, false
					continue
				}
				w.advance(r)
			}
		}
		want := "new"
		if rapid.Bool().Draw(t, "back") {
			want, w.Revision = "old", "old" // as after a rollback
		}
		w.step = len(w.steps)
		for n := 0; !w.act(t, true).Settled; n++ {
			if n > 300 {
				t.Fatalf("does not come to rest: %+v", w.Input)
			}
			for i := range w.Replicas {
				w.advance(&w.Replicas[i])
			}
		}
		if got := w.servingOf(want); got != w.Desired || w.serving() != w.Desired {
			t.Fatalf("settled with %d of %d", got, w.Desired)
		}
	})
}

func TestRestartsCountOnlyWhatIsWanted(t *testing.T) {
	have := replicas("1 new running", "2 new backoff", "3 old backoff", "4 new running stopped", "5 new running away", "6 new lost")
	for i := range have {
		have[i].Crashes = i + 1
	}
	if count, worst := rollout.Restarts("new", have); count != 3 || worst != "2" {
		t.Errorf("there are %d restarts, most of them of %s", count, worst)
	}
}

// The time for which a canary is paused does not count for its step.
func TestPausedCanaryDoesNotBake(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 12, minute, 0, 0, time.UTC) }
	d := &v1.Deployment{
		Spec:   &v1.DeploymentSpec{Strategy: spec.StrategyCanary, PreviousUid: "old"},
		Status: &v1.DeploymentStatus{Phase: spec.DeploymentRunning, Step: 1, StepTime: timestamppb.New(at(0)), Weight: 5},
	}
	if !rollout.Pause(d, at(1)) || rollout.Pause(d, at(2)) || d.GetStatus().GetWeight() != 5 {
		t.Fatalf("paused: %v", d)
	}
	if !rollout.Resume(d, at(11)) || d.GetStatus().GetPauseTime() != nil {
		t.Fatalf("resumed: %v", d)
	}
	if got := d.GetStatus().GetStepTime().AsTime(); !got.Equal(at(10)) {
		t.Errorf("the step counts from %s, want %s", got, at(10))
	}
	rollout.Pause(d, at(12))
	rollout.Resume(d, at(11)) // by a server whose clock is behind
	if got := d.GetStatus().GetStepTime().AsTime(); !got.Equal(at(10)) {
		t.Errorf("a clock that is behind makes the step count from %s", got)
	}
}

func TestPromotionSkipsOneStepOrAll(t *testing.T) {
	d := &v1.Deployment{
		Spec:   &v1.DeploymentSpec{Strategy: spec.StrategyCanary, PreviousUid: "old"},
		Status: &v1.DeploymentStatus{Phase: spec.DeploymentRunning},
	}
	promote := func(full bool) string {
		return fmt.Sprint(rollout.PromoteCanary(d, full), d.GetSpec().GetPromotedStep())
	}
	if got := []string{promote(false), promote(false), promote(true), promote(true)}; !reflect.DeepEqual(got, []string{"true 1", "false 1", "true 4", "false 4"}) {
		t.Errorf("promoting gives %v", got)
	}
	d.Status.Step = 4
	if d.Spec.PromotedStep = 0; rollout.PromoteCanary(d, true) {
		t.Error("after the last step there is nothing to skip")
	}
}
