package nodes

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// A heartbeat that has arrived before a node's deadline counts, even if this server was too
// busy to handle it.
func TestArrivedHeartbeatsCountBeforeSilenceIsJudged(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as if others used all cores but one
	err := lead(t, spec.NodeReady, nil, func(t *testing.T, l *Loop, state func() string, proposals func() int) {
		l.Connected("n", here, &v1.NodeStatus{})
		before := proposals()
		for range 10 {
			time.Sleep(3 * time.Second) // to the very moment
			for range 3 {               // it passes through three goroutines
				runtime.Gosched()
			}
			l.Heartbeat("n", &v1.Heartbeat{})
			want(t, state, spec.NodeReady)
		}
		if made := proposals() - before; made != 0 {
			t.Errorf("the node was taken for offline meanwhile: %d changes were made", made)
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// A server that was deaf for a while judges no node before it has caught up.
func TestDeafServerJudgesNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node(spec.NodeReady)), index: 1}
		loop := New(proposer.store, proposer, alive)
		var deaf atomic.Bool
		loop.Deaf = deaf.Load
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		state := func() string {
			synctest.Wait()
			return proposer.store.Snapshot().Node("n").GetStatus().GetState()
		}
		loop.Connected("n", here, &v1.NodeStatus{})
		deaf.Store(true)
		time.Sleep(2 * windows.Silence)
		want(t, state, spec.NodeReady)
		loop.Heartbeat("n", &v1.Heartbeat{}) // the first message after that
		deaf.Store(false)
		time.Sleep(windows.Silence - time.Second)
		want(t, state, spec.NodeReady)
		time.Sleep(time.Second + deafCheckInterval)
		want(t, state, spec.NodeOffline)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Time in which this server was stalled does not count as a node's silence.
func TestStalledServerExtendsDeadlines(t *testing.T) {
	l := New(storeWith(t, node(spec.NodeReady)), nil, alive)
	l.since, l.lastCheck = at(0), at(8)
	e := l.entry("n")
	e.Connected, e.LastSeen, e.live, e.state = true, at(8), windows, spec.NodeReady
	due := func(want time.Time) {
		t.Helper()
		if got := e.deadline(l.since); !got.Equal(want) {
			t.Errorf("the node's time is up at %v, want %v", got, want)
		}
	}
	l.extendDeadlines(at(8).Add(stallLimit))
	due(at(8).Add(windows.Silence))
	now := l.lastCheck
	for i := range 3 {
		now = now.Add(2 * time.Second)
		if !l.deaf(now) {
			t.Error("a stalled server judged a node")
		}
		l.extendDeadlines(now)
		due(at(8).Add(windows.Silence + time.Duration(i+1)*2*time.Second))
	}
	if l.deaf(now) {
		t.Error("a server that runs again judges no node")
	}
	e.LastSeen = now // heard again, and then silent
	due(now.Add(windows.Silence))
}
