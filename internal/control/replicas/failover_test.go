package replicas

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// replacedWithin is the largest number of replacements of lost replicas within a time.
func (l *led) replacedWithin(per time.Duration) (most int) {
	var times []time.Time
	for r := range l.snap().Replicas("", "") {
		if at := createdFor(r, placement.CauseLost); !at.IsZero() {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	first := 0
	for i, at := range times {
		for at.Sub(times[first]) >= per {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// spread places one replica of a workload on each node.
func (l *led) spread(name string, nodes int, change func(*v1.WorkloadSpec)) {
	l.t.Helper()
	made := newWorkload(l.newUID(), name, int32(nodes), "1")
	made.Spec.Placement = &v1.Placement{Strategy: "spread"}
	if change != nil {
		change(made.Spec)
	}
	l.change(func(b *state.Batch) {
		l.revise(b, made)
		b.Create(made)
	})
	l.lead()
}

var tenNodes = []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}

func TestLostReplicasAreReplacedAtOnceWithoutALimit(t *testing.T) {
	l := newLed(t, tenNodes...)
	l.spread("web", 40, nil)
	l.pass(time.Hour)
	l.lose("a", "b", "c", "d", "e")
	l.lead()
	if got := len(l.running("web")); got != 40 {
		t.Errorf("%d replicas run, want 40", got)
	}
	l.wantTold("FailoverLimited")
}

func TestLostReplicasAreReplacedAtTheConfiguredRate(t *testing.T) {
	l := newLed(t, tenNodes...)
	l.limit(5, "10s")
	l.spread("web", 40, nil)
	l.pass(time.Hour)
	l.lose("a", "b", "c", "d") // with 16 replicas
	for _, want := range []int{29, 34, 39, 40} {
		l.lead()
		if got := len(l.running("web")); got != want {
			t.Errorf("%d replicas run, want %d", got, want)
		}
		if got := l.engine.Backlog(); got != 40-want {
			t.Errorf("%d replicas wait for their turn, want %d", got, 40-want)
		}
		l.pass(10 * time.Second)
	}
	if most := l.replacedWithin(10 * time.Second); most != 5 {
		t.Errorf("%d replicas were replaced within 10s, want 5", most)
	}
	l.wantTold("FailoverLimited", "11 lost replicas wait: lost replicas are replaced at a limited rate, at most 5 within 10s (failover.replicas and failover.per of the configuration)")
}

// A mass failure is when leaders change, too.
func TestNewLeaderKeepsTheRate(t *testing.T) {
	l := newLed(t, tenNodes...)
	l.limit(5, "10s")
	l.spread("web", 40, nil)
	l.pass(time.Hour)
	l.lose("a", "b", "c", "d")
	for range 40 {
		l.pass(time.Second)
		l.newLeader()
	}
	if most := l.replacedWithin(10 * time.Second); most != 5 {
		t.Errorf("%d replicas were replaced within 10s, want 5", most)
	}
	if got := len(l.running("web")); got != 40 {
		t.Errorf("%d replicas run, want 40", got)
	}
	l.wantTold("FailoverLimited", "11 lost replicas wait")
}

func TestMostImportantLostReplicasGoFirst(t *testing.T) {
	l := newLed(t, tenNodes...)
	l.limit(3, "10s")
	prio := func(priority, keep int32) func(*v1.WorkloadSpec) {
		return func(s *v1.WorkloadSpec) { s.Priority, s.MinAvailable = &priority, keep }
	}
	l.spread("low", 10, prio(50, 10))
	l.spread("web", 10, prio(100, 0))
	l.spread("strict", 10, prio(100, 9)) // may miss one
	l.spread("high", 10, prio(200, 0))
	l.pass(time.Hour)
	l.lose("a", "b")
	count := func() (counts []int) {
		for _, name := range []string{"high", "strict", "web", "low"} {
			counts = append(counts, len(l.running(name)))
		}
		return counts
	}
	for _, want := range [][]int{{10, 9, 8, 8}, {10, 10, 10, 8}, {10, 10, 10, 10}} {
		l.lead()
		if got := count(); !slices.Equal(got, want) {
			t.Errorf("of high, strict, web and low run %v replicas, want %v", got, want)
		}
		l.pass(10 * time.Second)
	}
}

func TestOnlyReplacementsOfLostReplicasAreLimited(t *testing.T) {
	l := newLed(t, tenNodes...)
	l.limit(1, "1h")
	l.spread("web", 10, nil)
	l.spread("api", 10, nil)
	l.pass(time.Hour)
	l.lose("a", "b", "c")
	l.lead()
	l.spread("calm", 7, nil)
	l.addWorkload("new", 5, "1")
	l.restart("api")
	l.setNode("d", "draining")
	l.pass(time.Minute)
	if got := len(l.running("new")); got != 5 {
		t.Errorf("%d replicas of a new workload run, want 5", got)
	}
	for r := range l.snap().ReplicasOf(l.snap().WorkloadByName("default", "api").GetMetadata().GetUid()) {
		if placement.Wanted(r) && !placement.Away(l.snap(), r) && r.GetSpec().GetRevision() != 2 {
			t.Errorf("replica %s is still of revision %d", r.GetMetadata().GetName(), r.GetSpec().GetRevision())
		}
	}
	if slices.Contains(l.running("calm"), "d") {
		t.Error("a replica has not left the draining node")
	}
	if got := l.replacedWithin(time.Hour); got != 1 {
		t.Errorf("%d lost replicas were replaced, want 1", got)
	}
}

func TestAnotherLimitTakesEffectAtOnce(t *testing.T) {
	for what, lift := range map[string]func(*led){
		"a higher limit": func(l *led) { l.limit(100, "1h") },
		"no limit":       func(l *led) { l.limit(0, "") },
		"a shorter time": func(l *led) { l.limit(1, "1s") },
	} {
		l := newLed(t, tenNodes...)
		l.limit(1, "1h")
		l.spread("web", 10, nil)
		l.pass(2 * time.Hour)
		l.lose("a", "b", "c")
		l.pass(10 * time.Second)
		if got := len(l.running("web")); got != 8 {
			t.Fatalf("%d replicas run, want 8", got)
		}
		lift(l)
		l.pass(2 * time.Second)
		if got := len(l.running("web")); got != 10 || l.engine.Backlog() != 0 {
			t.Errorf("%s: %d replicas run and %d wait, want 10 and 0", what, got, l.engine.Backlog())
		}
	}
}

// A replica that fits nowhere must not hold up others.
func TestReplicaWithoutAPlaceTakesNoTurn(t *testing.T) {
	l := newLed(t, tenNodes...)
	l.limit(2, "1h")
	l.spread("big", 2, func(s *v1.WorkloadSpec) {
		s.Priority = proto.Int32(200)
		s.Placement = &v1.Placement{Labels: map[string]string{"name": "a"}}
	})
	l.spread("web", 20, nil)
	l.pass(2 * time.Hour)
	l.lose("a")
	l.lead()
	if got := len(l.running("web")); got != 20 {
		t.Errorf("%d replicas run, want 20", got)
	}
}

// The clock of an earlier leader may have been wrong. That must not hold up anything for long.
func TestWrongClockOfAnEarlierLeaderHoldsNothingUp(t *testing.T) {
	l := newLed(t, tenNodes...)
	l.limit(2, "1m")
	l.spread("web", 10, nil)
	l.clock = l.clock.Add(5 * time.Hour)
	l.lose("a", "b", "c", "d", "e")
	l.lead()
	l.clock = l.clock.Add(-5 * time.Hour)
	l.newLeader()
	l.pass(3 * time.Minute)
	if got := len(l.running("web")); got != 10 {
		t.Errorf("%d replicas run, want 10", got)
	}

	k := newKilling(t, 1, 5*time.Second, tenNodes...)
	k.clock = k.clock.Add(5 * time.Hour)
	k.pass(2 * time.Minute)
	k.restart("bad")
	k.pass(20 * time.Second)
	if k.held("bad") == nil {
		t.Fatal("nothing waits")
	}
	k.clock, k.fuse = k.clock.Add(-5*time.Hour), time.Hour
	k.newLeader()
	k.pass(5 * time.Second)
	if got := len(k.running("bad")); got != 1 {
		t.Errorf("%d replicas of the suspect run, want 1", got)
	}
}

// Whatever happens, no more replicas are replaced than the limit allows, and in the end every
// workload is as desired.
func TestRateHoldsInAnyWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLed(t, tenNodes...)
		most, per := rapid.Int32Range(1, 6).Draw(t, "most"), rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute}).Draw(t, "per")
		l.limit(most, spec.FormatDuration(per))
		for i, name := range workloadNames {
			l.spread(name, 10, func(s *v1.WorkloadSpec) {
				s.Priority, s.MinAvailable = proto.Int32(int32(100*i)), rapid.Int32Range(0, 10).Draw(t, "minAvailable")
			})
		}
		l.pass(time.Hour)
		for range rapid.IntRange(1, 12).Draw(t, "acts") {
			switch rapid.SampledFrom([]string{"lose", "lose", "return", "restart", "lead", "scale"}).Draw(t, "act") {
			case "lose":
				node := rapid.SampledFrom(tenNodes[1:]).Draw(t, "node")
				if l.snap().NodeByName(node).GetStatus().GetState() == spec.NodeReady {
					l.lose(node)
				}
			case "return":
				l.setNode(rapid.SampledFrom(tenNodes).Draw(t, "node"), spec.NodeReady)
			case "restart":
				l.restart(rapid.SampledFrom(workloadNames).Draw(t, "workload"))
			case "scale":
				l.scale(rapid.SampledFrom(workloadNames).Draw(t, "workload"), rapid.Int32Range(0, 20).Draw(t, "replicas"))
			case "lead":
				l.newLeader()
			}
			l.pass(rapid.SampledFrom([]time.Duration{0, time.Second, 5 * time.Second, time.Minute}).Draw(t, "pause"))
		}
		l.pass(3 * time.Hour)
		if got := l.replacedWithin(per); got > int(most) {
			t.Fatalf("%d lost replicas were replaced within %s, want at most %d", got, per, most)
		}
		if got := l.engine.Backlog(); got != 0 {
			t.Fatalf("%d lost replicas still wait for their turn", got)
		}
		for of := range l.snap().Workloads("", "") {
			if got := len(l.running(of.GetMetadata().GetName())); got != int(of.GetSpec().GetReplicas()) {
				t.Fatalf("%d replicas of %s run, want %d", got, of.GetMetadata().GetName(), of.GetSpec().GetReplicas())
			}
		}
	})
}
