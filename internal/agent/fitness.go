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
	"github.com/cloudless/cloudless/internal/driver"
)

const (
	// checkEvery is how often it is looked whether this node can run anything,
	// and checkAgain how often while it cannot or may not be able to.
	checkEvery = 10 * time.Second
	checkAgain = 2 * time.Second
	// checkPatience is how long a driver may take to answer.
	checkPatience = 5 * time.Second
	// unfitAfter so many failures in a row, because one may be chance.
	unfitAfter = 3
)

// fitness is whether this node can run anything at all, and since when.
type fitness struct {
	mu       sync.Mutex
	failures int
	reason   string // empty while it can
	since    time.Time
}

// condition is the condition Ready of the node.
func (f *fitness) condition() *v1.Condition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &v1.Condition{Type: "Ready", Status: f.reason == "", Reason: f.reason, ChangeTime: timestamppb.New(f.since)}
}

// note takes the result of a look, and returns whether that is news and when to
// look again.
func (f *fitness) note(err error, now time.Time) (news bool, next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.reason
	if err == nil {
		f.failures, f.reason = 0, ""
	} else if f.failures++; f.failures >= unfitAfter {
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

// watchFitness looks until ctx ends, and has a change told at once.
func (a *Agent) watchFitness(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.check(ctx)
		if ctx.Err() != nil {
			return
		}
		news, next := a.fitness.note(err, time.Now())
		if news {
			a.log.Warn("whether this node can run anything has changed", "error", err)
			a.noteChange()
		}
		sleep(ctx, next)
	}
}

// check is why this node cannot run anything: what it is told must go to the
// disk, and a driver must answer. A full disk is another matter: there is a
// condition for that, and what runs goes on.
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

// check tries whether files can be made.
func (s *store) check() error {
	file, err := os.CreateTemp(s.dir, ".check-*")
	if err != nil {
		return err
	}
	_, err = file.WriteString("x")
	return errors.Join(err, file.Close(), os.Remove(file.Name()))
}
