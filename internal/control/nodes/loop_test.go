package nodes

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// log applies proposals at once, after the failures it was given.
type log struct {
	mu        sync.Mutex
	store     *state.Store
	index     uint64
	failures  []error
	proposals int
}

func (l *log) Propose(_ context.Context, tx *statev1.Transaction) (state.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proposals++
	if len(l.failures) > 0 {
		err := l.failures[0]
		l.failures = l.failures[1:]
		return state.Result{}, err
	}
	l.index++
	return l.store.Apply(l.index, proto.CloneOf(tx))
}

// made is how many proposals there were.
func (l *log) made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proposals
}

// here is the address of the test's node; alive and dead are the probes of its machine.
var here = netip.MustParseAddr("192.0.2.7")

func alive(context.Context, netip.Addr) bool { return true }

func dead(ctx context.Context, _ netip.Addr) bool {
	<-ctx.Done()
	return false
}

// lead runs a loop for one node in the time of the test.
func lead(t *testing.T, before string, failures []error, f func(t *testing.T, l *Loop, state func() string, proposals func() int)) error {
	t.Helper()
	var ended error
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node(before)), index: 1, failures: failures}
		loop := New(proposer.store, proposer, alive)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		f(t, loop, func() string {
			synctest.Wait()
			return proposer.store.Snapshot().Node("n").GetStatus().GetState()
		}, func() int {
			synctest.Wait()
			return proposer.made()
		})
		cancel()
		ended = <-done
	})
	return ended
}

func want(t *testing.T, state func() string, expected string) {
	t.Helper()
	if got := state(); got != expected {
		t.Fatalf("the node is %s, want %s", got, expected)
	}
}

func TestNodeFromItsFirstSessionToItsReturn(t *testing.T) {
	err := lead(t, "enrolling", nil, func(t *testing.T, l *Loop, state func() string, proposals func() int) {
		want(t, state, "enrolling")
		l.Connected("n", here, &v1.NodeStatus{Capacity: &v1.NodeResources{Cpu: "4"}, Usage: &v1.NodeResources{Cpu: "1"}})
		want(t, state, "ready")

		// Heartbeats change nothing in the state, however many there are.
		before := proposals()
		for range 100 {
			time.Sleep(windows.Silence / 2)
			l.Heartbeat("n", &v1.Heartbeat{Usage: &v1.NodeResources{Cpu: "2"}})
		}
		want(t, state, "ready")
		if made := proposals() - before; made > 1 { // the reliability is stored now and then
			t.Errorf("heartbeats made %d proposals", made)
		}
		before = proposals()
		shown := &v1.Node{Metadata: &v1.Metadata{Uid: "n"}, Status: &v1.NodeStatus{}}
		l.Observe(shown)
		if shown.GetStatus().GetUsage().GetCpu() != "2" || !shown.GetStatus().GetLastSeen().AsTime().Equal(time.Now()) {
			t.Errorf("the node is shown with %v", shown.GetStatus())
		}
		// A change of capacity does.
		l.Heartbeat("n", &v1.Heartbeat{Status: &v1.NodeStatus{Capacity: &v1.NodeResources{Cpu: "8"}}})
		if proposals() != before+1 {
			t.Errorf("a new capacity made %d proposals", proposals()-before)
		}

		// A restart of the agent within the window goes unnoticed.
		l.Disconnected("n")
		time.Sleep(windows.Reconnect - time.Second)
		want(t, state, "ready")
		l.Connected("n", here, &v1.NodeStatus{Capacity: &v1.NodeResources{Cpu: "8"}})
		time.Sleep(windows.Silence - time.Second)
		want(t, state, "ready")

		// Silence on an open session is noticed, and one message ends it.
		time.Sleep(2 * time.Second)
		want(t, state, "offline")
		l.Disconnected("n")
		want(t, state, "offline")
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, state, "ready")
		time.Sleep(windows.Silence)
		want(t, state, "offline")
		l.Heartbeat("n", &v1.Heartbeat{})
		want(t, state, "ready")
		l.Disconnected("n")
		time.Sleep(windows.Reconnect)
		want(t, state, "offline")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the loop ended with %v", err)
	}
}

func TestNewLeaderGivesNodesTimeToReconnect(t *testing.T) {
	_ = lead(t, "ready", nil, func(t *testing.T, l *Loop, state func() string, _ func() int) {
		time.Sleep(windows.Reconnect - time.Second)
		want(t, state, "ready")
		time.Sleep(2 * time.Second)
		want(t, state, "offline")
	})
}

// Frequent changes of the leader do not keep a node from going offline: a node that was
// missed each time gets no further whole window. One that was heard of in between, or had
// no time to come, starts over.
func TestFrequentLeaderChangesDoNotHideALostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node("ready")), index: 1}
		loop := New(proposer.store, proposer, alive)
		leadFor := func(d time.Duration, during func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- loop.Run(ctx) }()
			synctest.Wait()
			during()
			time.Sleep(d)
			cancel()
			<-done
			time.Sleep(time.Minute) // in which others lead
		}
		now := func() string { return proposer.store.Snapshot().Node("n").GetStatus().GetState() }
		nothing := func() {}
		for range 10 {
			leadFor(windows.Silence-time.Millisecond, nothing)
		}
		for range missedTermsLimit {
			leadFor(windows.Silence+time.Second, nothing)
		}
		heard := func() {
			loop.Connected("n", here, &v1.NodeStatus{})
			synctest.Wait()
			loop.Disconnected("n")
		}
		leadFor(windows.Silence+time.Second, heard)
		for range missedTermsLimit {
			leadFor(windows.Silence+time.Second, nothing)
		}
		if now() != "ready" {
			t.Fatalf("the node is %s although it had no whole window", now())
		}
		leadFor(windows.Silence+time.Second, nothing)
		status := proposer.store.Snapshot().Node("n").GetStatus()
		if status.GetState() != "offline" || !strings.Contains(status.GetReason(), "the last 3 times") {
			t.Errorf("a node that was missed again and again is %s: %s", status.GetState(), status.GetReason())
		}
		// It is back like any other.
		leadFor(time.Second, heard)
		leadFor(windows.Silence+time.Second, nothing)
		if now() != "ready" {
			t.Errorf("a node that is back is %s", now())
		}
	})
}

func TestLoopRetriesWhenTheStateHasMovedOn(t *testing.T) {
	failures := []error{&state.ConflictError{}, &state.NotFoundError{}}
	_ = lead(t, "enrolling", failures, func(t *testing.T, l *Loop, state func() string, proposals func() int) {
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, state, "ready")
		if proposals() != 3 {
			t.Errorf("made %d proposals", proposals())
		}
	})
}

func TestLoopEndsOnOtherErrors(t *testing.T) {
	lost := errors.New("leadership lost")
	err := lead(t, "enrolling", []error{lost}, func(t *testing.T, l *Loop, state func() string, _ func() int) {
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, state, "enrolling")
	})
	if !errors.Is(err, lost) {
		t.Errorf("the loop ended with %v", err)
	}
}

func TestUnknownNodeIsShownAsStored(t *testing.T) {
	l := New(state.New(), &log{}, alive)
	n := &v1.Node{Metadata: &v1.Metadata{Uid: "n"}, Status: &v1.NodeStatus{}}
	l.Observe(n)
	if n.GetStatus().GetLastSeen() != nil || n.GetStatus().GetUsage() != nil {
		t.Errorf("it is shown with %v", n.GetStatus())
	}
}

// Silence is measured by the monotonic clock: a wall clock that jumps by hours makes no
// node silent, and hides no silent one.
func TestSilenceUsesTheMonotonicClock(t *testing.T) {
	l := New(storeWith(t, node("ready")), &log{}, alive)
	for _, hear := range []func(){
		func() { l.Connected("n", here, &v1.NodeStatus{}) },
		func() { l.Heartbeat("n", &v1.Heartbeat{}) },
	} {
		hear()
		if seen := l.entries["n"].LastSeen; !strings.Contains(seen.String(), " m=") {
			t.Errorf("heard at %s, which is a mere date", seen)
		}
	}
}

// The loop and its follower read the state one after the other, so the loop may have adopted older timeouts last. What it
// plans next must follow from those that it adopts now.
func TestDeadlineFollowsFromTheNewestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node("ready")), index: 1}
		l := New(proposer.store, proposer, alive)
		l.since = time.Now()
		l.Connected("n", here, &v1.NodeStatus{})
		if _, err := l.settle(t.Context(), []string{"n"}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		l.entries["n"].live.Silence = time.Hour // of the configuration before
		next, err := l.settle(t.Context(), []string{"n"}, time.Time{})
		if err != nil || time.Until(next) > windows.Silence {
			t.Errorf("the next tick is in %v (%v), and the node may be silent for %v", time.Until(next), err, windows.Silence)
		}
	})
}
