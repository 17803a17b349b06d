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
	// duplicateWords is how many messages of the connected agent must arrive before
	// the other agent is refused: one may still come from a process that is dead.
	duplicateWords = 2
	// duplicatePatience is how many heartbeat intervals the connected agent has for that.
	duplicatePatience = 4
)

// admitInstance lets a node's agent in unless one that runs on another copy of
// its data folder is there and alive. An older one that says nothing any more
// has lost its machine: that is no copy but a restart.
func (s *Sessions) admitInstance(ctx context.Context, node, instance, from string) error {
	heard := 0
	var patience <-chan time.Time
	for {
		there, _ := s.connected.look(node)
		if instance == "" || there == nil || there.instance == "" || there.instance == instance {
			return nil
		}
		if patience == nil {
			timer := time.NewTimer(duplicatePatience * max(there.interval(), time.Second))
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-there.nextWord():
			if heard++; heard >= duplicateWords {
				return s.turnAway(ctx, node, from)
			}
		case <-there.ctx.Done():
			heard = 0
		case <-patience:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// turnAway refuses a copy and lets everybody know.
func (s *Sessions) turnAway(ctx context.Context, node, from string) error {
	stored := s.Store.Snapshot().Node(node)
	name := stored.GetMetadata().GetName()
	sentence := fmt.Sprintf("a copy of the data folder of node %s runs on another machine (%s) and was turned away: stop it there, remove the copy with cloudless down --purge, and join with a new token", name, from)
	if s.refused.Note(node, sentence, s.Now()) {
		s.Logger.Warn("copy of a node turned away", "node", name, "from", from)
		_, err := s.Propose(ctx, func(_ *state.Snapshot, b *state.Batch) error {
			b.Create(s.Event(ctx, stored, "Copied", sentence))
			return nil
		})
		if err != nil {
			s.Logger.Warn("that a copy of a node was turned away could not be noted", "node", name, "error", err)
		}
	}
	return core.Refuse(codes.AlreadyExists, "this data folder is a copy of that of node %s, which runs elsewhere: remove this copy with cloudless down --purge and join with a new token, or stop the other one first if this machine is to take its place", name)
}

// origin is which machine an agent says that it runs on.
func origin(status *v1.NodeStatus) string {
	for _, link := range status.GetInterfaces() {
		for _, text := range link.GetAddresses() {
			if prefix, err := netip.ParsePrefix(text); err == nil && link.GetUp() && prefix.Addr().IsGlobalUnicast() {
				return fmt.Sprintf("%s at %s", status.GetInfo().GetHostname(), prefix.Addr())
			}
		}
	}
	return status.GetInfo().GetHostname()
}

// nextWord is closed when the agent says something.
func (s *session) nextWord() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.word == nil {
		s.word = make(chan struct{})
	}
	return s.word
}

// heard notes that the agent has said something, and how often it means to.
func (s *session) heard(beat *v1.Heartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if every, err := time.ParseDuration(beat.GetInterval()); err == nil {
		s.every = every
	}
	if s.word != nil {
		close(s.word)
		s.word = nil
	}
}

func (s *session) interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.every
}
