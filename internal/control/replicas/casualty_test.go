package replicas

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// killing is a world in which a workload takes down every node on which it has run for a while.
type killing struct {
	*led
	fuse time.Duration
	// killed are the nodes that it took down, in order, and at when.
	killed []string
	at     []time.Time
}

func newKilling(t fatal, replicas int32, fuse time.Duration, nodes ...string) *killing {
	k := &killing{led: newLed(t, nodes...), fuse: fuse}
	k.spread("bad", int(replicas), nil)
	return k
}

// pass lets time go by, one second at a time.
func (k *killing) pass(length time.Duration) {
	for end := k.clock.Add(length); k.clock.Before(end); {
		k.led.pass(time.Second)
		for r := range k.snap().ReplicasOf(k.snap().WorkloadByName("default", "bad").GetMetadata().GetUid()) {
			n := k.snap().Node(r.GetSpec().GetNodeUid())
			if r.GetStatus().GetPhase() == spec.PhaseRunning && n.GetStatus().GetState() == spec.NodeReady && k.clock.Sub(r.GetStatus().GetStartTime().AsTime()) >= k.fuse {
				k.lose(n.GetMetadata().GetName())
				k.killed, k.at = append(k.killed, n.GetMetadata().GetName()), append(k.at, k.clock)
			}
		}
	}
}

// pauses are the times between the losses of the nodes, without the time that the program ran.
func (k *killing) pauses() (all []time.Duration) {
	for i := 1; i < len(k.at); i++ {
		all = append(all, (k.at[i].Sub(k.at[i-1]) - k.fuse).Round(time.Minute))
	}
	return all
}

func TestCrashingWorkloadDoesNotTakeDownNodeAfterNode(t *testing.T) {
	k := newKilling(t, 1, 5*time.Second, tenNodes...)
	k.pass(2 * time.Hour)
	want := []time.Duration{0, time.Minute, 2 * time.Minute, 5 * time.Minute, 9 * time.Minute, 18 * time.Minute, 34 * time.Minute, 34 * time.Minute}
	if got := k.pauses(); !slices.EqualFunc(got, want, func(a, b time.Duration) bool { return (a - b).Abs() <= time.Minute+b/4 }) {
		t.Errorf("it took down %q with pauses of %v, want about %v", k.killed, got, want)
	}
	held := k.held("bad")
	reason := held.GetStatus().GetReason()
	for _, part := range []string{"waits until 2026-01-01 0", "its last 9 nodes (", "were lost soon after a replica had started there; fix it, or try at once: cloudless workload restart bad"} {
		if !strings.Contains(reason, part) {
			t.Errorf("the waiting replica says %q, want %q in it", reason, part)
		}
	}
	if got := k.told("Delayed"); len(got) != len(k.killed)-1 {
		t.Errorf("the events of %d pauses say %q", len(k.killed)-1, got)
	}
}

// Leaders may change at any time, and retention deletes ended replicas.
func TestNewLeaderRemembersWhatWorkloadsTookDown(t *testing.T) {
	k := newKilling(t, 1, 5*time.Second, tenNodes...)
	for range 120 {
		k.pass(30 * time.Second)
		for r := range k.snap().Replicas("", "") {
			if spec.Ended(r.GetStatus().GetPhase()) {
				k.change(func(b *state.Batch) { b.Delete(state.KindReplica, r.GetMetadata().GetUid()) })
			}
		}
		k.newLeader()
	}
	if got := len(k.killed); got > 8 {
		t.Errorf("within an hour it took down %d nodes: %v", got, k.pauses())
	}
	if got := len(k.told("Delayed")); got != len(k.killed)-1 {
		t.Errorf("%d events about %d pauses", got, len(k.killed)-1)
	}
}

// With many replicas, each attempt costs one node.
func TestReplicasOfASuspectAreTriedOneAtATime(t *testing.T) {
	nodes := slices.Clone(tenNodes)
	for _, name := range tenNodes {
		nodes = append(nodes, name+"2")
	}
	k := newKilling(t, 4, 5*time.Second, nodes...)
	k.pass(time.Minute)
	if got := len(k.killed); got != 8 {
		t.Fatalf("at first it took down %q, want 8 nodes", k.killed)
	}
	k.pass(time.Hour)
	for i := 9; i < len(k.at); i++ {
		if pause := k.at[i].Sub(k.at[i-1]); pause < time.Minute {
			t.Errorf("node %s was taken down %s after %s", k.killed[i], pause, k.killed[i-1])
		}
	}
	if got := len(k.killed); got < 11 || got > 14 {
		t.Errorf("in an hour it took down %q", k.killed)
	}
}

func TestNewRevisionOfASuspectStartsAtOnce(t *testing.T) {
	k := newKilling(t, 1, 5*time.Second, tenNodes...)
	k.pass(3 * time.Minute)
	if k.held("bad") == nil {
		t.Fatalf("nothing waits")
	}
	k.restart("bad")
	k.fuse = time.Hour
	k.pass(2 * time.Second)
	if got := len(k.running("bad")); got != 1 {
		t.Errorf("%d replicas run, want 1", got)
	}
}

// Once a replica has survived, the others follow, and its past is forgotten.
func TestSuspicionWearsOff(t *testing.T) {
	nodes := slices.Clone(tenNodes)
	for _, name := range tenNodes {
		nodes = append(nodes, name+"2")
	}
	k := newKilling(t, 3, 5*time.Second, nodes...)
	k.pass(30 * time.Second)
	k.fuse = 1000 * time.Hour
	k.pass(5 * time.Minute)
	if got := len(k.running("bad")); got != 3 {
		t.Fatalf("%d replicas run, want 3", got)
	}
	k.pass(time.Hour)
	node := k.running("bad")[0]
	k.lose(node)
	k.led.pass(time.Second)
	if got := k.running("bad"); len(got) != 3 {
		t.Errorf("after another loss, replicas run on %q, want 3", got)
	}
}

// None of these losses says anything about the workload.
func TestHealthyWorkloadIsNotPunished(t *testing.T) {
	at := func(l *led) string { return l.running("web")[0] }
	for what, c := range map[string]struct {
		ran  time.Duration
		lose func(l *led, node string)
	}{
		"its nodes are lost after it has run for long": {2 * time.Minute, func(l *led, node string) { l.lose(node) }},
		"its nodes announce that they go": {5 * time.Second, func(l *led, node string) {
			l.editNode(node, func(n *v1.Node) { n.Status.SaidGoodbye = true })
			l.lose(node)
		}},
		"its nodes drain": {5 * time.Second, func(l *led, node string) {
			l.editNode(node, func(n *v1.Node) { n.Spec = &v1.NodeSpec{Availability: spec.AvailabilityDraining} })
			l.lose(node)
		}},
		"whole zones are lost": {5 * time.Second, func(l *led, node string) {
			others := slices.DeleteFunc(slices.Clone(tenNodes), func(name string) bool {
				n := l.snap().NodeByName(name)
				return name == node || n.GetStatus().GetState() != spec.NodeReady || slices.ContainsFunc(slices.Collect(l.snap().ReplicasOn(n.GetMetadata().GetUid())), func(*v1.Replica) bool { return true })
			})
			l.lose(node, others[0], others[1])
		}},
		"the agents never heard of the replicas": {5 * time.Second, func(l *led, node string) {
			for r := range l.snap().ReplicasOn(l.snap().NodeByName(node).GetMetadata().GetUid()) {
				silent := proto.CloneOf(r)
				silent.Status = &v1.ReplicaStatus{Phase: spec.PhasePlaced}
				l.change(func(b *state.Batch) { b.Update(silent, r.GetMetadata().GetVersion()) })
			}
			l.lose(node)
		}},
	} {
		l := newLed(t, tenNodes...)
		l.spread("web", 1, nil)
		for i := range 3 {
			l.pass(c.ran)
			c.lose(l, at(l))
			l.pass(time.Second)
			if got := len(l.running("web")); got != 1 {
				t.Errorf("if %s, nothing runs after loss %d: %v", what, i+1, l.told("Delayed"))
				break
			}
		}
	}
}

// A workload that happens to share the nodes with the one to blame goes on elsewhere.
func TestBystanderOfASuspectGoesOn(t *testing.T) {
	l := newLed(t, tenNodes...)
	k := &killing{led: l, fuse: 5 * time.Second}
	pack := func(s *v1.WorkloadSpec) { s.Placement = &v1.Placement{Strategy: "pack"} }
	l.spread("web", 1, pack)
	l.pass(time.Hour)
	l.spread("bad", 1, pack)
	if got := l.running("bad"); !slices.Equal(got, l.running("web")) {
		t.Fatalf("they run on %q and %q, want the same node", got, l.running("web"))
	}
	down := 0
	for range 3600 {
		k.pass(time.Second)
		if len(l.running("web")) == 0 {
			down++
		}
	}
	if down > 60 {
		t.Errorf("the other workload was down for %d s of an hour, in which %q were lost: %q", down, k.killed, l.told("Delayed"))
	}
}

func TestSingletonAndJobOfASuspectWaitToo(t *testing.T) {
	for what, change := range map[string]func(*v1.WorkloadSpec){
		"singleton": func(s *v1.WorkloadSpec) { s.Singleton = true },
		"job":       func(s *v1.WorkloadSpec) { s.Kind, s.Restart = spec.KindJob, nil },
	} {
		k := &killing{led: newLed(t, tenNodes...), fuse: 5 * time.Second}
		k.spread("bad", 1, func(s *v1.WorkloadSpec) {
			change(s)
			normal := spec.Normalized(s)
			proto.Reset(s)
			proto.Merge(s, normal)
		})
		k.pass(time.Hour)
		if got := len(k.killed); got < 5 || got > 8 {
			t.Errorf("a %s took down %q within an hour: %v", what, k.killed, k.pauses())
		}
	}
}

// evict lets the node of each running replica of a workload evict it.
func (l *led) evict(name string) (evicted bool) {
	for r := range l.snap().ReplicasOf(l.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
		if r.GetStatus().GetPhase() != spec.PhaseRunning {
			continue
		}
		gone := proto.CloneOf(r)
		gone.Status.Phase, gone.Status.Reason = spec.PhaseStopped, "Evicted: the machine was short of memory."
		l.change(func(b *state.Batch) { b.Update(gone, r.GetMetadata().GetVersion()) })
		evicted = true
	}
	return evicted
}

func TestEvictedReplicaDoesNotWanderWithoutAPause(t *testing.T) {
	for _, leaders := range []string{"one leader", "many leaders"} {
		l := newLed(t, tenNodes...)
		l.spread("hog", 1, nil)
		evictions := 0
		for range 3600 {
			l.pass(time.Second)
			if l.evict("hog") {
				evictions++
			}
			if leaders == "many leaders" {
				l.newLeader()
			}
		}
		if evictions < 5 || evictions > 8 {
			t.Errorf("with %s, it was evicted %d times within an hour", leaders, evictions)
		}
		saysWhyEvictedWaits(t, l)
	}
}

func saysWhyEvictedWaits(t *testing.T, l *led) {
	t.Helper()
	if reason := l.held("hog").GetStatus().GetReason(); !strings.Contains(reason, "replicas in a row were evicted for lack of memory soon after they had started (on ") {
		t.Errorf("the waiting replica says %q", reason)
	}
	// An eviction after a long time is no reason to wait.
	l.restart("hog")
	l.pass(time.Hour)
	l.evict("hog")
	l.pass(time.Second)
	l.pass(time.Hour)
	l.evict("hog")
	l.pass(time.Second)
	if got := len(l.running("hog")); got != 1 {
		t.Errorf("%d replicas run, want 1", got)
	}
}

func TestPausesDoubleUpToHalfAnHour(t *testing.T) {
	for times, want := range []time.Duration{0, 0, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
		for _, workload := range []string{"", "a", "b", "c"} {
			if got := placement.Pause(times, workload); got < want || got > want+want/4 {
				t.Errorf("after %d in a row the pause is %s, want %s and at most a quarter more", times, got, want)
			}
		}
	}
	if got := placement.Pause(1000, ""); got > 38*time.Minute {
		t.Errorf("the longest pause is %s", got)
	}
}
