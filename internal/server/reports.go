package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/state"
)

// reports collects what agents say about their replicas and writes it in
// batches: while one batch is being agreed on, the next one fills.
type reports struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting map[string]report
}

type report struct {
	node   string
	status *v1.ReplicaStatus
}

func newReports() *reports {
	return &reports{wake: make(chan struct{}, 1), waiting: map[string]report{}}
}

func (r *reports) submit(node string, replicas []*v1.ReplicaReport) {
	if len(replicas) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range replicas {
		r.waiting[one.GetUid()] = report{node: node, status: one.GetStatus()}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reports) take() map[string]report {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.waiting
	r.waiting = map[string]report{}
	return taken
}

// record writes reports until ctx ends.
func (s *Server) record(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.reports.wake:
		}
		batch := s.reports.take()
		_, err := s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			for _, uid := range slices.Sorted(maps.Keys(batch)) {
				s.recordOne(ctx, snap, b, uid, batch[uid])
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			// The agent says everything again when it connects again.
			s.logger.WarnContext(ctx, "reports could not be written", "replicas", len(batch), slog.Any("error", err))
			s.sessions.each(func(one *session) { one.cancel(err) })
		}
	}
}

// recordOne adds a report to the batch if the replica belongs to the node that
// reported it and has not ended already.
func (s *Server) recordOne(ctx context.Context, snap *state.Snapshot, b *state.Batch, uid string, said report) {
	old := snap.Replica(uid)
	if old == nil || old.GetSpec().GetNodeUid() != said.node || rollout.Ended(old.GetStatus().GetPhase()) {
		return
	}
	if proto.Equal(old.GetStatus(), said.status) {
		return
	}
	r := proto.CloneOf(old)
	r.Status = proto.CloneOf(said.status)
	if rollout.Ended(r.GetStatus().GetPhase()) && r.Status.EndTime == nil {
		r.Status.EndTime = timestamppb.New(s.now())
	}
	b.Update(r, old.GetMetadata().GetVersion())
	if reason, message, severe := transition(old.GetStatus(), r.GetStatus()); reason != "" {
		e := s.event(ctx, r, reason, message)
		e.Spec.Actor = "node/" + old.GetSpec().GetNode()
		if severe {
			e.Spec.Severity = "warning"
		}
		b.Create(e)
	}
}

// transition says in words what changed between two statuses, if it is worth
// an event.
func transition(before, after *v1.ReplicaStatus) (reason, message string, severe bool) {
	exit := after.GetLastExit()
	switch {
	case exit != nil && !proto.Equal(before.GetLastExit(), exit) && after.GetPhase() != rollout.PhaseStopped:
		message = fmt.Sprintf("exit code %d", exit.GetCode())
		if exit.GetOomKilled() {
			message = "killed because it used more memory than its limit"
		} else if exit.GetReason() != "" {
			message += ": " + exit.GetReason()
		}
		return "Exited", message, exit.GetCode() != 0
	case before.GetPhase() == after.GetPhase():
		return "", "", false
	case after.GetPhase() == rollout.PhaseRunning:
		return "Started", "", false
	case after.GetPhase() == rollout.PhaseStopped:
		return "Stopped", "", false
	case after.GetPhase() == rollout.PhaseBackoff, after.GetPhase() == rollout.PhaseFailed:
		return "Failed", after.GetReason(), true
	}
	return "", "", false
}
