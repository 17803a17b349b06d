package logind

import (
	"context"
	"errors"
	"io"
	"testing"
)

// released waits until the client has closed a lock.
func released(t *testing.T, b *bus) {
	t.Helper()
	lock := <-b.locks
	defer lock.Close()
	if _, err := io.ReadAll(lock); err != nil {
		t.Error(err)
	}
}

// The machine waits until its replicas have left, and again before it sleeps the next time.
func TestMachineWaitsUntilItMayLeave(t *testing.T) {
	b := newBus(t)
	type departure struct {
		reason string
		timed  bool
		end    chan struct{}
	}
	departures, stays := make(chan departure), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- Watch(ctx, b.address, Handler{
			Leave: func(ctx context.Context, reason string) {
				_, timed := ctx.Deadline()
				d := departure{reason, timed, make(chan struct{})}
				departures <- d
				<-d.end
			},
			Stay: func() { stays <- struct{}{} },
		})
	}()
	for i, one := range []struct{ signal, reason string }{
		{"PrepareForSleep", Sleeps}, {"PrepareForSleep", Sleeps}, {"PrepareForShutdown", ShutsDown},
	} {
		if i > 0 {
			b.announce("PrepareForSleep", false)
			<-stays
		}
		lock := <-b.locks
		b.locks <- lock // it is held
		b.announce(one.signal, true)
		d := <-departures
		if d.reason != one.reason || !d.timed {
			t.Errorf("it leaves because %q, with a deadline: %v", d.reason, d.timed)
		}
		close(d.end)
		released(t, b)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The context of a departure ends before logind stops waiting.
func TestDepartureEndsInTime(t *testing.T) {
	b := newBus(t)
	b.delay = 20_000
	left := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = Watch(ctx, b.address, Handler{Leave: func(ctx context.Context, _ string) {
			<-ctx.Done()
			left <- context.Cause(ctx)
		}, Stay: func() {}})
	}()
	lock := <-b.locks
	b.locks <- lock
	b.announce("PrepareForShutdown", true)
	if err := <-left; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ends with %v", err)
	}
	released(t, b)
}

func TestWatchEndsWithTheBus(t *testing.T) {
	b := newBus(t)
	ended := make(chan error)
	go func() { ended <- Watch(t.Context(), b.address, Handler{}) }()
	<-b.locks
	_ = b.conn.Close()
	if err := <-ended; err == nil {
		t.Error("it ends without an error")
	}
	if err := Watch(t.Context(), "unix:path=/nowhere/bus", Handler{}); err == nil {
		t.Error("it needs no bus")
	}
}
