package sessions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// unitSessions are sessions that neither read nor change a state.
func unitSessions() *Sessions {
	return New(Options{Core: &core.Core{UID: "s-1", Store: state.New(), Clock: time.Now}})
}

// While reports cannot be written, agents are not sent away as fast as they come.
func TestAgentsSayEverythingAgainAfterAPause(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := state.New()
	agreed, err := consensus.Open(ctx, consensus.Options{ // which never leads
		Dir: t.TempDir(), ServerID: "s-1", Address: "127.0.0.1:0", Network: peers.NewLink(peers.Raft), Store: store, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { check(t, agreed.Close()) })
	s := New(Options{Core: &core.Core{UID: "s-1", Store: store, Consensus: agreed, Clock: time.Now, Logger: slog.New(slog.DiscardHandler)}})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	connected := s.connected.enter(ctx, "n1", "", func() {})
	began := time.Now()
	s.reports.submit("n1", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning}}})
	<-connected.ctx.Done()
	if cause := context.Cause(connected.ctx); !errors.Is(cause, consensus.ErrNotLeader) {
		t.Errorf("the session ended because of %v", cause)
	}
	if waited := time.Since(began); waited < hearAgainPause {
		t.Errorf("the session ended after %v", waited)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the sessions ended with %v", err)
	}
}

// Who comes during the pause has said everything already, and a server that stops does not wait for its end.
func TestWhoIsHeardAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTable(nil)
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

func TestOneNodesReportNeverTakesThePlaceOfAnothers(t *testing.T) {
	r := newReports()
	r.submit("a", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning}}})
	r.submit("b", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseFailed}}})
	r.submit("a", []*v1.ReplicaReport{{Uid: "r", Status: &v1.ReplicaStatus{Phase: spec.PhaseBackoff}}})
	taken := r.take()
	if len(taken) != 2 || taken[reported{"a", "r"}].GetPhase() != spec.PhaseBackoff {
		t.Errorf("took %v, want the newest word of each node", taken)
	}
	if len(r.take()) != 0 {
		t.Error("what was taken is still there")
	}
}

func TestReportWithoutAPhaseIsIgnored(t *testing.T) {
	store := state.New()
	var stored, b state.Batch
	stored.Create(&v1.Replica{
		Metadata: &v1.Metadata{Uid: "r", Name: "web-1", Namespace: "default"},
		Spec:     &v1.ReplicaSpec{NodeUid: "n"}, Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning},
	})
	_, err := store.Apply(1, stored.Transaction(time.Now()))
	must(t, err)
	for _, said := range []*v1.ReplicaStatus{nil, {}, {Reason: "nothing else"}} {
		unitSessions().recordOne(t.Context(), store.Snapshot(), &b, reported{"n", "r"}, said, &transitions{})
	}
	if b.Len() != 0 {
		t.Errorf("reports without a phase made %d changes", b.Len())
	}
}

// Many replicas that start at once are told of together, few one by one; what
// has more to say is always told alone.
func TestManyStartsAreOneEvent(t *testing.T) {
	s, store := unitSessions(), state.New()
	var b state.Batch
	b.Create(&v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}})
	for i := range fewTransitions + 2 {
		uid := fmt.Sprintf("r%03d", i)
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid, Namespace: "default"},
			Spec:     &v1.ReplicaSpec{WorkloadUid: "w", Workload: "web", NodeUid: "n", Node: "n"}, Status: &v1.ReplicaStatus{Phase: spec.PhasePlaced},
		})
	}
	_, err := store.Apply(1, b.Transaction(time.Now()))
	must(t, err)
	tell := func(starting int) (said []string) {
		var b state.Batch
		transitions := &transitions{}
		record := func(i int, status *v1.ReplicaStatus) {
			s.recordOne(t.Context(), store.Snapshot(), &b, reported{"n", fmt.Sprintf("r%03d", i)}, status, transitions)
		}
		record(starting, &v1.ReplicaStatus{Phase: spec.PhaseFailed, Reason: "no such program"})
		for i := range starting {
			record(i, &v1.ReplicaStatus{Phase: spec.PhaseRunning})
		}
		transitions.tell(t.Context(), s, store.Snapshot(), &b)
		for _, change := range b.Transaction(time.Now()).GetChanges() {
			if e := change.GetPut().GetEvent().GetSpec(); e != nil {
				said = append(said, fmt.Sprintf("%s by %s: %s %s", e.GetObjectName(), e.GetActor(), e.GetReason(), e.GetMessage()))
			}
		}
		return said
	}
	want := []string{"web-r002 by node/n: Failed no such program", "web-r000 by node/n: Started ", "web-r001 by node/n: Started "}
	if got := tell(2); !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
	many := fewTransitions + 1
	want = []string{
		fmt.Sprintf("web-r%03d by node/n: Failed no such program", many),
		fmt.Sprintf("web by server/%s: Started %d replicas", s.UID, many),
	}
	if got := tell(many); !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
}
