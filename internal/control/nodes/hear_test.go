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
)

// A heartbeat that has arrived when a node's time is up counts, even if this
// server has so much to do that it has not come to it.
func TestWhatHasArrivedIsHeardBeforeSilenceIsJudged(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as if others had all cores but one
	err := lead(t, stateReady, nil, func(t *testing.T, l *Loop, state func() string, proposals func() int) {
		l.Connected("n", here, &v1.NodeStatus{})
		before := proposals()
		for range 10 {
			time.Sleep(3 * time.Second) // to the very moment
			for range 3 {               // it changes hands
				runtime.Gosched()
			}
			l.Heartbeat("n", &v1.Heartbeat{})
			want(t, state, stateReady)
		}
		if made := proposals() - before; made != 0 {
			t.Errorf("the node was taken for offline meanwhile: %d changes were made", made)
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// A server that has not listened for a while judges nobody before it has.
func TestNobodyIsSilentToADeafServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node(stateReady)), index: 1}
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
		want(t, state, stateReady)
		loop.Heartbeat("n", &v1.Heartbeat{}) // as the first thing that is heard again
		deaf.Store(false)
		time.Sleep(windows.Silence - time.Second)
		want(t, state, stateReady)
		time.Sleep(time.Second + deafLook)
		want(t, state, stateOffline)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// The time in which this server stood still is not a node's silence, however often
// it does: only time in which it could have been heard counts.
func TestNobodyIsSilentToAServerThatStandsStill(t *testing.T) {
	l := New(storeWith(t, node(stateReady)), nil, alive)
	l.since, l.lastBeat = at(0), at(8)
	e := l.entry("n")
	e.Connected, e.LastSeen, e.live, e.state = true, at(8), windows, stateReady
	due := func(want time.Time) {
		t.Helper()
		if got := e.deadline(l.since); !got.Equal(want) {
			t.Errorf("the node's time is up at %v, want %v", got, want)
		}
	}
	l.beat(at(8).Add(stillness))
	due(at(8).Add(windows.Silence))
	now := l.lastBeat
	for i := range 3 {
		now = now.Add(2 * time.Second)
		if !l.deaf(now) {
			t.Error("a server that stood still until now judges")
		}
		l.beat(now)
		due(at(8).Add(windows.Silence + time.Duration(i+1)*2*time.Second))
	}
	if l.deaf(now) {
		t.Error("a server that goes on judges nobody")
	}
	e.LastSeen = now // heard again, and then silent
	due(now.Add(windows.Silence))
}
