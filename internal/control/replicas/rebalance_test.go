package replicas

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// balanceBy sets how replicas that run are moved.
func (l *led) balanceBy(r *v1.Rebalance) {
	l.t.Helper()
	c := proto.CloneOf(l.snap().Cluster())
	c.Spec.Rebalance = r
	l.change(func(b *state.Batch) { b.Update(c, c.GetMetadata().GetVersion()) })
}

// on counts the running replicas of a workload by node.
func (l *led) on(name string) map[string]int {
	counts := map[string]int{}
	for _, node := range l.running(name) {
		counts[node]++
	}
	return counts
}

// createdWithin is the largest number of replicas that were created for a cause within a time.
func (l *led) createdWithin(cause string, per time.Duration) (most int) {
	var times []time.Time
	for r := range l.snap().Replicas("", "") {
		if at := createdFor(r, cause); !at.IsZero() {
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

// keepServing fails when fewer replicas serve.
func (l *led) keepServing(name string, least int) {
	uid := l.snap().WorkloadByName("default", name).GetMetadata().GetUid()
	l.watch = func() {
		l.t.Helper()
		if got := servingOf(l.snap(), uid); got < least {
			l.t.Fatalf("only %d replicas of %s serve, want %d", got, name, least)
		}
	}
}

// returning is a cluster in which a node comes back that its nine replicas had to leave.
func returning(t *testing.T, how *v1.Rebalance) *led {
	l := newLed(t, "a", "b", "c")
	l.spread("web", 9, func(s *v1.WorkloadSpec) { s.MinAvailable = 9 })
	l.pass(time.Hour)
	l.lose("c")
	l.pass(time.Hour)
	if got := l.on("web"); got["a"] != 5 && got["a"] != 4 || got["c"] != 0 {
		t.Fatalf("without node c, the replicas are on %v", got)
	}
	l.balanceBy(how)
	l.setNode("c", "ready")
	l.keepServing("web", 9)
	return l
}

func TestReturnedNodeGetsNothingByDefault(t *testing.T) {
	l := returning(t, nil)
	l.pass(24 * time.Hour)
	if got := l.on("web"); got["c"] != 0 {
		t.Errorf("the replicas are on %v", got)
	}
}

func TestReturnedNodeGetsWorkAtTheConfiguredRate(t *testing.T) {
	l := returning(t, &v1.Rebalance{Enabled: true, Replicas: new(int32(1)), Per: "5m"})
	l.pass(50 * time.Second)
	if got := l.on("web"); got["c"] != 0 {
		t.Errorf("a node that is back for less than a minute has %v", got)
	}
	for want := range 3 {
		l.pass(30 * time.Second)
		if got := l.on("web"); got["c"] != want+1 {
			t.Fatalf("node c has %d replicas, want %d", got["c"], want+1)
		}
		l.pass(4*time.Minute + 30*time.Second - time.Second)
		if got := l.on("web"); got["c"] != want+1 {
			t.Fatalf("node c has %d replicas before its turn, want %d", got["c"], want+1)
		}
		l.pass(time.Second)
	}
	l.pass(48 * time.Hour)
	if got := l.on("web"); got["a"] != 3 || got["b"] != 3 || got["c"] != 3 {
		t.Errorf("at last the replicas are on %v", got)
	}
	if told := l.told(eventMoving); len(told) != 3 || !strings.Contains(told[0], "to node c, as soon as web-") ||
		!strings.Contains(strings.Join(told, "\n"), "c has 0 other replicas of the workload, a 4") {
		t.Errorf("the events say %q", told)
	}
	if told := l.told(eventMoved); len(told) != 3 || !strings.Contains(told[0], "to node c, where web-") {
		t.Errorf("the events say %q", told)
	}
	l.wantTold(eventStays)
}

// The leader may change at any time: nothing is moved twice, and the rate holds.
func TestNewLeaderGoesOnWithTheMoves(t *testing.T) {
	l := returning(t, &v1.Rebalance{Enabled: true, Replicas: new(int32(2)), Per: "10m"})
	for range 60 {
		l.pass(70 * time.Second)
		l.step() // perhaps a replica is on its way
		l.newLeader()
	}
	if got := l.on("web"); got["a"] != 3 || got["b"] != 3 || got["c"] != 3 {
		t.Errorf("the replicas are on %v", got)
	}
	if most := l.createdWithin(placement.CauseMoved, 10*time.Minute); most > 2 {
		t.Errorf("%d replicas were moved within 10m, want 2", most)
	}
	if told := l.told(eventMoving); len(told) != 3 {
		t.Errorf("the events say %q", told)
	}
}

func TestNothingIsMovedWhileTheClusterIsUnsettled(t *testing.T) {
	for what, disturb := range map[string]func(l *led) (calm func()){
		"a replica that waits for a node": func(l *led) func() {
			l.addWorkload("huge", 1, "1000")
			return func() { l.delete("huge") }
		},
		"a node that drains": func(l *led) func() {
			l.addNode("d", "2")
			l.addOn("other", "d", "2")
			l.lead()
			l.edit("other", func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = 1 })
			l.drain("d", &v1.Drain{})
			return func() { l.setNode("d", "ready"); l.undrain("d") }
		},
		"a node that is offline and whose replicas have no other place": func(l *led) func() {
			l.addNode("d", "2")
			l.addOn("other", "d", "2")
			l.lead()
			l.lose("d")
			return func() { l.setNode("d", "ready") }
		},
	} {
		t.Run(what, func(t *testing.T) {
			l := returning(t, nil)
			calm := disturb(l)
			l.balanceBy(&v1.Rebalance{Enabled: true})
			l.pass(time.Hour)
			if told := l.told(eventMoving); len(told) != 0 {
				t.Fatalf("it moves %q", told)
			}
			calm()
			l.pass(time.Hour)
			if got := l.on("web"); got["c"] != 3 {
				t.Errorf("the replicas are on %v, and %s", got, placement.Unsettled(l.snap()))
			}
		})
	}
}

// addOn creates a workload with one replica that must be on a node.
func (l *led) addOn(name, node, cpu string) {
	made := newWorkload(l.newUID(), name, 1, cpu)
	made.Spec.Placement = &v1.Placement{Labels: map[string]string{"name": node}}
	l.change(func(b *state.Batch) {
		l.revise(b, made)
		b.Create(made)
	})
}

func (l *led) undrain(name string) {
	n := proto.CloneOf(l.snap().NodeByName(name))
	n.Spec = nil
	l.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
}

// What cannot start another replica first, or is about to change anyway, stays where it is.
func TestOnlyServicesThatStartAnotherReplicaFirstAreMoved(t *testing.T) {
	for what, change := range map[string]func(*v1.Workload){
		"a singleton": func(w *v1.Workload) { w.Spec.Singleton, w.Spec.Replicas, w.Spec.MinAvailable = true, proto.Int32(1), 0 },
		"a recreated workload": func(w *v1.Workload) {
			w.Spec.Update, w.Spec.MinAvailable = &v1.Update{Strategy: spec.StrategyRecreate}, 0
		},
		"work that ends":    func(w *v1.Workload) { w.Spec.Restart = &v1.Restart{Policy: "on-failure"} },
		"a daemon":          func(w *v1.Workload) { w.Spec.Kind = spec.KindDaemon },
		"a deleted one":     func(w *v1.Workload) { w.Metadata.DeleteTime = timestamppb.Now() },
		"one that is short": func(w *v1.Workload) { w.Spec.Replicas = proto.Int32(10) },
	} {
		t.Run(what, func(t *testing.T) {
			l := returning(t, nil)
			w := proto.CloneOf(l.snap().WorkloadByName("default", "web"))
			if why := placement.Unmovable(l.snap(), w); why != "" {
				t.Fatalf("it would not be moved anyway: %s", why)
			}
			change(w)
			if placement.Unmovable(l.snap(), w) == "" {
				t.Error("it would be moved")
			}
		})
	}
	d := newDeploying(t, nil)
	if why := placement.Unmovable(d.snap(), d.web()); why != "" {
		t.Fatalf("it would not be moved anyway: %s", why)
	}
	d.release()
	if why := placement.Unmovable(d.snap(), d.web()); why != "its deployment 2 has not ended" {
		t.Errorf("during a deployment: %q", why)
	}
}

// emptier is a cluster in which the score of node b is higher for a replica on node a, by a tenth of a
// weighted sum.
func emptier(t *testing.T, minGain float64) *led {
	l := newLed(t, "a")
	l.spread("ballast", 1, func(s *v1.WorkloadSpec) { s.Resources.Requests.Cpu = "62" })
	l.spread("web", 1, nil)
	l.pass(time.Hour)
	l.edit("ballast", func(_ *state.Batch, of *v1.Workload) { of.Spec.Update = &v1.Update{Strategy: spec.StrategyRecreate} })
	l.balanceBy(&v1.Rebalance{Enabled: true, MinGain: &minGain})
	l.addNode("b", "64")
	l.pass(time.Hour)
	return l
}

func TestReplicaMovesOnlyForEnoughGain(t *testing.T) {
	l := emptier(t, 0.05)
	if got := l.on("web"); got["b"] != 1 {
		t.Fatalf("web is on %v", got)
	}
	l.wantTold(eventMoving, "the score of b is 0.9984, that of a 0.9016, a gain of 0.0968, most of all by utilization, 0.992 to 0.508; 0 % of the CPU of b is promised, 98 % of that of a")
	l = emptier(t, 0.1)
	if got := l.on("web"); got["a"] != 1 {
		t.Fatalf("web is on %v", got)
	}
	l.wantTold(eventMoving)
}

// A replica that does not come up on the better node stops again, and the old one serves on. Then the move is tried more
// and more seldom.
func TestMoveIsGivenUpIfTheNewReplicaDoesNotServe(t *testing.T) {
	l := returning(t, &v1.Rebalance{Enabled: true})
	hang := l.snap().NodeByName("c").GetMetadata().GetUid()
	l.unwell = func(r *v1.Replica) bool { return r.GetSpec().GetNodeUid() == hang }
	l.pass(24 * time.Hour)
	l.watch()
	if got := len(l.running("web")) - l.on("web")["c"]; got != 9 {
		t.Errorf("%d replicas serve, on %v", got, l.on("web"))
	}
	begun, stayed := l.told(eventMoving), l.told(eventStays)
	if len(begun)-len(stayed) > 1 || len(stayed) == 0 || !strings.Contains(stayed[0], "on node c stops: it does not serve") {
		t.Errorf("there are %d moves, %q", len(begun), stayed)
	}
	// Nine replicas, of which each rests 10m, 20m and so on: at most 8 attempts each in a day.
	if len(begun) > 9*8 {
		t.Errorf("%d moves were tried", len(begun))
	}
}

// If the better node has to be left before the new replica serves there, the old one stays and nothing else is started.
func TestMoveIsGivenUpIfTheBetterNodeDrains(t *testing.T) {
	for what, disturb := range map[string]func(l *led){
		"drain": func(l *led) { l.drain("c", &v1.Drain{}) },
		"taint": func(l *led) { l.taint("c", out(l.clock)) },
	} {
		t.Run(what, func(t *testing.T) {
			l := returning(t, &v1.Rebalance{Enabled: true})
			l.untilMoving()
			disturb(l)
			made := l.snap().Count(state.KindReplica)
			l.pass(30 * time.Minute)
			if got := l.on("web"); got["a"]+got["b"] != 9 || l.snap().Count(state.KindReplica) != made {
				t.Errorf("the replicas are on %v, and %d were created", got, l.snap().Count(state.KindReplica)-made)
			}
		})
	}
}

// If fewer replicas are wanted meanwhile, the move ends, too, and no event says that a replica has moved.
func TestMoveIsGivenUpIfFewerReplicasAreWanted(t *testing.T) {
	for what, disturb := range map[string]func(l *led){
		"scale":  func(l *led) { l.scale("web", 8) },
		"delete": func(l *led) { l.delete("web") },
	} {
		t.Run(what, func(t *testing.T) {
			l := returning(t, &v1.Rebalance{Enabled: true})
			l.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = 0 })
			l.watch = nil
			l.untilMoving()
			disturb(l)
			l.pass(time.Second)
			l.wantTold(eventMoved)
			if w := l.snap().WorkloadByName("default", "web"); what == "scale" && servingOf(l.snap(), w.GetMetadata().GetUid()) != 8 || what == "delete" && w != nil {
				t.Errorf("the replicas are on %v", l.on("web"))
			}
		})
	}
}

// untilMoving lets time go by until a replica begins to move.
func (l *led) untilMoving() {
	l.t.Helper()
	for begun := l.clock; len(l.told(eventMoving)) == 0; l.clock = l.clock.Add(time.Second) {
		if l.clock.Sub(begun) > time.Hour {
			l.t.Fatalf("nothing moves")
		}
		l.engine.Elapsed(l.clock)
		l.step()
	}
}

// Some rules chase each other forever. Then replicas are moved ever more seldom.
func TestReplicasThatChaseEachOtherSlowDown(t *testing.T) {
	l := newLed(t, "a", "b")
	l.balanceBy(&v1.Rebalance{Enabled: true})
	l.spread("cat", 1, func(s *v1.WorkloadSpec) {
		s.Placement.Affinity = []*v1.Affinity{{Workload: "mouse", Key: "node", Weight: 5}}
	})
	l.spread("mouse", 1, func(s *v1.WorkloadSpec) {
		s.Placement.Affinity = []*v1.Affinity{{Workload: "cat", Key: "node", Anti: true, Weight: 5}}
	})
	l.pass(48 * time.Hour)
	first := len(l.told(eventMoving))
	if first < 3 {
		t.Fatalf("they do not chase each other: %q", l.told(eventMoving))
	}
	if first > 24 {
		t.Errorf("%d moves in two days", first)
	}
	l.pass(48 * time.Hour)
	if more := len(l.told(eventMoving)) - first; more > 6 {
		t.Errorf("%d more moves in two days", more)
	}
}

// Whatever happens while replicas are moved, services keep what they have, and in the end each has as many replicas as
// wanted and nothing moves any more.
func TestRebalancingKeepsServicesAndConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLed(t, "a", "b", "c", "d")
		l.balanceBy(&v1.Rebalance{Enabled: true, Replicas: new(rapid.Int32Range(1, 3).Draw(t, "rate")), Per: "1m", Rest: "1m", MinGain: new(0.02)})
		names := []string{"web", "api"}
		for _, name := range names {
			l.spread(name, rapid.IntRange(1, 6).Draw(t, "replicas"), func(s *v1.WorkloadSpec) {
				s.Placement.Strategy = rapid.SampledFrom([]string{"spread", "pack", "best-fit"}).Draw(t, "strategy")
			})
		}
		away := map[string]bool{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "node")
			one := rapid.SampledFrom(names).Draw(t, "workload")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				if len(away) < 2 && !away[name] {
					away[name] = true
					l.lose(name)
				}
			case 1:
				if delete(away, name); l.snap().NodeByName(name).GetStatus().GetState() == spec.NodeOffline {
					l.setNode(name, "ready")
				}
			case 2:
				l.scale(one, rapid.Int32Range(0, 8).Draw(t, "scale"))
			case 3:
				l.restart(one)
			default:
				l.newLeader()
			}
			l.pass(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, 10 * time.Minute}).Draw(t, "pause"))
		}
		for name := range maps.Clone(away) {
			l.setNode(name, "ready")
		}
		l.pass(time.Minute)
		was := map[string]int{}
		for _, name := range names {
			was[name] = servingOf(l.snap(), l.snap().WorkloadByName("default", name).GetMetadata().GetUid())
		}
		l.watch = func() {
			for name, least := range was {
				if got := servingOf(l.snap(), l.snap().WorkloadByName("default", name).GetMetadata().GetUid()); got < least {
					t.Fatalf("%d replicas of %s serve, want %d", got, name, least)
				}
			}
		}
		l.pass(40 * time.Minute)
		before := len(l.told(eventMoving))
		l.pass(time.Hour)
		if more := len(l.told(eventMoving)) - before; more > 2 {
			t.Fatalf("%d moves in a cluster in which nothing happens: %q", more, l.told(eventMoving))
		}
		for _, name := range names {
			w := l.snap().WorkloadByName("default", name)
			if why := placement.Unmovable(l.snap(), w); why != "" {
				t.Fatalf("%s is not settled: %s", name, why)
			}
		}
	})
}

// explain is what is said of the only replica of a workload.
func (l *led) explain(name string) string {
	l.t.Helper()
	e, err := placement.Queries{}.Explanation(l.snap(), l.snap().WorkloadByName("default", name).GetMetadata().GetUid(), "", false)
	if err != nil {
		l.t.Fatalf("explain: %v", err)
	}
	return e.GetReplicas()[0].GetReason()
}

func TestExplanationSaysWhetherAReplicaIsMoved(t *testing.T) {
	l := emptier(t, 0.1)
	want := func(suffix string) {
		t.Helper()
		if got := l.explain("web"); !strings.HasSuffix(got, suffix) {
			t.Errorf("it says %q, want %q at the end", got, suffix)
		}
	}
	want("; it is not moved for a gain of 0.0968, because rebalance.minGain is 0.1")
	l.balanceBy(&v1.Rebalance{Enabled: true, MinGain: new(0.05)})
	want("; it is moved when its turn comes, at most 1 within 1m")
	l.addWorkload("huge", 1, "1000")
	l.step()
	want(" of namespace default has no node")
	l.delete("huge")
	l.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.Singleton = true })
	want("; it is not moved now: it is a singleton, which would not run meanwhile")
	l.balanceBy(nil)
	want("; what runs is not moved for that")
}

// The loop wakes by itself when it is time for a move.
func TestLoopMovesReplicasToAReturnedNode(t *testing.T) {
	l := &log{world: newWorld(t)}
	for _, name := range []string{"a", "b", "c"} {
		l.addNode(name, "64")
	}
	l.change(func(b *state.Batch) {
		b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: "cluster", Name: "cloudless"}, Spec: &v1.ClusterSpec{
			Rebalance: &v1.Rebalance{Enabled: true, Per: "2m", Rest: "5m"},
		}})
	})
	l.addWorkload("web", 6, "1")
	_ = runLoop(t, l, func() {
		onC := func() (n int) {
			for _, where := range l.where("web") {
				if where == "c running" {
					n++
				}
			}
			return n
		}
		l.running()
		l.do(func() { l.setNode("c", "offline") })
		l.running()
		if got := onC(); got != 0 {
			t.Fatalf("the offline node has %d replicas that run", got)
		}
		l.do(func() { l.setNode("c", "ready") })
		l.running()
		for want := range 3 {
			if got := onC(); got != min(want, 2) {
				t.Errorf("after %d turns, %d replicas are on the node that is back", want, got)
			}
			for range 120 {
				time.Sleep(time.Second)
				synctest.Wait()
				l.running()
			}
		}
		for minute := range 60 {
			time.Sleep(time.Minute)
			synctest.Wait()
			l.running()
			if got := fmt.Sprint(l.where("web")); got != "[a running a running b running b running c running c running]" {
				t.Fatalf("%d minutes later they are on %s", minute, got)
			}
		}
	})
}
