package probe

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// verdicts collects what a watcher says, with the time since it began.
type verdicts struct {
	mu    sync.Mutex
	began time.Time
	all   []Verdict
	at    []time.Duration
}

func (v *verdicts) add(one Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all, v.at = append(v.all, one), append(v.at, time.Since(v.began))
}

func (v *verdicts) last() Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.all[len(v.all)-1]
}

// watching runs a watcher in a bubble until the test ends it.
func watching(t *testing.T, o Options) (*verdicts, func()) {
	t.Helper()
	v := &verdicts{began: time.Now()}
	o.Notify, o.Started = v.add, time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); Watch(ctx, o) }()
	return v, func() {
		cancel()
		<-done
	}
}

// A hanging probe neither delays the others nor outlives the watcher.
func TestHangingReadinessDoesNotDelayLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		readiness, liveness := tcp(func(p *v1.Probe) { p.Timeout = "1m" }), tcp(func(p *v1.Probe) { p.Period = "1s" })
		w := workload(&v1.Probes{Readiness: readiness, Liveness: liveness})
		v, end := watching(t, Options{Workload: w, Ask: func(ctx context.Context, p *v1.Probe) Result {
			if p.GetTimeout() == "1m" {
				<-ctx.Done()
			}
			return Result{Reason: "it said no"}
		}})
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		if v.last().Restart == "" {
			t.Errorf("after three failed liveness probes: %+v", v.last())
		}
		end()
	})
}

func TestAttemptEndsAtItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, end := watching(t, Options{Workload: workload(&v1.Probes{Readiness: tcp()}), Ask: func(ctx context.Context, _ *v1.Probe) Result {
			<-ctx.Done()
			return Result{Reason: ctx.Err().Error(), Output: "half an answer"}
		}})
		defer end()
		time.Sleep(2*time.Second + 100*time.Millisecond)
		synctest.Wait()
		if f := v.last().Failed; f.GetReason() != "there was no answer within 1s" || f.GetOutput() != "half an answer" || f.GetProbe() != "readiness" {
			t.Errorf("the failure is %v", f)
		}
	})
}

// A machine that was stalled or asleep must not blame its replicas.
func TestStalledMachineBlamesNoProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, end := watching(t, Options{Workload: workload(&v1.Probes{Liveness: tcp()}), Ask: func(ctx context.Context, _ *v1.Probe) Result {
			<-ctx.Done()
			time.Sleep(10 * time.Second)
			return Result{Reason: ctx.Err().Error()}
		}})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := v.last(); got.Restart != "" || got.Failed != nil {
			t.Errorf("the verdict is %+v", got)
		}
		end()
	})
}

// A program that fails all the time does not cause a stream of verdicts.
func TestWordsChangeRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, end := watching(t, Options{Workload: workload(&v1.Probes{Readiness: tcp()}), Ask: func(context.Context, *v1.Probe) Result {
			return Result{Reason: "at " + time.Now().String()}
		}})
		defer end()
		time.Sleep(100 * time.Second)
		synctest.Wait()
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.all) < 9 || len(v.all) > 12 {
			t.Errorf("%d verdicts in 100s", len(v.all))
		}
	})
}

// The sockets of a program that listens are not looked at again.
func TestPortsAreLookedAtUntilTheProgramListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		v, end := watching(t, Options{Workload: workload(nil, 80), Listening: func() Result {
			looks++
			return Result{OK: looks == 10, Reason: "It does not listen on port 80 yet."}
		}})
		time.Sleep(time.Hour)
		synctest.Wait()
		if v.last() != (Verdict{}) || looks != 10 {
			t.Errorf("after %d looks: %+v", looks, v.last())
		}
		end()
	})
}
