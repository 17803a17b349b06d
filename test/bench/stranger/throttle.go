package main

import (
	"context"
	"log"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// throttle keeps the CPU time of this process at a share of one core.
type throttle struct {
	share float64
	began time.Time

	mu sync.Mutex // one caller at a time checks and sleeps
}

func newThrottle(share float64) *throttle { return &throttle{share: share, began: time.Now()} }

// wait waits until the process may continue, and reports whether it should.
func (t *throttle) wait(ctx context.Context) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ahead := time.Duration(float64(cpuTime())/t.share) - time.Since(t.began)
	if ahead <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(ahead):
		return true
	}
}

// used is the share of one core that was used so far.
func (t *throttle) used() float64 { return cpuTime().Seconds() / time.Since(t.began).Seconds() }

// cpuTime is that of all threads of this process.
func cpuTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		log.Fatal(err)
	}
	return time.Duration(now.Nano())
}
