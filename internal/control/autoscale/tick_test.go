package autoscale

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
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// fatal is what tests and properties have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// world is a state with one service, whose replicas a test starts, loads and silences.
type world struct {
	t      fatal
	store  *state.Store
	index  uint64
	uids   int
	now    time.Time
	memory *Memory
	// load is how much CPU all serving replicas use together, in CPUs.
	load float64
	// silent are the replicas that nothing is measured of.
	silent map[string]bool
	// requests a second; less than 0 if they are not known. lastRequest is when one came.
	requests    float64
	lastRequest time.Time
	woken       map[string]bool
	events      []*v1.Event
}

// newWorld has a service web, whose replicas request half a CPU.
func newWorld(t fatal, replicas int32, a *v1.Autoscale, change ...func(*v1.WorkloadSpec)) *world {
	t.Helper()
	w := &world{t: t, store: state.New(), now: noon, memory: NewMemory(), silent: map[string]bool{}, requests: -1, lastRequest: noon}
	s := &v1.WorkloadSpec{
		Image: "a:1", Replicas: proto.Int32(replicas), Autoscale: a, Ports: []*v1.Port{{Port: 80}},
		Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "500m", Memory: "100Mi"}},
	}
	for _, f := range change {
		f(s)
	}
	made := &v1.Workload{Metadata: &v1.Metadata{Uid: "web", Name: "web", Namespace: "default"}, Spec: s, Status: &v1.WorkloadStatus{RevisionUid: "r1"}}
	if err := spec.Validate(made); err != nil {
		t.Fatalf("the workload is not valid: %v", err)
	}
	spec.Normalize(made)
	w.do(func(b *state.Batch) {
		b.Create(&v1.Revision{Metadata: &v1.Metadata{Uid: "r1", Name: "web-1", Namespace: "default"}, Spec: &v1.RevisionSpec{WorkloadUid: "web", Number: 1, Workload: made.GetSpec()}})
		b.Create(made)
		b.Create(&v1.Service{Metadata: &v1.Metadata{Uid: "svc", Name: "web", Namespace: "default"}, Spec: &v1.ServiceSpec{}, Status: &v1.ServiceStatus{}})
		b.Create(&v1.Route{
			Metadata: &v1.Metadata{Uid: "route", Name: "web", Namespace: "default"},
			Spec:     &v1.RouteSpec{Host: "web.example.org", Backends: []*v1.RouteBackend{{Service: "web"}}}, Status: &v1.RouteStatus{},
		})
		b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: "n1", Name: "n1"}, Status: &v1.NodeStatus{State: spec.NodeReady}})
	})
	w.start()
	return w
}

func (w *world) newUID() string {
	w.uids++
	return fmt.Sprintf("%08d-0000-7000-8000-0000%08d", w.uids, w.uids)
}

func (w *world) do(build func(*state.Batch)) {
	w.t.Helper()
	var b state.Batch
	build(&b)
	w.apply(&b)
}

func (w *world) apply(b *state.Batch) {
	w.t.Helper()
	w.index++
	tx := proto.CloneOf(b.Transaction(w.now))
	if err := state.Validate(tx); err != nil {
		w.t.Fatalf("the changes are not valid: %v", err)
	}
	result, err := w.store.Apply(w.index, tx)
	if err != nil || len(result.LeftOut) > 0 {
		w.t.Fatalf("the changes do not fit to the state they were made from: %v %v", err, result.LeftOut)
	}
	for _, change := range tx.GetChanges() {
		if e := change.GetPut().GetEvent(); e != nil {
			w.events = append(w.events, e)
		}
	}
}

func (w *world) web() *v1.Workload { return w.store.Snapshot().Workload("web") }

func (w *world) replicas() int { return int(spec.Replicas(w.web())) }

func (w *world) change(f func(*v1.Workload)) {
	w.t.Helper()
	w.do(func(b *state.Batch) {
		now := proto.CloneOf(w.web())
		f(now)
		b.Update(now, w.web().GetMetadata().GetVersion())
	})
}

// start makes as many replicas serve as are wanted.
func (w *world) start() {
	w.t.Helper()
	w.place(w.replicas(), w.replicas())
}

// place makes the service have some replicas, of which the first ones serve.
func (w *world) place(all, serving int) {
	w.t.Helper()
	w.do(func(b *state.Batch) {
		n := 0
		for r := range w.store.Snapshot().ReplicasOf("web") {
			if n++; n > all {
				b.Delete(state.KindReplica, r.GetMetadata().GetUid())
				continue
			}
			phase := spec.PhasePreparing
			if n <= serving {
				phase = spec.PhaseRunning
			}
			if r.GetStatus().GetPhase() != phase {
				b.Update(state.RenewReplica(r, &v1.ReplicaStatus{Phase: phase}), r.GetMetadata().GetVersion())
			}
		}
		for ; n < all; n++ {
			phase := spec.PhasePreparing
			if n < serving {
				phase = spec.PhaseRunning
			}
			uid := w.newUID()
			b.Create(&v1.Replica{
				Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid[:8], Namespace: "default"},
				Spec:     &v1.ReplicaSpec{WorkloadUid: "web", Workload: "web", RevisionUid: "r1", NodeUid: "n1", Node: "n1", Desired: spec.DesiredRunning},
				Status:   &v1.ReplicaStatus{Phase: phase},
			})
		}
		b.Put(proto.CloneOf(w.store.Snapshot().Node("n1")))
	})
}

func (w *world) serving() (uids []string) {
	for r := range w.store.Snapshot().ReplicasOf("web") {
		if spec.Serves(r) {
			uids = append(uids, r.GetMetadata().GetUid())
		}
	}
	return uids
}

func (w *world) measured(_ *v1.Workload, s spec.Scaling) Measured {
	m := Measured{Replicas: map[string]Usage{}, RequestsKnown: w.requests >= 0, Requests: max(0, w.requests)}
	m.Quiet = m.RequestsKnown && w.requests == 0 && w.now.Sub(w.lastRequest) >= s.Idle
	serving := w.serving()
	for _, uid := range serving {
		if !w.silent[uid] {
			m.Replicas[uid] = Usage{CPU: w.load / float64(len(serving)), CPUKnown: true, Memory: 50 << 20, MemoryKnown: true, Metric: w.load, MetricKnown: true}
		}
	}
	return m
}

// tick ticks once and applies the decision, without starting replicas.
func (w *world) tick() {
	w.t.Helper()
	in := Input{Now: w.now, Measured: w.measured, Woken: w.woken}
	batch := Tick(in, w.store.Snapshot(), w.memory, w.newUID)
	if batch.Len() > 0 {
		w.apply(batch)
	}
	w.woken = nil
	if w.requests > 0 {
		w.lastRequest = w.now
	}
}

// pass lets time pass, with replicas that start at once.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.tick()
		w.start()
		w.now = w.now.Add(Period)
	}
}

func (w *world) want(replicas int) {
	w.t.Helper()
	if got := w.replicas(); got != replicas {
		w.t.Fatalf("it has %d replicas, want %d (%s)", got, replicas, w.web().GetStatus().GetScale())
	}
}

func (w *world) lastEvent(reason string, parts ...string) {
	w.t.Helper()
	if len(w.events) == 0 {
		w.t.Fatalf("there is no event %s", reason)
	}
	last := w.events[len(w.events)-1].GetSpec()
	for _, part := range append(parts, "") {
		if last.GetReason() != reason || !strings.Contains(last.GetMessage(), part) {
			w.t.Fatalf("the last event is %s: %q, want %s: %q", last.GetReason(), last.GetMessage(), reason, part)
		}
	}
}

func byCPU(least, most int32) *v1.Autoscale {
	return &v1.Autoscale{Min: proto.Int32(least), Max: most, Cpu: "50%"}
}

func TestLoadScalesOutAtOnceAndInAfterTheWindow(t *testing.T) {
	w := newWorld(t, 1, byCPU(1, 10))
	w.load = 0.1
	w.pass(time.Minute)
	w.want(1)
	w.load = 1 // four replicas at a quarter of a CPU
	w.tick()
	w.want(4)
	w.lastEvent(eventOut, "from 1 to 4 replicas", "cpu is 200% and should be 50%")
	w.start()
	w.pass(time.Minute)
	w.want(4)
	w.load = 0.25
	w.pass(4 * time.Minute)
	w.want(4)
	w.pass(2 * time.Minute)
	w.want(1)
	w.lastEvent(eventIn, "from 4 to 1 replica", "no more were needed within 5m", "1 is the fewest")
	if len(w.events) != 2 {
		t.Errorf("there are %d events", len(w.events))
	}
}

func TestSmallDifferencesChangeNothing(t *testing.T) {
	w := newWorld(t, 4, byCPU(1, 10))
	for _, load := range []float64{1.09, 0.91, 1} {
		w.load = load
		w.pass(10 * time.Minute)
		w.want(4)
	}
	if len(w.events) != 0 {
		t.Errorf("there are events: %v", w.events)
	}
}

func TestOneStepAtMostDoublesOrAddsFour(t *testing.T) {
	w := newWorld(t, 1, byCPU(1, 100))
	w.load = 20 // 80 replicas
	for before := 1; before < 80; before = w.replicas() {
		w.tick()
		w.start()
		if got := w.replicas(); got > max(2*before, before+4) {
			t.Fatalf("a step goes from %d to %d", before, got)
		}
		w.now = w.now.Add(Period)
		if w.now.Sub(noon) > 2*time.Minute {
			t.Fatalf("after %s it has %d replicas", w.now.Sub(noon), w.replicas())
		}
	}
	if m := w.events[0].GetSpec().GetMessage(); !strings.Contains(m, "that takes 80, and a step at most doubles or adds 4") {
		t.Errorf("the first step is explained as %q", m)
	}
}

// Replicas that start do not serve the load yet: that the old ones are busy until then is no reason for even more.
func TestStartingReplicasAreWaitedFor(t *testing.T) {
	w := newWorld(t, 2, byCPU(1, 20))
	w.load = 1 // four
	w.tick()
	w.want(4)
	for range 20 {
		w.place(4, 2)
		w.tick()
		w.now = w.now.Add(Period)
	}
	w.want(4)
}

func TestUpWindowDelaysScalingOut(t *testing.T) {
	a := byCPU(1, 10)
	a.UpWindow = "1m"
	w := newWorld(t, 1, a)
	w.load = 1
	w.pass(30 * time.Second)
	w.load = 0.2 // a peak that has passed
	w.pass(time.Minute)
	w.want(1)
	w.load = 1
	w.pass(50 * time.Second)
	w.want(1)
	w.pass(30 * time.Second)
	w.want(4)
}

func TestMissingMeasurementsKeepReplicas(t *testing.T) {
	w := newWorld(t, 4, byCPU(1, 10))
	w.load = 0
	silent := w.serving()[0]
	w.silent[silent] = true
	w.pass(20 * time.Minute)
	w.want(1) // the silent one counts as one at its target
	w = newWorld(t, 4, byCPU(1, 10))
	for _, uid := range w.serving() {
		w.silent[uid] = true
	}
	w.pass(time.Hour)
	w.want(4)
	w.lastEvent(eventMissing, "it stays at 4 replicas, because nothing is known of cpu")
	if len(w.events) != 1 || w.web().GetStatus().GetScale().GetMissing() != "cpu" {
		t.Errorf("%d events, status %v", len(w.events), w.web().GetStatus().GetScale())
	}
	clear(w.silent)
	w.load = 1
	w.pass(10 * time.Second)
	if missing := w.web().GetStatus().GetScale().GetMissing(); missing != "" {
		t.Errorf("after it is measured again, %s is missing", missing)
	}
	w.load = 0.1
	w.pass(4 * time.Minute)
	w.want(4) // the window begins when it is measured
}

// A clock that is set back does not keep anything from being measured.
func TestClockThatIsSetBackHidesNoReplica(t *testing.T) {
	w := newWorld(t, 1, byCPU(1, 4))
	w.load = 0.35
	w.pass(time.Minute)
	w.place(0, 0) // others follow
	w.start()
	w.pass(Period)
	w.now = w.now.Add(-time.Hour)
	w.pass(2 * warmUp)
	if missing := w.web().GetStatus().GetScale().GetMissing(); missing != "" {
		t.Errorf("%s is missing", missing)
	}
	w.load = 2
	w.pass(2 * warmUp)
	w.want(4)
}

// One unknown target keeps the replicas, but does not hinder another one to ask for more.
func TestUnknownTargetHoldsAndAnotherScalesOut(t *testing.T) {
	a := byCPU(1, 10)
	a.Requests = 100
	w := newWorld(t, 3, a)
	w.load = 0.1
	w.pass(20 * time.Minute)
	w.want(3)
	w.load = 2
	w.pass(30 * time.Second)
	w.want(8)
}

func TestLargestAnswerCounts(t *testing.T) {
	a := byCPU(1, 10)
	a.Requests, a.Metric = 100, &v1.AutoscaleMetric{Name: "queue", Port: 90, Value: 1}
	w := newWorld(t, 2, a)
	w.load, w.requests = 0.75, 670 // three by CPU, two by the metric, seven by requests
	w.tick()
	w.want(6) // a step
	w.start()
	w.pass(10 * time.Second)
	w.want(7)
	w.lastEvent(eventOut, "requests is 112/s and should be 100/s")
}

func TestNothingIsScaledInDuringADeployment(t *testing.T) {
	w := newWorld(t, 4, byCPU(1, 10))
	w.do(func(b *state.Batch) {
		b.Create(&v1.Deployment{
			Metadata: &v1.Metadata{Uid: "d1", Name: "web-1", Namespace: "default"}, Spec: &v1.DeploymentSpec{WorkloadUid: "web", RevisionUid: "r1", Number: 1},
			Status: &v1.DeploymentStatus{Phase: spec.DeploymentRunning},
		})
	})
	w.change(func(web *v1.Workload) { web.Status.DeploymentUid = "d1" })
	w.pass(time.Hour)
	w.want(4)
	w.load = 2
	w.pass(10 * time.Second)
	w.want(8) // but out
}

func TestBoundsAndMinAvailableHold(t *testing.T) {
	w := newWorld(t, 4, byCPU(1, 6), func(s *v1.WorkloadSpec) { s.MinAvailable = 3 })
	w.pass(time.Hour)
	w.want(3)
	w.load = 100
	w.pass(time.Minute)
	w.want(6)
	w.lastEvent(eventOut, "6 is the most that it may have")
	w.change(func(web *v1.Workload) { web.Spec.Autoscale.Max = 4 })
	w.want(4) // at once
	w.tick()
	w.lastEvent(eventIn, "from 6 to 4 replicas", "from 3 to 4 replicas by cpu 50%")
}

// A new leader has measured nothing, and holds for a whole window.
func TestNewLeaderHoldsForAWindow(t *testing.T) {
	w := newWorld(t, 4, byCPU(1, 10))
	w.load = 0.1
	w.pass(4 * time.Minute)
	w.memory = NewMemory()
	w.pass(4 * time.Minute)
	w.want(4)
	w.pass(2 * time.Minute)
	w.want(1)
}

func TestServiceSleepsWithoutRequestsAndIsWoken(t *testing.T) {
	w := newWorld(t, 1, &v1.Autoscale{Min: proto.Int32(0), Max: 5, Cpu: "50%", Idle: "2m"})
	w.pass(time.Hour) // unknown is not zero
	w.want(1)
	w.requests, w.lastRequest = 0, w.now
	w.pass(110 * time.Second)
	w.want(1)
	w.pass(time.Minute)
	w.want(0)
	w.lastEvent(eventZero, "no request came for 2m; the next one wakes it")
	if !spec.Asleep(w.web()) {
		t.Error("it does not sleep")
	}
	w.pass(time.Hour)
	w.want(0)
	w.woken = map[string]bool{"svc": true, "unknown": true}
	w.tick()
	w.want(1)
	w.lastEvent(eventWoken, "from 0 to 1 replica: a request waits for it")
	if w.web().GetStatus().GetScale().GetWokenTime() == nil {
		t.Error("the time of the wake is not stored")
	}
	w.start()
	w.pass(time.Minute)
	w.want(1) // the request that woke it may not be counted
	w.pass(3 * time.Minute)
	w.want(0)
	w.requests = 3 // counted by another node
	w.tick()
	w.want(1)
}

// A service that was just created or scaled gets the idle time before it is put to sleep.
func TestYoungServiceDoesNotSleep(t *testing.T) {
	w := newWorld(t, 2, &v1.Autoscale{Min: proto.Int32(0), Max: 5, Idle: "5m"})
	w.requests, w.lastRequest = 0, noon.Add(-time.Hour)
	w.pass(4 * time.Minute)
	w.want(2)
	w.pass(2 * time.Minute)
	w.want(0)
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := int32(rapid.IntRange(0, 3).Draw(t, "min"))
		most := max(1, least) + int32(rapid.IntRange(0, 12).Draw(t, "more"))
		a := &v1.Autoscale{Min: proto.Int32(least), Max: most, Cpu: "50%", DownWindow: []string{"", "1m", "0s"}[rapid.IntRange(0, 2).Draw(t, "down")]}
		w := newWorld(t, int32(rapid.IntRange(0, 20).Draw(t, "replicas")), a)
		for range rapid.IntRange(1, 60).Draw(t, "ticks") {
			switch rapid.IntRange(0, 9).Draw(t, "act") {
			case 0:
				w.load = float64(rapid.IntRange(0, 400).Draw(t, "load")) / 100
			case 1:
				for _, uid := range w.serving() {
					w.silent[uid] = rapid.Bool().Draw(t, "silent")
				}
			case 2:
				w.memory = NewMemory()
			case 3:
				w.place(w.replicas(), rapid.IntRange(0, w.replicas()).Draw(t, "serving"))
			case 4:
				w.change(func(web *v1.Workload) {
					web.Spec.Autoscale.Max = max(1, web.GetSpec().GetAutoscale().GetMin()) + int32(rapid.IntRange(0, 12).Draw(t, "more"))
				})
			case 5:
				w.requests = float64(rapid.IntRange(-1, 3).Draw(t, "requests"))
			case 6:
				w.woken = map[string]bool{"svc": true}
			default:
				w.start()
			}
			before, events := w.replicas(), len(w.events)
			missing := len(w.serving()) > 0 && !slices.ContainsFunc(w.serving(), func(uid string) bool { return !w.silent[uid] })
			w.tick()
			least, most := spec.Bounds(w.web().GetSpec())
			after := w.replicas()
			switch {
			case after < int(least) || after > int(most):
				t.Fatalf("%d replicas are not within %d and %d", after, least, most)
			case missing && after < before && after > 0:
				t.Fatalf("from %d to %d replicas, though nothing is known", before, after)
			case after > max(2*before, before+stepLeast):
				t.Fatalf("from %d to %d replicas in one step", before, after)
			case after == 0 && before > 0 && w.requests != 0:
				t.Fatalf("it sleeps, though %v requests came", w.requests)
			case after != before && len(w.events) == events:
				t.Fatalf("nothing explains %d replicas instead of %d", after, before)
			}
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
		}
		// With a constant load that is measured, the number converges to what the load needs.
		clear(w.silent)
		w.requests = 1
		w.pass(20 * time.Minute)
		settled, events := w.replicas(), len(w.events)
		w.pass(20 * time.Minute)
		if w.replicas() != settled || len(w.events) != events {
			t.Fatalf("with a constant load it goes on: %v", w.events[events:])
		}
		least, most = spec.Bounds(w.web().GetSpec())
		needed := w.load / 0.25
		if n := float64(settled); settled > int(max(1, least)) && n > needed*(1+2*tolerance)+1 || settled < int(most) && n*(1+2*tolerance) < needed {
			t.Fatalf("it settles at %d replicas, and the load needs %v", settled, needed)
		}
	})
}

func TestUsageIsAveragedOverReports(t *testing.T) {
	s := newSampler()
	report := func(after time.Duration, nanos uint64) {
		s.hear(noon.Add(after), map[string]*v1.ReplicaUsage{"r": {Uid: "r", Time: timestamppb.New(noon.Add(after)), CpuNanos: nanos, MemoryBytes: 10}})
	}
	report(0, 1e9)
	if u, ok := s.usage(noon, "r"); !ok || u.CPUKnown || !u.MemoryKnown {
		t.Errorf("one report says %+v (%v)", u, ok)
	}
	report(5*time.Second, 6e9)
	if u, _ := s.usage(noon.Add(5*time.Second), "r"); !u.CPUKnown || u.CPU != 1 {
		t.Errorf("after five CPU seconds in five: %+v", u)
	}
	report(10*time.Second, 6e9)
	if u, _ := s.usage(noon.Add(10*time.Second), "r"); u.CPU != 0 {
		t.Errorf("an idle replica uses %v", u.CPU)
	}
	report(15*time.Second, 2e9)
	if u, _ := s.usage(noon.Add(15*time.Second), "r"); u.CPUKnown {
		t.Errorf("after a restart it uses %v", u.CPU)
	}
	if _, ok := s.usage(noon.Add(5*time.Minute), "r"); ok {
		t.Error("an old report still counts")
	}
	s.hear(noon, nil)
	if len(s.tracks) != 0 {
		t.Error("a replica that is gone is remembered")
	}
}
