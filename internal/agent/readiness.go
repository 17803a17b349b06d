package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/probe"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// checkEvery is how often the node checks that it can run replicas, and checkAgain how
	// often while it cannot or may not be able to.
	checkEvery = 10 * time.Second
	checkAgain = 2 * time.Second
	// checkPatience is how long a driver may take to answer.
	checkPatience = 5 * time.Second
	// unreadyAfter is how many failures in a row make the node unready, because one may be
	// chance.
	unreadyAfter = 3
)

// readiness is whether this node can run replicas at all, and since when.
type readiness struct {
	mu       sync.Mutex
	failures int
	reason   string // empty while it can
	since    time.Time
}

// condition is the node's Ready condition.
func (f *readiness) condition() *v1.Condition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &v1.Condition{Type: "Ready", Status: f.reason == "", Reason: f.reason, ChangeTime: timestamppb.New(f.since)}
}

// note records the result of a check, and returns whether it changed the condition and when
// to check again.
func (f *readiness) note(err error, now time.Time) (news bool, next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.reason
	if err == nil {
		f.failures, f.reason = 0, ""
	} else if f.failures++; f.failures >= unreadyAfter {
		f.reason = sentence(err.Error())
	}
	if (was == "") != (f.reason == "") {
		f.since = now
	}
	if err != nil {
		return was != f.reason, checkAgain
	}
	return was != f.reason, checkEvery
}

// watchReadiness checks until ctx ends, and reports a change at once.
func (a *Agent) watchReadiness(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.check(ctx)
		if ctx.Err() != nil {
			return
		}
		news, next := a.readiness.note(err, time.Now())
		if news {
			a.log.Warn("the node's readiness changed", "error", err)
			a.noteChange()
		}
		_ = sleep.For(ctx, next)
	}
}

// check returns why this node cannot run replicas: records must reach the disk, and a
// driver must answer. A full disk does not count: it has a condition of its own, and
// running replicas go on.
func (a *Agent) check(ctx context.Context) error {
	if err := a.store.check(); err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the data folder cannot be written to: %w", err)
	}
	for name, d := range a.drivers {
		checker, ok := d.(driver.Checker)
		if !ok {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, checkPatience)
		err := checker.Check(asking)
		cancel()
		if err != nil {
			return fmt.Errorf("driver %s does not work: %w", name, err)
		}
	}
	return nil
}

// check tries to create a file.
func (s *store) check() error {
	file, err := os.CreateTemp(s.dir, ".check-*")
	if err != nil {
		return err
	}
	_, err = file.WriteString("x")
	return errors.Join(err, file.Close(), os.Remove(file.Name()))
}

// A replica with ports runs on for a while after it has left its services: until all nodes have heard of it and send new
// connections elsewhere. That takes at least leavePause, and as long as the last new connection came within leaveQuiet,
// but at most leaveLimit.
const (
	leavePause = 500 * time.Millisecond
	leaveQuiet = 250 * time.Millisecond
	leaveLimit = 3 * time.Second
	leaveLook  = 50 * time.Millisecond
)

func (r *replica) leave(ctx context.Context) {
	began, pid := time.Now(), int(r.rec.Status.GetPid())
	accepted, last := probe.Accepted(pid), began
	for time.Since(began) < leaveLimit {
		if time.Since(began) >= leavePause && time.Since(last) >= leaveQuiet || sleep.For(ctx, leaveLook) != nil {
			return
		}
		if now := probe.Accepted(pid); now != accepted {
			accepted, last = now, time.Now()
		}
	}
}
