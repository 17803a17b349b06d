package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// detailEvery is the least time between two verdicts that differ only in their words. The first of them comes
	// detailFirst after the start of the program: failures before that are common.
	detailEvery = 10 * time.Second
	detailFirst = 2 * time.Second
	// stalled is how much longer than its timeout an attempt takes if the machine itself was too busy, or asleep. Then
	// its failure says nothing about the program.
	stalled = time.Second
)

// Verdict is what all probes of a replica say together.
type Verdict struct {
	// Unready says why the replica does not serve. It is empty if it does.
	Unready string
	// Settling is set while the replica serves, but not yet for as long as its workload asks for.
	Settling bool
	// Restart says why the replica must be restarted. It is empty if it need not be.
	Restart string
	// Failed is the last attempt that failed, or nil.
	Failed *v1.ProbeFailure
}

// same reports whether two verdicts differ in their words at most.
func (v Verdict) same(other Verdict) bool {
	return (v.Unready == "") == (other.Unready == "") && v.Settling == other.Settling && v.Restart == other.Restart
}

func (v Verdict) equal(other Verdict) bool {
	return v.same(other) && v.Unready == other.Unready && proto.Equal(v.Failed, other.Failed)
}

// Options describe the replica.
type Options struct {
	// Workload is in canonical form.
	Workload *v1.WorkloadSpec
	// Started is when the program was started.
	Started time.Time
	// Ready is whether the replica served when it was last watched. It then stays ready until a probe fails.
	Ready bool
	// Failed is the last failed attempt that is known, or nil.
	Failed *v1.ProbeFailure
	// Ask makes one attempt of a probe. It returns soon after its context ends.
	Ask func(context.Context, *v1.Probe) Result
	// Listening looks whether the program listens on the ports of the workload.
	Listening func() Result
	// Notify gets every new verdict, the first one at once.
	Notify func(Verdict)
	// Count is called after every attempt of a probe. It may be nil.
	Count func(probe string, r Result)
}

// Watch makes attempts when they are due, until ctx ends.
func Watch(ctx context.Context, o Options) {
	w := &watcher{Options: o, began: time.Now(), results: make(chan result)}
	if age := time.Since(o.Started); age > 0 {
		w.age = age
	}
	w.machine = newMachine(o.Workload, w.age, o.Ready)
	if o.Ready { // not all replicas of a restarted agent at once
		for _, c := range w.checks() {
			c.due += rand.N(c.period)
		}
	}
	w.failed = o.Failed
	w.detailed = w.age + detailFirst - detailEvery
	ctx, cancel := context.WithCancel(ctx)
	defer w.attempts.Wait()
	defer cancel()
	w.run(ctx)
}

// watcher is the loop around a machine.
type watcher struct {
	Options
	*machine
	began    time.Time
	age      time.Duration // of the program when the loop began
	results  chan result
	attempts sync.WaitGroup
	failed   *v1.ProbeFailure
	told     *Verdict
	detailed time.Duration // when the last verdict with new words was told
}

type result struct {
	of           *check
	began, ended time.Duration
	Result
}

// now is the age of the program.
func (w *watcher) now() time.Duration { return w.age + time.Since(w.began) }

func (w *watcher) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-w.results:
			w.take(r)
		case <-timer.C:
		}
		at := w.now()
		now, next, more := w.due(at)
		for _, c := range now {
			w.attempt(ctx, c)
		}
		if wake := w.tell(at); wake > 0 && (!more || wake < next) {
			next, more = wake, true
		}
		if more {
			timer.Reset(next - at)
		} else {
			timer.Stop()
		}
	}
}

// attempt makes one attempt in the background.
func (w *watcher) attempt(ctx context.Context, c *check) {
	c.underway = true
	r := result{of: c, began: w.now()}
	w.attempts.Go(func() {
		if r.Result = w.ask(ctx, c); ctx.Err() != nil {
			return
		}
		if r.ended = w.now(); !r.OK && r.ended-r.began > c.timeout+stalled {
			r.Unknown, r.Reason = true, "the machine was too busy or asleep"
		}
		select {
		case w.results <- r:
		case <-ctx.Done():
		}
	})
}

func (w *watcher) ask(ctx context.Context, c *check) Result {
	switch {
	case c.probe != nil:
		limited, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		r := w.Ask(limited, c.probe)
		if !r.OK && !r.Unknown && limited.Err() != nil {
			r.Reason = fmt.Sprintf("there was no answer within %s", c.probe.GetTimeout())
		}
		return r
	case len(w.Workload.GetPorts()) > 0:
		return w.Listening()
	}
	return Result{OK: true} // it has run for long enough
}

// take passes a result on to the machine.
func (w *watcher) take(r result) {
	w.note(r.of, r.Result, r.began, r.ended)
	if r.of.probe == nil {
		return
	}
	if w.Count != nil {
		w.Count(r.of.name, r.Result)
	}
	if !r.OK && !r.Unknown {
		w.failed = &v1.ProbeFailure{Probe: r.of.name, Reason: printable(r.Reason), Output: printable(r.Output), Time: timestamppb.Now()}
	}
}

// tell passes a new verdict on. One that differs only in its words waits if the last one was told just now; then tell
// returns when it may be told.
func (w *watcher) tell(at time.Duration) (wake time.Duration) {
	v := Verdict{Unready: printable(w.unready()), Settling: w.settling(at), Restart: printable(w.restart()), Failed: w.failed}
	switch {
	case w.told == nil || !w.told.same(v):
	case w.told.equal(v):
		return 0
	case at < w.detailed+detailEvery:
		return w.detailed + detailEvery
	default:
		w.detailed = at
	}
	w.told = &v
	w.Notify(v)
	return 0
}
