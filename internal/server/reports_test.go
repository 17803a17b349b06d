package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/spec"
)

// While reports cannot be written, agents are not sent away as fast as they come.
func TestAgentsSayEverythingAgainAfterAPause(t *testing.T) {
	_, follower := pair(t)
	connected := follower.sessions.enter(follower.ctx, "n1", "", func() {})
	began := time.Now()
	follower.reports.submit("n1", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning}}})
	select {
	case <-connected.ctx.Done():
	case <-follower.ctx.Done():
		t.Fatal("what was lost is not asked for again")
	}
	if cause := context.Cause(connected.ctx); !errors.Is(cause, consensus.ErrNotLeader) {
		t.Errorf("the session ended because of %v", cause)
	}
	if waited := time.Since(began); waited < hearAgainPause {
		t.Errorf("the session ended after %v", waited)
	}
}

// Who comes during the pause has said everything already, and a server that stops does not wait for its end.
func TestWhoIsHeardAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(nil)
		before := s.enter(t.Context(), "n1", "", func() {})
		go s.hearAgain(t.Context(), errors.New("the disk is full"))
		synctest.Wait()
		since := s.enter(t.Context(), "n2", "", func() {})
		time.Sleep(hearAgainPause - time.Nanosecond)
		if before.ctx.Err() != nil {
			t.Error("the session ended before the pause did")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if before.ctx.Err() == nil || since.ctx.Err() != nil {
			t.Errorf("after the pause the one from before has %v, the new one %v", before.ctx.Err(), since.ctx.Err())
		}
		stopped, stop := context.WithCancel(t.Context())
		stop()
		began := time.Now()
		s.hearAgain(stopped, errors.New("the disk is full"))
		if waited := time.Since(began); waited > 0 || since.ctx.Err() != nil {
			t.Errorf("a server that stops has waited for %v", waited)
		}
	})
}
