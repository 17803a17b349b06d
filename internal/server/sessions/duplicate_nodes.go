package sessions

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// duplicateBeats is how many heartbeats of the connected agent must arrive before the
	// other agent is refused: one may still come from a process that is dead.
	duplicateBeats = 2
	// duplicatePatience is how many heartbeat intervals the connected agent has for that.
	duplicatePatience = 4
)

// admitInstance admits a node's agent unless another agent runs on a copy of the same data
// folder, is connected and alive. If the connected agent is silent, its machine has
// restarted, and the new agent replaces it.
func (s *Sessions) admitInstance(ctx context.Context, node, instance, machine string) error {
	beats := 0
	var patience <-chan time.Time
	for {
		connected := s.connected.get(node)
		if instance == "" || connected == nil || connected.instance == "" || connected.instance == instance {
			return nil
		}
		if patience == nil {
			timer := time.NewTimer(duplicatePatience * max(connected.interval(), time.Second))
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-connected.nextHeartbeat():
			if beats++; beats >= duplicateBeats {
				return s.refuseDuplicate(ctx, node, machine)
			}
		case <-connected.ctx.Done():
			beats = 0
		case <-patience:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refuseDuplicate refuses an agent that runs on a copied data folder, and reports it once.
func (s *Sessions) refuseDuplicate(ctx context.Context, node, machine string) error {
	stored := s.Store.Snapshot().Node(node)
	name := stored.GetMetadata().GetName()
	problem := fmt.Sprintf("a copy of the data folder of node %s runs on another machine (%s) and was turned away: stop it there, remove the copy with cloudless down --purge, and join with a new token", name, machine)
	s.noteDuplicate(ctx, stored, "Copied", problem)
	return core.Refuse(codes.AlreadyExists, "this data folder is a copy of that of node %s, which runs elsewhere: remove this copy with cloudless down --purge and join with a new token, or stop the other one first if this machine is to take its place", name)
}

// noteDuplicate reports once why an agent of a node was refused: in the log, as a problem of the cluster, and as an event.
func (s *Sessions) noteDuplicate(ctx context.Context, node *v1.Node, reason, problem string) {
	if !s.duplicates.Note(node.GetMetadata().GetUid(), problem, s.Now()) {
		return
	}
	s.Logger.WarnContext(ctx, "refused an agent", "node", node.GetMetadata().GetName(), "reason", problem)
	_, err := s.Propose(ctx, func(_ *state.Snapshot, b *state.Batch) error {
		b.Create(s.Event(ctx, node, reason, problem))
		return nil
	})
	if err != nil {
		s.Logger.WarnContext(ctx, "cannot write the event about a refused agent", "node", node.GetMetadata().GetName(), "error", err)
	}
}

// machineName describes the machine that an agent says it runs on.
func machineName(status *v1.NodeStatus) string {
	for _, link := range status.GetInterfaces() {
		for _, text := range link.GetAddresses() {
			if prefix, err := netip.ParsePrefix(text); err == nil && link.GetUp() && prefix.Addr().IsGlobalUnicast() {
				return fmt.Sprintf("%s at %s", status.GetInfo().GetHostname(), prefix.Addr())
			}
		}
	}
	return status.GetInfo().GetHostname()
}

// nextHeartbeat returns a channel that is closed at the agent's next heartbeat.
func (s *session) nextHeartbeat() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nextBeat == nil {
		s.nextBeat = make(chan struct{})
	}
	return s.nextBeat
}

// noteHeartbeat wakes goroutines that wait for a heartbeat, and remembers its interval.
func (s *session) noteHeartbeat(beat *v1.Heartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if every, err := time.ParseDuration(beat.GetInterval()); err == nil {
		s.every = every
	}
	if s.nextBeat != nil {
		close(s.nextBeat)
		s.nextBeat = nil
	}
}

func (s *session) interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.every
}
