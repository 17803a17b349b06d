package sessions

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The agents report everything again, but they do not reconnect in a tight loop while writing fails.
func TestFailedWriteEndsSessionsAfterAPause(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store, logger := state.New(), slog.New(slog.DiscardHandler)
	neverLeads, err := consensus.Open(ctx, consensus.Options{
		Dir: t.TempDir(), ServerID: "s-1", Address: "127.0.0.1:0", Network: peers.NewLink(peers.Raft), Store: store, Logger: logger,
	})
	must.Succeed(t, err)
	t.Cleanup(func() {
		if err := neverLeads.Close(); err != nil {
			t.Error(err)
		}
	})
	s := New(Options{Core: &core.Core{UID: "s-1", Store: store, Consensus: neverLeads, Clock: time.Now, Logger: logger}})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	connected := s.connected.enter(ctx, "n1", "", func() {})
	began := time.Now()
	s.reports.submit("n1", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning}}})
	<-connected.ctx.Done()
	if cause := context.Cause(connected.ctx); !errors.Is(cause, consensus.ErrNotLeader) {
		t.Errorf("the session ended because of %v", cause)
	}
	if waited := time.Since(began); waited < endAllPause {
		t.Errorf("the session ended after %v", waited)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the sessions ended with %v", err)
	}
}

func TestSessionThatBeginsDuringThePauseStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTable(nil)
		before := s.enter(t.Context(), "n1", "", func() {})
		go s.endAll(t.Context(), errors.New("the disk is full"))
		synctest.Wait()
		since := s.enter(t.Context(), "n2", "", func() {})
		time.Sleep(endAllPause - time.Nanosecond)
		if before.ctx.Err() != nil {
			t.Error("the session ended before the pause did")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if before.ctx.Err() == nil || since.ctx.Err() != nil {
			t.Errorf("after the pause the old session has %v and the new one %v", before.ctx.Err(), since.ctx.Err())
		}
	})
}

func TestStoppingServerDoesNotWaitForThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTable(nil)
		connected := s.enter(t.Context(), "n1", "", func() {})
		stopped, stop := context.WithCancel(t.Context())
		stop()
		began := time.Now()
		s.endAll(stopped, errors.New("the disk is full"))
		if waited := time.Since(began); waited > 0 || connected.ctx.Err() != nil {
			t.Errorf("after %v the session has %v", waited, connected.ctx.Err())
		}
	})
}

func TestReportOfOneNodeNeverReplacesThatOfAnother(t *testing.T) {
	r := newReports()
	r.submit("a", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning}}})
	r.submit("b", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseFailed}}})
	r.submit("a", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseBackoff}}})
	taken := r.take()
	if len(taken) != 2 || taken[reportKey{"a", "r"}].GetPhase() != spec.PhaseBackoff {
		t.Errorf("took %v, want the newest report of each node", taken)
	}
	if left := r.take(); len(left) != 0 {
		t.Errorf("reports are taken twice: %v", left)
	}
}

func TestReportWithoutAPhaseIsIgnored(t *testing.T) {
	store := storeWith(t, &v1.Replica{
		Metadata: &v1.Metadata{Uid: "r", Name: "web-1", Namespace: "default"},
		Spec:     &v1.ReplicaSpec{NodeUid: "n"}, Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning},
	})
	var b state.Batch
	for _, status := range []*v1.ReplicaStatus{nil, {}, {Reason: "nothing else"}} {
		unitSessions().addReport(t.Context(), store.Snapshot(), &b, reportKey{"n", "r"}, status, &transitions{})
	}
	if b.Len() != 0 {
		t.Errorf("reports without a phase made %d changes", b.Len())
	}
}
