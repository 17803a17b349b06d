package nodes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

var (
	start   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	windows = spec.DefaultLiveness
)

// at is a moment some seconds after the start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func storeWith(t interface{ Fatal(...any) }, nodes ...*v1.Node) *state.Store {
	store := state.New()
	var b state.Batch
	for _, n := range nodes {
		b.Create(n)
	}
	if _, err := store.Apply(1, b.Transaction(start)); err != nil {
		t.Fatal(err)
	}
	return store
}

func node(nodeState string) *v1.Node {
	return &v1.Node{Metadata: &v1.Metadata{Uid: "n", Name: "n1"}, Status: &v1.NodeStatus{State: nodeState}}
}

func TestTransitions(t *testing.T) {
	heard := func(connected bool, seconds int) *Observation {
		return &Observation{Status: &v1.NodeStatus{}, LastSeen: at(seconds), Connected: connected}
	}
	with := func(o *Observation, change func(*Observation)) *Observation {
		change(o)
		return o
	}
	broken := &v1.NodeStatus{Conditions: []*v1.Condition{{Type: "Ready", Reason: "The driver does not answer."}}}
	for _, one := range []struct {
		name         string
		before       string
		availability string
		seen         *Observation
		since        int // when this server began to lead
		now          int
		want         string
		reason       string
		next         int // when the next tick is due; -1 for never
	}{
		{"a new node connects", "enrolling", "", heard(true, 0), 0, 1, "ready", "", 3},
		{"a new node connects that is cordoned already", "enrolling", "cordoned", heard(true, 0), 0, 1, "cordoned", "disk (by user/ann)", 3},
		{"a new node has not connected", "enrolling", "", nil, 0, 100, "enrolling", "", -1},
		{"connected and heard of", "ready", "", heard(true, 5), 0, 6, "ready", "", 8},
		{"connected and silent", "ready", "", heard(true, 5), 0, 8, "offline", "not heard of for 3s", -1},
		{"a moment before silence", "ready", "", heard(true, 5), 0, 7, "ready", "", 8},
		{"gone for less than the window", "ready", "", heard(false, 5), 0, 14, "ready", "", 15},
		{"gone for the window", "ready", "", heard(false, 5), 0, 15, "offline", "no session for 10s", -1},
		{"the window begins when the session breaks", "ready", "", with(heard(false, 5), func(o *Observation) { o.Broken = at(7) }), 0, 16, "ready", "", 17},
		{"gone, and the machine does not answer", "ready", "", with(heard(false, 5), func(o *Observation) { o.Gone = true }), 0, 6, "offline", "its session broke and its machine does not answer", -1},
		{"gone with a goodbye", "ready", "", with(heard(false, 5), func(o *Observation) { o.Goodbye = "stopped by cloudless down" }), 0, 6, "offline", "stopped by cloudless down", -1},
		{"a goodbye counts from the end of the session", "ready", "", with(heard(true, 5), func(o *Observation) { o.Goodbye = "stopped by cloudless down" }), 0, 6, "ready", "", 8},
		{"a goodbye says more than the silence before it", "offline", "", with(heard(false, 5), func(o *Observation) { o.Goodbye = "stopped by cloudless down" }), 0, 9, "offline", "stopped by cloudless down", -1},
		{"back after it was offline", "offline", "", heard(true, 50), 0, 51, "ready", "", 53},
		{"back and cordoned as before", "offline", "cordoned", heard(true, 50), 0, 51, "cordoned", "disk (by user/ann)", 53},
		{"offline and silent stays offline", "offline", "", heard(true, 5), 0, 100, "offline", "", -1},
		{"offline and gone stays offline", "offline", "", heard(false, 99), 0, 100, "offline", "", -1},
		{"cordoned", "ready", "cordoned", heard(true, 5), 0, 6, "cordoned", "disk (by user/ann)", 8},
		{"cordoned while its session is broken", "ready", "cordoned", heard(false, 5), 0, 6, "cordoned", "disk (by user/ann)", 15},
		{"cordoned while offline is for later", "offline", "cordoned", heard(false, 5), 0, 100, "offline", "", -1},
		{"uncordoned", "cordoned", "", heard(true, 5), 0, 6, "ready", "", 8},
		{"from cordoned to draining", "cordoned", "draining", heard(true, 5), 0, 6, "draining", "disk (by user/ann)", 8},
		{"a cordoned node is lost like others", "cordoned", "cordoned", heard(true, 5), 0, 8, "offline", "not heard of for 3s", -1},
		{"cannot run anything", "ready", "", with(heard(true, 5), func(o *Observation) { o.Status = broken }), 0, 6, "failed", "The driver does not answer.", 8},
		{"cannot run anything, cordoned or not", "cordoned", "cordoned", with(heard(true, 5), func(o *Observation) { o.Status = broken }), 0, 6, "failed", "The driver does not answer.", 8},
		{"can run again", "failed", "", heard(true, 5), 0, 6, "ready", "", 8},
		{"a failed node is lost like others", "failed", "", heard(true, 5), 0, 8, "offline", "not heard of for 3s", -1},
		{"and stays failed within the window", "failed", "", heard(false, 5), 0, 8, "failed", "", 15},
		// A new leader has heard of no node: all have the window to come.
		{"a new leader waits", "ready", "", nil, 100, 109, "ready", "", 110},
		{"a new leader gives up", "ready", "", nil, 100, 110, "offline", "no session for 10s", -1},
		{"what a leader heard before it lost the lead counts from its return", "ready", "", heard(true, 5), 100, 102, "ready", "", 103},
		{"a new leader leaves the offline ones alone", "offline", "", nil, 100, 101, "offline", "", -1},
		{"a new report interval starts a whole interval", "ready", "", with(heard(true, 5), func(o *Observation) { o.NotBefore = at(20) }), 0, 22, "ready", "", 23},
	} {
		t.Run(one.name, func(t *testing.T) {
			n := node(one.before)
			if one.availability != "" {
				n.Spec = &v1.NodeSpec{Availability: one.availability, AvailabilityReason: "disk", AvailabilityBy: "user/ann"}
			}
			store := storeWith(t, n)
			seen := map[string]Observation{}
			if one.seen != nil {
				seen["n"] = *one.seen
			}
			batch, next := Tick(at(one.now), at(one.since), store.Snapshot(), seen, func() string { return "e" })
			if batch.Len() > 0 {
				if _, err := store.Apply(2, batch.Transaction(at(one.now))); err != nil {
					t.Fatal(err)
				}
			}
			got := store.Snapshot().Node("n").GetStatus()
			if got.GetState() != one.want || got.GetReason() != one.reason {
				t.Errorf("the node is %s (%s), want %s (%s)", got.GetState(), got.GetReason(), one.want, one.reason)
			}
			if one.next < 0 && !next.IsZero() || one.next >= 0 && !next.Equal(at(one.next)) {
				t.Errorf("look again at %v, want after %d s", next, one.next)
			}
			if events := store.Snapshot().Count(state.KindEvent); events > 1 || (events == 1) != (one.before != one.want) {
				t.Errorf("%d events tell of the way from %s to %s", events, one.before, one.want)
			}
			if batch, _ := Tick(at(one.now), at(one.since), store.Snapshot(), seen, func() string { return "x" }); batch.Len() != 0 {
				t.Error("a second tick changes something")
			}
		})
	}
}

// ways are all arrows of the diagram in the package comment.
var ways = map[string][]string{
	"enrolling": {"ready", "cordoned", "draining", "failed"},
	"ready":     {"cordoned", "draining", "failed", "offline"},
	"cordoned":  {"ready", "draining", "failed", "offline"},
	"draining":  {"ready", "cordoned", "failed", "offline"},
	"failed":    {"ready", "cordoned", "draining", "offline"},
	"offline":   {"ready", "cordoned", "draining", "failed"},
}

// Whatever is observed in whatever order, no node takes a transition that is not in the
// diagram. Only a message of the agent ends offline and failed, or begins failed. A node
// never goes offline while its agent is heard.
func TestNoTransitionOutsideTheDiagram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := storeWith(t, node("enrolling"))
		index, now, since := uint64(1), start, start
		var o Observation
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(6*time.Second)).Draw(t, "pause")))
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0, 1, 2:
				ready := rapid.Bool().Draw(t, "ready")
				o = Observation{Connected: true, LastSeen: now, Status: &v1.NodeStatus{Conditions: []*v1.Condition{{Type: "Ready", Status: ready}}}}
			case 3:
				o.Connected, o.Broken = false, now
			case 4:
				o.Gone = !o.Connected
			case 5:
				o.Goodbye = "bye"
			case 6:
				o, since = Observation{}, now // another leader
			case 7:
				n := proto.CloneOf(store.Snapshot().Node("n"))
				n.Spec = &v1.NodeSpec{Availability: rapid.SampledFrom([]string{"", "cordoned", "draining"}).Draw(t, "availability")}
				var b state.Batch
				b.Put(n)
				index++
				if _, err := store.Apply(index, b.Transaction(now)); err != nil {
					t.Fatal(err)
				}
			}
			before := store.Snapshot().Node("n").GetStatus().GetState()
			batch, _ := Tick(now, since, store.Snapshot(), map[string]Observation{"n": o}, func() string { return fmt.Sprint("e", index) })
			if batch.Len() > 0 {
				index++
				if _, err := store.Apply(index, batch.Transaction(now)); err != nil {
					t.Fatal(err)
				}
			}
			after := store.Snapshot().Node("n").GetStatus().GetState()
			speaks := o.Connected && now.Sub(o.LastSeen) < windows.Silence
			switch {
			case before == after:
			case !slices.Contains(ways[before], after):
				t.Fatalf("from %s to %s", before, after)
			case (before == "offline" || before == "failed" || before == "enrolling") && after != "offline" && !speaks, after == "failed" && !speaks:
				t.Fatalf("from %s to %s without a word of the agent", before, after)
			case after == "offline" && speaks:
				t.Fatal("offline although the agent speaks")
			}
		}
	})
}

func TestOfflineNodeKeepsItsLastStatus(t *testing.T) {
	n := node("ready")
	n.Status.Capacity = &v1.NodeResources{Cpu: "4"}
	store := storeWith(t, n)
	batch, _ := Tick(at(100), at(0), store.Snapshot(), nil, func() string { return "e" })
	if _, err := store.Apply(2, batch.Transaction(at(100))); err != nil {
		t.Fatal(err)
	}
	got := store.Snapshot().Node("n").GetStatus()
	if got.GetCapacity().GetCpu() != "4" || got.GetReason() != "no session for 10s" || !got.GetLastSeen().AsTime().Equal(at(0)) {
		t.Errorf("the node is now %v", got)
	}
}

func TestHeartbeatBeforeHelloRemovesNothing(t *testing.T) {
	n := node("offline")
	n.Status.Capacity = &v1.NodeResources{Cpu: "4"}
	store := storeWith(t, n)
	batch, _ := Tick(at(1), at(0), store.Snapshot(), map[string]Observation{"n": {LastSeen: at(1), Connected: true}}, func() string { return "e" })
	if _, err := store.Apply(2, batch.Transaction(at(1))); err != nil {
		t.Fatal(err)
	}
	if got := store.Snapshot().Node("n").GetStatus(); got.GetState() != "ready" || got.GetCapacity().GetCpu() != "4" {
		t.Errorf("the node is now %v", got)
	}
}

func TestThousandsOfNodesChangeInSeveralTransactions(t *testing.T) {
	var all []*v1.Node
	for i := range maxChanges + 1 {
		name := fmt.Sprintf("n-%04d", i)
		all = append(all, &v1.Node{Metadata: &v1.Metadata{Uid: name, Name: name}, Status: &v1.NodeStatus{State: "ready"}})
	}
	store := storeWith(t, all...)
	index, uids := uint64(1), 0
	for ticks := 0; ; ticks++ {
		batch, next := Tick(at(100), at(0), store.Snapshot(), nil, func() string { uids++; return fmt.Sprint("e", uids) })
		if batch.Len() == 0 {
			if ticks < 2 || !next.IsZero() {
				t.Errorf("done after %d ticks, look again at %v", ticks, next)
			}
			break
		}
		if batch.Len() > maxChanges+2 {
			t.Fatalf("a tick makes %d changes", batch.Len())
		}
		index++
		if _, err := store.Apply(index, batch.Transaction(at(100))); err != nil {
			t.Fatal(err)
		}
	}
	for n := range store.Snapshot().Nodes("") {
		if n.GetStatus().GetState() != "offline" {
			t.Fatalf("%s is still %s", n.GetMetadata().GetName(), n.GetStatus().GetState())
		}
	}
}

// A node that is heard within the windows never goes offline, however ticks, heartbeats and
// reconnections interleave. One that stays away does, once.
func TestNodeHeardInTimeNeverFlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := storeWith(t, node("ready"))
		index, now := uint64(1), start
		o := Observation{Status: &v1.NodeStatus{}, LastSeen: start, Connected: true}
		tick := func(now time.Time) {
			batch, _ := Tick(now, start, store.Snapshot(), map[string]Observation{"n": o}, func() string { return fmt.Sprint("e", index) })
			if batch.Len() == 0 {
				return
			}
			index++
			if _, err := store.Apply(index, batch.Transaction(now)); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			limit := windows.Silence
			if !o.Connected {
				limit = windows.Reconnect
			}
			now = now.Add(rapid.Custom(func(t *rapid.T) time.Duration {
				return time.Duration(rapid.Int64Range(0, int64(limit)-1).Draw(t, "pause"))
			}).Draw(t, "pause"))
			tick(now)
			if got := store.Snapshot().Node("n").GetStatus().GetState(); got != "ready" {
				t.Fatalf("the node is %s at %v", got, now.Sub(start))
			}
			o.Connected = rapid.Bool().Draw(t, "connected")
			o.LastSeen = now
		}
		for range 5 {
			now = now.Add(windows.Reconnect)
			tick(now)
		}
		snap := store.Snapshot()
		if snap.Node("n").GetStatus().GetState() != "offline" || snap.Count(state.KindEvent) != 1 {
			t.Fatalf("after a long absence the node is %s with %d events", snap.Node("n").GetStatus().GetState(), snap.Count(state.KindEvent))
		}
	})
}

// An agent that restarts says hello before its network process has told it how the node is reached. Its peers must not
// forget it meanwhile.
func TestRestartedAgentStaysInTheMesh(t *testing.T) {
	old := node("ready")
	old.Status.Mesh = &v1.NodeMesh{Key: "key", Relay: "s-1"}
	n, _ := judge(at(6), start, old, Observation{Status: &v1.NodeStatus{Info: &v1.NodeInfo{Hostname: "new"}}, LastSeen: at(5), Connected: true}, spec.DefaultLiveness)
	if n == old || n.GetStatus().GetMesh().GetKey() != "key" {
		t.Errorf("the node is %v", n)
	}
}

func TestLastingOmitsUsage(t *testing.T) {
	full := &v1.NodeStatus{
		Capacity: &v1.NodeResources{Cpu: "4"}, Usage: &v1.NodeResources{Cpu: "1"}, Requested: &v1.NodeResources{Cpu: "2"},
	}
	if got := lasting(full); !proto.Equal(got, &v1.NodeStatus{Capacity: full.GetCapacity()}) || full.GetUsage() == nil {
		t.Errorf("what lasts of %v is %v", full, got)
	}
	if lasting(nil) == nil {
		t.Error("an agent that says nothing has no status")
	}
}

// A machine takes itself out of service, and back, without changing what the operator set.
func TestMachineTakesItselfOutOfService(t *testing.T) {
	low := &v1.Condition{Type: spec.LowBattery, Status: true, Reason: "The battery has only 9 % left."}
	departs := &v1.Condition{Type: spec.Departing, Status: true, Reason: "The machine shuts down."}
	for _, one := range []struct {
		availability string
		conditions   []*v1.Condition
		want, reason string
	}{
		{"", nil, "ready", ""},
		{"", []*v1.Condition{{Type: spec.LowBattery}}, "ready", ""},
		{"", []*v1.Condition{low}, "cordoned", low.GetReason()},
		{"cordoned", []*v1.Condition{low}, "cordoned", "disk (by user/ann)"},
		{"draining", []*v1.Condition{low, departs}, "draining", "disk (by user/ann)"},
		{"", []*v1.Condition{low, departs}, "draining", departs.GetReason()},
		{"cordoned", []*v1.Condition{departs}, "draining", departs.GetReason()},
	} {
		n := node("ready")
		n.Spec = &v1.NodeSpec{Availability: one.availability, AvailabilityReason: "disk", AvailabilityBy: "user/ann"}
		seen := Observation{Status: &v1.NodeStatus{Conditions: one.conditions}, LastSeen: at(0), Connected: true}
		got, _ := judge(at(1), start, n, seen, windows)
		if s := got.GetStatus(); s.GetState() != one.want || one.want != "ready" && s.GetReason() != one.reason || !proto.Equal(got.GetSpec(), n.GetSpec()) {
			t.Errorf("%q with %v is %s: %s", one.availability, one.conditions, s.GetState(), s.GetReason())
		}
		// When the machine is well again, only the operator's setting is left.
		seen.Status = &v1.NodeStatus{}
		if back, _ := judge(at(2), start, got, seen, windows); back.GetStatus().GetState() != stateInService(one.availability) {
			t.Errorf("%q is %s afterwards", one.availability, back.GetStatus().GetState())
		}
	}
}
