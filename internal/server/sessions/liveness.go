package sessions

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// HoldNodes lets what nodes say wait for a moment while a collection of garbage
// begins.
func HoldNodes(collector *gcpacer.Collector) func(identity.ID) func() {
	return func(member identity.ID) func() {
		if member.Kind() != identity.KindNode {
			return nil
		}
		return collector.Holder()
	}
}

// CutOff reports whether another server passes on what a node says, and does not
// answer: then it is not known who of them is silent.
func (s *Sessions) CutOff(node string) bool {
	current := s.connected.get(node)
	return current != nil && slices.ContainsFunc(s.Consensus.Health(), func(h consensus.Health) bool {
		return h.ID == current.by && h.Silent
	})
}

// pingEvery is how often it is measured how quickly an agent answers.
const pingEvery = 10 * time.Second

// pings measure how quickly an agent answers.
type pings struct {
	mu       sync.Mutex
	due      bool
	sequence uint64
	sent     time.Time // zero if the last one was answered
	last     time.Time
}

// askToPing has a ping sent if it is time for one.
func (s *session) askToPing(now time.Time) {
	s.pings.mu.Lock()
	defer s.pings.mu.Unlock()
	if now.Sub(s.last) >= pingEvery {
		s.due, s.last = true, now
		s.signal()
	}
}

// ping is the next ping, if one is due.
func (s *session) ping(now time.Time) (sequence uint64, ok bool) {
	s.pings.mu.Lock()
	defer s.pings.mu.Unlock()
	if !s.due {
		return 0, false
	}
	s.due = false
	s.sequence++
	s.sent = now
	return s.sequence, true
}

// answered is how long the answer to the last ping took, once.
func (s *session) answered(sequence uint64, now time.Time) (time.Duration, bool) {
	s.pings.mu.Lock()
	defer s.pings.mu.Unlock()
	if sequence != s.sequence || s.sent.IsZero() {
		return 0, false
	}
	took := now.Sub(s.sent)
	s.sent = time.Time{}
	return took, true
}

func (s *session) markTune() { s.raise(&s.tune) }

func (s *session) takeTune() bool { return s.lower(&s.tune) }

// withPace adds to what is sent to an agent how often it should report, and how
// often it will hear that the server is alive, if that is not what it was told.
func (s *Sessions) withPace(current *session, message *v1.Assignments) *v1.Assignments {
	if !current.takeTune() {
		return message
	}
	snap := s.Store.Snapshot()
	live := spec.LivenessOf(snap.Cluster().GetSpec(), snap.Node(current.node))
	every := aliveEvery(snap, live)
	if live.Heartbeat == current.told && every == current.alive {
		return message
	}
	if message == nil {
		message = &v1.Assignments{Epoch: snap.Cluster().GetStatus().GetEpoch()}
	}
	if live.Heartbeat != current.told {
		message.Heartbeat = spec.FormatDuration(live.Heartbeat)
	}
	if every != current.alive {
		message.Alive = spec.FormatDuration(every)
	}
	current.told, current.alive = live.Heartbeat, every
	return message
}

// alive is all that a sign of life says.
var alive = &v1.SessionDown{Message: &v1.SessionDown_Alive{Alive: &v1.Alive{}}}

// aliveEvery is how often an agent hears that its server is alive: so often that it
// can miss one sign, take the server for one that hangs when the next is missing,
// too, and find another before anybody takes the node for offline. Where there is no
// other, it never does.
func aliveEvery(snap *state.Snapshot, live spec.Liveness) time.Duration {
	servers := 0
	for range snap.Servers("") {
		servers++
	}
	if servers < 2 {
		return 0
	}
	return min(max(3*live.Reconnect/10, 100*time.Millisecond), time.Minute)
}

// lifeSigns say when the next sign of life is due.
type lifeSigns struct {
	*time.Ticker
	every time.Duration
	late  int // by how many quarters of that the next one is
}

// due reports whether a sign is to be given now. While garbage is collected it may
// be late by half an interval: thousands of sessions that give one would have to take
// part in the collection.
func (l *lifeSigns) due(collecting bool) bool {
	if collecting && l.late < 2 {
		l.late++
		l.Reset(l.every / 4)
		return false
	}
	if l.late > 0 {
		l.late = 0
		l.Reset(l.every)
	}
	return true
}

// newLifeSigns gives none before the agent was told how often.
func newLifeSigns() *lifeSigns {
	l := &lifeSigns{Ticker: time.NewTicker(time.Hour)}
	l.Stop()
	return l
}

// given notes that the agent has heard something, and how often it was told that it
// will, 0 for never.
func (l *lifeSigns) given(every time.Duration) {
	l.every, l.late = every, 0
	if every == 0 {
		l.Stop()
		return
	}
	l.Reset(every)
}

// errSilent ends the session of a node that was taken for offline: when it
// speaks again it has to say first what became of its replicas.
var errSilent = errors.New("nothing was heard of this node for too long; connect again")

// routeNode tells a node's session what a change of the node means for it.
func (s *Sessions) routeNode(c state.Change) {
	before, _ := c.Old.(*v1.Node)
	after, _ := c.New.(*v1.Node)
	current := s.connected.get(after.GetMetadata().GetUid())
	if current == nil || before == nil {
		return // a session begins with all that a new node must know
	}
	if !proto.Equal(before.GetSpec(), after.GetSpec()) {
		current.markAll()
	}
	if !maps.Equal(spec.NodeLabels(before), spec.NodeLabels(after)) {
		current.markTune()
	}
	went := before.GetStatus().GetState() != spec.NodeOffline && after.GetStatus().GetState() == spec.NodeOffline
	if went && s.Store.Snapshot().Node(current.node).GetStatus().GetState() == spec.NodeOffline {
		current.cancel(errSilent)
	}
}
