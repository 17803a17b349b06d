package cron

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// log applies proposals at once.
type log struct {
	mu sync.Mutex
	*world
	proposals int
	failure   error
}

func (l *log) Propose(_ context.Context, tx *statev1.Transaction) (state.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proposals++
	if l.failure != nil {
		return state.Result{}, l.failure
	}
	l.index++
	return l.store.Apply(l.index, proto.CloneOf(tx))
}

func (l *log) do(f func()) {
	l.mu.Lock()
	l.now = time.Now().UTC()
	f()
	l.mu.Unlock()
	synctest.Wait()
}

// proposed is how many proposals there were.
func (l *log) proposed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proposals
}

// The loop sleeps until a time has come, and is woken by a new cron.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{world: newWorld(t)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- (&Loop{Store: l.store, Proposer: l}).Run(ctx) }()
		synctest.Wait()
		l.do(func() { l.add("backup", "@hourly", nil) }) // the bubble begins at midnight
		l.expect("")
		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		if n := l.proposed(); n != 0 {
			t.Errorf("%d proposals before anything is due", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		l.expect("backup-20000101-0100")
		if n := l.proposed(); n != 1 {
			t.Errorf("%d proposals for one job", n)
		}
		l.do(func() { l.end("backup-20000101-0100", "completed") })
		time.Sleep(time.Hour)
		synctest.Wait()
		l.expect("backup-20000101-0100 completed, backup-20000101-0200")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	})
}

// A failed proposal ends the loop; its caller starts it again.
func TestLoopEndsOnAFailedProposal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		l := &log{world: newWorld(t), failure: broken}
		l.now = time.Now().UTC()
		l.add("backup", "@hourly", nil)
		time.Sleep(90 * time.Minute)
		if err := (&Loop{Store: l.store, Proposer: l}).Run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("it ends with %v", err)
		}
	})
}
