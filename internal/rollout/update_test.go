package rollout_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

// leaving marks replicas that must leave their node.
func leaving(rs []rollout.Replica, uids ...string) []rollout.Replica {
	for i := range rs {
		rs[i].Leaves = slices.Contains(uids, rs[i].UID)
	}
	return rs
}

// idle marks replicas without traffic.
func idle(rs []rollout.Replica, uids ...string) []rollout.Replica {
	for i := range rs {
		rs[i].Idle = slices.Contains(uids, rs[i].UID)
	}
	return rs
}

// settling marks replicas that serve, but not for long enough yet.
func settling(rs []rollout.Replica, uids ...string) []rollout.Replica {
	for i := range rs {
		rs[i].Steady = rs[i].Steady && !slices.Contains(uids, rs[i].UID)
	}
	return rs
}

func TestUpdate(t *testing.T) {
	surge := rollout.Update{Surge: 1}
	for _, c := range []struct {
		name    string
		desired int
		update  rollout.Update
		have    []rollout.Replica
		want    rollout.Step
	}{
		{
			"a new one starts first; if it finds no node, the oldest makes room", 2, surge, replicas("1 old running", "2 old running"),
			rollout.Step{Surge: 1, Replace: []string{"1", "2"}},
		},
		{
			"as many as the surge allows", 3,
			rollout.Update{Surge: 2},
			replicas("1 old running", "2 old running", "3 old running"),
			rollout.Step{Surge: 2, Replace: []string{"1", "2", "3"}},
		},
		{"but no more than are desired", 1, rollout.Update{Surge: 5}, replicas("1 old running"), rollout.Step{Surge: 1, Replace: []string{"1"}}},
		{"nothing goes before it serves", 1, surge, replicas("1 old running", "2 new preparing"), rollout.Step{}},
		{"nor before it has served for a while", 1, surge, settling(replicas("1 old running", "2 new running"), "2"), rollout.Step{}},
		{"then the old one goes", 1, surge, replicas("1 old running", "2 new running"), rollout.Step{Stop: []string{"1"}}},
		{
			"and at once the next one starts", 3, surge, replicas("1 old running", "2 old running", "3 old running", "4 new running"),
			rollout.Step{Stop: []string{"3"}, Surge: 1},
		},
		{"only the first one has to prove itself", 2, surge, settling(replicas("2 old running", "3 new running", "4 new running"), "4"), rollout.Step{Stop: []string{"2"}}},
		{"one that stops does not count", 2, surge, replicas("1 old stopping stopped", "2 old running", "3 new running"), rollout.Step{Surge: 1}},
		{
			"one without a node is not followed by more", 3,
			rollout.Update{Surge: 2},
			replicas("1 old running", "2 old running", "4 new pending"),
			rollout.Step{Replace: []string{"1", "2"}},
		},
		{
			"and goes if it is too many", 3,
			rollout.Update{Surge: 2},
			replicas("1 old running", "2 old running", "3 old running", "4 new pending"),
			rollout.Step{Stop: []string{"4"}, Surge: 2},
		},
		{"outdated ones that do not serve are replaced at once", 2, surge, replicas("1 old backoff", "2 old running"), rollout.Step{Create: 1, Stop: []string{"1"}}},
		{"a new one that has crashed does not take an old one with it", 2, surge, replicas("1 old running", "2 old running", "3 new backoff"), rollout.Step{}},
		{"going back stops the new ones", 2, surge, replicas("1 new running", "2 new running", "3 old preparing"), rollout.Step{Stop: []string{"3"}}},
		{"also if they serve", 2, surge, replicas("1 new running", "2 new running", "3 old running"), rollout.Step{Stop: []string{"3"}}},
		{
			"scaling down during an update first takes the outdated ones", 1, surge, replicas("1 old running", "2 old running", "3 new running", "4 new running"),
			rollout.Step{Stop: []string{"1", "2"}},
		},
		{"scaling up during an update makes new ones", 3, surge, replicas("1 old running", "2 new running"), rollout.Step{Create: 1}},
		{"room is not made below minAvailable", 2, rollout.Update{Surge: 1, MinAvailable: 2}, replicas("1 old running", "2 old running"), rollout.Step{Surge: 1}},
		{"a paused update stays where it is", 2, rollout.Update{Surge: 1, Paused: true}, replicas("1 old running", "2 old running", "3 new running"), rollout.Step{}},
		{"and makes what is missing", 3, rollout.Update{Surge: 1, Paused: true}, replicas("1 old running", "3 new running"), rollout.Step{Create: 1}},
		{"recreate stops all", 2, rollout.Update{Recreate: true}, replicas("1 old running", "2 old running"), rollout.Step{Stop: []string{"1", "2"}}},
		{"and waits for the last", 2, rollout.Update{Recreate: true}, replicas("1 old stopping stopped", "2 old stopped stopped"), rollout.Step{}},
		{"also if it has not run yet", 1, rollout.Update{Recreate: true}, replicas("1 old preparing stopped"), rollout.Step{}},
		{"and then creates all", 2, rollout.Update{Recreate: true}, replicas("1 old stopped stopped", "2 old stopped stopped"), rollout.Step{Create: 2}},
	} {
		got := rollout.Next(rollout.Input{Desired: c.desired, Revision: "new", Policy: "always", Update: c.update, Replicas: c.have})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

// A replica of the last good revision that does not serve for the moment, because its machine has just come back, stays
// until a new one has proven itself: the new revision may be bad.
func TestGoodReplicasRecoverUntilANewOneIsProven(t *testing.T) {
	good := rollout.Update{Surge: 1, MinAvailable: 2, Good: "old"}
	for _, c := range []struct {
		name    string
		desired int
		update  rollout.Update
		have    []rollout.Replica
		want    rollout.Step
	}{
		{
			"they stay beside those that serve, and a new one starts", 2, good, replicas("1 old backoff", "2 old running"),
			rollout.Step{Surge: 1, Replace: []string{"1"}},
		},
		{"they stay if the new one does not serve", 2, good, replicas("1 old backoff", "2 old preparing", "3 new backoff"), rollout.Step{}},
		{"nor has served for long enough", 2, good, settling(replicas("1 old backoff", "2 old running", "3 new running"), "3"), rollout.Step{}},
		{"they go once it is proven", 2, good, replicas("1 old backoff", "2 old running", "3 new running"), rollout.Step{Stop: []string{"1"}, Surge: 1}},
		{"those of any other revision go at once", 2, good, replicas("1 older backoff", "2 old running"), rollout.Step{Create: 1, Stop: []string{"1"}}},
		{"those without a node go at once", 2, good, replicas("1 old pending", "2 old running"), rollout.Step{Create: 1, Stop: []string{"1"}}},
		{"they make room for a new one that finds none", 2, good, replicas("1 old backoff", "2 old running", "3 new pending"), rollout.Step{Create: 0, Stop: []string{"1"}, Surge: 0}},
		{"of too many, the unproven new ones go first", 2, good, replicas("1 old backoff", "2 old backoff", "3 new preparing", "4 new backoff"), rollout.Step{Stop: []string{"4"}}},
		{"without a surge they go at once", 1, rollout.Update{Good: "old"}, replicas("1 old backoff"), rollout.Step{Create: 1, Stop: []string{"1"}}},
		{"recreate stops them", 1, rollout.Update{Recreate: true, Good: "old"}, replicas("1 old backoff"), rollout.Step{Stop: []string{"1"}}},
	} {
		got := rollout.Next(rollout.Input{Desired: c.desired, Revision: "new", Policy: "always", Update: c.update, Replicas: c.have})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

// The replicas that go are those of the fullest places, new ones included.
func TestRetiredReplicasLeaveTheRestLevel(t *testing.T) {
	have := on(replicas("1 old running", "2 old running", "3 old running", "4 new running"), "a", "b", "c", "a")
	got := rollout.Next(rollout.Input{
		Desired: 3, Revision: "new", Policy: "always", Update: rollout.Update{Surge: 1}, Replicas: have,
		Places: func(node string) []string { return []string{node} },
	})
	if want := []string{"1"}; !slices.Equal(got.Stop, want) {
		t.Errorf("%v go, want %v, which share a node with the new one", got.Stop, want)
	}
}

// update is a workload whose replicas start slowly, fail, and do not always find a node.
type updating struct {
	rollout.Input
	made int
}

// act takes one step and checks that it keeps the promises of an update: it takes no serving replica away that is
// needed, and makes no more than the surge allows.
func (w *updating) act(t *rapid.T, room bool) rollout.Step {
	before, made := w.serving(), w.wanted()
	step := rollout.Next(w.Input)
	w.checkRecovery(t, step)
	going := slices.Clone(step.Stop)
	surge := step.Surge
	inPlace := (step.Surge == 0 || !room) && len(step.Replace) > 0
	if !room {
		surge = 0
	}
	if inPlace {
		going = append(going, step.Replace[0])
	}
	for i := range w.Replicas {
		if slices.Contains(going, w.Replicas[i].UID) {
			w.Replicas[i].Desired = spec.DesiredStopped
		}
	}
	for range step.Create + surge {
		w.create("")
	}
	if inPlace {
		w.create(step.Replace[0])
	}
	after := w.serving()
	switch {
	case w.Update.Recreate:
		if step.Create > 0 && slices.ContainsFunc(w.Replicas, func(r rollout.Replica) bool { return spec.Live(r.Phase) && r.Revision != w.Revision }) {
			t.Fatalf("a new one is created before the outdated ones are gone: %+v", w.Replicas)
		}
	case inPlace && after < min(before, max(w.Update.MinAvailable, w.Desired-1)) && after < before-1,
		inPlace && after < before && after < w.Update.MinAvailable,
		!inPlace && after < min(before, w.Desired):
		t.Fatalf("%+v leaves %d of %d serving replicas; %d are desired", step, after, before, w.Desired)
	}
	if most := w.Desired + w.Update.Surge; w.wanted() > max(most, made) {
		t.Fatalf("%+v makes %d replicas, at most %d may be", step, w.wanted(), most)
	}
	return step
}

// checkRecovery checks that replicas of the last good revision that may serve again stay as long as no new one is proven,
// unless a new one needs their room, there are more than the surge allows, or others serve in their place.
func (w *updating) checkRecovery(t *rapid.T, step rollout.Step) {
	if w.Update.Good == w.Revision || w.Update.Good == "" || w.Update.Surge == 0 || w.Update.Recreate {
		return
	}
	good, outdated := map[string]bool{}, 0
	for _, r := range w.Replicas {
		if spec.Live(r.Phase) && r.Desired == spec.DesiredRunning && r.Revision != w.Revision {
			outdated++
		}
		switch live := spec.Live(r.Phase) && r.Desired == spec.DesiredRunning; {
		case live && r.Revision == w.Revision && (r.Steady || r.Phase == spec.PhasePending && r.Succeeds == ""):
			return
		case live && r.Revision == w.Update.Good && r.Phase != spec.PhasePending:
			good[r.UID] = true
		}
	}
	for _, uid := range step.Stop {
		if good[uid] && outdated <= w.Desired {
			t.Fatalf("%+v stops %s of the last good revision although no new one is proven: %+v", step, uid, w.Replicas)
		}
	}
}

func (w *updating) create(succeeds string) {
	w.made++
	w.Replicas = append(w.Replicas, rollout.Replica{
		UID: fmt.Sprintf("%05d", w.made), Revision: w.Revision, Phase: spec.PhasePending, Desired: spec.DesiredRunning, Succeeds: succeeds,
	})
}

func (w *updating) serving() (n int) {
	for _, r := range w.Replicas {
		if r.Serves && r.Desired == spec.DesiredRunning {
			n++
		}
	}
	return n
}

func (w *updating) wanted() (n int) {
	for _, r := range w.Replicas {
		if spec.Live(r.Phase) && r.Desired == spec.DesiredRunning {
			n++
		}
	}
	return n
}

// advance lets a replica take its next step.
func (w *updating) advance(r *rollout.Replica) {
	switch {
	case spec.Ended(r.Phase):
	case r.Desired == spec.DesiredStopped:
		r.Phase, r.Serves, r.Steady = spec.PhaseStopped, false, false
	case r.Phase == spec.PhasePending:
		if r.Succeeds == "" || !slices.ContainsFunc(w.Replicas, func(o rollout.Replica) bool { return o.UID == r.Succeeds && spec.Live(o.Phase) }) {
			r.Phase, r.Succeeds = spec.PhasePreparing, ""
		}
	case r.Phase != spec.PhaseRunning:
		r.Phase = spec.PhaseRunning
	default:
		r.Steady, r.Serves = r.Serves, true
	}
}

// From every reachable state an update terminates, keeps enough replicas serving, and never makes more than the surge
// allows.
func TestUpdatesKeepServing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &updating{Input: rollout.Input{Revision: "r0", Policy: "always", Desired: rapid.IntRange(1, 6).Draw(t, "desired")}}
		w.Update = rollout.Update{
			Surge:        rapid.IntRange(0, 4).Draw(t, "surge"),
			MinAvailable: rapid.IntRange(0, w.Desired).Draw(t, "minAvailable"),
			Recreate:     rapid.IntRange(0, 5).Draw(t, "recreate") == 0,
		}
		for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch change := rapid.IntRange(0, 11).Draw(t, "change"); {
			case change == 0:
				w.Update.Good = rapid.SampledFrom([]string{"", w.Revision}).Draw(t, "good")
				w.Revision = fmt.Sprint("r", rapid.IntRange(0, i).Draw(t, "revision")) // also back to an earlier one
			case change == 1:
				w.Update.Paused = !w.Update.Paused
			case change < 6 || len(w.Replicas) == 0:
				w.act(t, rapid.Bool().Draw(t, "room"))
			default:
				r := &w.Replicas[rapid.IntRange(0, len(w.Replicas)-1).Draw(t, "replica")]
				if r.Phase == spec.PhaseRunning && rapid.IntRange(0, 3).Draw(t, "crash") == 0 {
					r.Phase, r.Serves, r.Steady = spec.PhaseBackoff, false, false
					continue
				}
				w.advance(r)
			}
		}
		w.Update.Paused = false
		room := w.Update.Surge > 0 // with a surge and a strict minAvailable there must be room
		for n := 0; !w.act(t, room).Settled; n++ {
			if n > 300 {
				if w.Update.Surge == 0 && w.Update.MinAvailable >= w.Desired {
					return // neither way is allowed
				}
				t.Fatalf("does not come to rest: %+v", w.Input)
			}
			for i := range w.Replicas {
				w.advance(&w.Replicas[i])
			}
		}
		for _, r := range w.Replicas {
			if spec.Live(r.Phase) && (r.Revision != w.Revision || !r.Serves) {
				t.Fatalf("settled with %+v", r)
			}
		}
		if w.serving() != w.Desired {
			t.Fatalf("settled with %d of %d", w.serving(), w.Desired)
		}
	})
}

// A replica that must leave its node is stranded if nothing in progress makes up for it.
func TestStranded(t *testing.T) {
	blueGreen := rollout.Update{Surge: 2}
	held := rollout.Update{Surge: 2, Hold: true}
	for _, c := range []struct {
		name   string
		update rollout.Update
		have   []rollout.Replica
		want   bool
	}{
		{"one that is missing is created", blueGreen, leaving(replicas("1 new running", "2 new running"), "2"), false},
		{"others are enough", blueGreen, leaving(replicas("1 new running", "2 new running", "3 new running"), "2"), false},
		{"another one starts", blueGreen, leaving(replicas("1 new running", "2 new running", "3 new preparing"), "2"), false},
		{"another one waits for a node", blueGreen, leaving(replicas("1 new running", "2 new running", "3 new pending"), "2"), false},
		{"another one has yet to prove itself", blueGreen, settling(leaving(replicas("1 new running", "2 new running", "3 new running"), "2"), "3"), false},
		{"another one ends", blueGreen, idle(leaving(replicas("1 new running", "2 new running", "3 old running", "4 old stopping stopped"), "2"), "3"), false},
		{"an outdated one has no traffic", blueGreen, idle(leaving(replicas("1 new running", "2 new running", "3 old running"), "2"), "3"), true},
		{"the new set has no traffic", held, idle(leaving(replicas("1 old running", "2 old running", "3 new running", "4 new running"), "2"), "3", "4"), true},
		{"none must leave", held, idle(replicas("1 old running", "2 old running", "3 new running", "4 new running"), "3", "4"), false},
	} {
		step := rollout.Next(rollout.Input{Desired: 2, Revision: "new", Policy: "always", Update: c.update, Replicas: c.have})
		if step.Stranded != c.want {
			t.Errorf("%s: %+v", c.name, step)
		}
	}
}

// A blue-green update has two sets, and neither makes up for the other. Of earlier releases that are still kept, nothing
// stays when the next one begins.
func TestHeldSetsHaveTheirOwnLimit(t *testing.T) {
	idle := func(rs []rollout.Replica, uids ...string) []rollout.Replica {
		for i := range rs {
			rs[i].Idle = slices.Contains(uids, rs[i].UID)
		}
		return rs
	}
	for _, c := range []struct {
		name    string
		desired int
		have    []rollout.Replica
		stop    []string
	}{
		{"both sets are complete", 2, idle(replicas("1 old running", "2 old running", "3 new running", "4 new running"), "3", "4"), nil},
		{"each gives one up", 1, idle(replicas("1 old running", "2 old running", "3 new running", "4 new running"), "3", "4"), []string{"2", "4"}},
		{
			"the set before the last good one goes, although it is older", 2,
			idle(replicas("1 older running", "2 older running", "3 old running", "4 old running"), "1", "2"),
			[]string{"1", "2"},
		},
	} {
		in := rollout.Input{
			Desired: c.desired, Revision: "new", Policy: "always", Update: rollout.Update{Surge: c.desired, Hold: true}, Replicas: c.have,
		}
		if got := rollout.Next(in).Stop; !slices.Equal(got, c.stop) {
			t.Errorf("%s: %v stop, want %v", c.name, got, c.stop)
		}
	}
}

func restarting(policy string) *v1.WorkloadSpec {
	return &v1.WorkloadSpec{Restart: &v1.Restart{Policy: policy}}
}

// Work that has been done counts as progress: a release whose replicas complete has not failed.
func TestFinishedWorkIsProgress(t *testing.T) {
	have := replicas("1 new completed", "2 new running", "3 new completed stopped", "4 old completed")
	if p := rollout.ProgressOf("new", restarting("on-failure"), 2, have); !p.Complete() || p.Proven != 2 {
		t.Errorf("with one completed and one running it is %+v", p)
	}
	if p := rollout.ProgressOf("new", restarting("always"), 2, have); p.Complete() {
		t.Errorf("of a service that always runs it is %+v", p)
	}
}
