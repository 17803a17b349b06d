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

// HoldNodes delays messages of nodes for a moment when a garbage collection begins.
func HoldNodes(collector *gcpacer.Collector) func(identity.ID) func() {
	return func(member identity.ID) func() {
		if member.Kind() != identity.KindNode {
			return nil
		}
		return collector.Holder()
	}
}

// CutOff reports whether the node's session is relayed by a server that does not answer.
// Then it is unknown whether the node is silent, or only that server.
func (s *Sessions) CutOff(node string) bool {
	current := s.connected.get(node)
	return current != nil && slices.ContainsFunc(s.Consensus.Health(), func(h consensus.Health) bool {
		return h.ID == current.relay && h.Silent
	})
}

// pingEvery is the interval between two pings of an agent.
const pingEvery = 10 * time.Second

// pings measure how quickly an agent answers.
type pings struct {
	mu       sync.Mutex
	due      bool
	sequence uint64
	sent     time.Time // zero if the last ping was answered
	last     time.Time // when a ping was scheduled
}

// schedule makes a ping due if it is time for one, and reports whether it did.
func (p *pings) schedule(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) < pingEvery {
		return false
	}
	p.due, p.last = true, now
	return true
}

// take returns the sequence number of the next ping, if one is due.
func (p *pings) take(now time.Time) (sequence uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.due {
		return 0, false
	}
	p.due = false
	p.sequence++
	p.sent = now
	return p.sequence, true
}

// answered returns how long the answer to the last ping took. Only the first answer counts.
func (p *pings) answered(sequence uint64, now time.Time) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sequence != p.sequence || p.sent.IsZero() {
		return 0, false
	}
	took := now.Sub(p.sent)
	p.sent = time.Time{}
	return took, true
}

// withPace adds the intervals of heartbeats and keepalives, and the memory to reserve, to a
// message if they differ from those that the agent knows. The message may be nil.
func (s *Sessions) withPace(current *session, message *v1.Assignments) *v1.Assignments {
	if !current.takePace() {
		return message
	}
	snap := s.Store.Snapshot()
	live := spec.LivenessOf(snap.Cluster().GetSpec(), snap.Node(current.node))
	every := aliveEvery(snap, live)
	reserved := spec.NodePolicyOf(snap.Cluster().GetSpec(), snap.Node(current.node)).Reserved.GetMemory()
	disk := spec.DiskLimitsOf(snap.Cluster().GetSpec())
	if live.Heartbeat == current.heartbeat && every == current.alive && reserved == current.reserved && proto.Equal(disk, current.disk) {
		return message
	}
	if message == nil {
		message = &v1.Assignments{Epoch: snap.Cluster().GetStatus().GetEpoch()}
	}
	if live.Heartbeat != current.heartbeat {
		message.Heartbeat = spec.FormatDuration(live.Heartbeat)
	}
	if every != current.alive {
		message.Alive = spec.FormatDuration(every)
	}
	if reserved != current.reserved {
		message.ReservedMemory = reserved
	}
	if !proto.Equal(disk, current.disk) {
		message.Disk = disk
	}
	current.heartbeat, current.alive, current.reserved, current.disk = live.Heartbeat, every, reserved, disk
	return message
}

// aliveEvery returns the interval of keepalives, 0 for none. An agent may miss one
// keepalive. If it misses two, it takes the server for hung, and still has time to
// connect to another server before its node counts as offline. A lone server sends no
// keepalives, because its agents have no other server.
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

// alive is the keepalive message.
var alive = &v1.SessionDown{Message: &v1.SessionDown_Alive{Alive: &v1.Alive{}}}

// keepalive ticks when the next keepalive is due.
type keepalive struct {
	*time.Ticker
	every time.Duration
	late  int // by how many quarters of every the next keepalive is late
}

// newKeepalive returns a keepalive that does not tick before restart.
func newKeepalive() *keepalive {
	k := &keepalive{Ticker: time.NewTicker(time.Hour)}
	k.Stop()
	return k
}

// due reports whether to send a keepalive after a tick. A garbage collection may delay it
// by half an interval: otherwise thousands of sessions would have to assist the collector.
func (k *keepalive) due(collecting bool) bool {
	if collecting && k.late < 2 {
		k.late++
		k.Reset(k.every / 4)
		return false
	}
	if k.late > 0 {
		k.late = 0
		k.Reset(k.every)
	}
	return true
}

// restart begins a new interval after a message to the agent. 0 stops the keepalives.
func (k *keepalive) restart(every time.Duration) {
	k.every, k.late = every, 0
	if every == 0 {
		k.Stop()
		return
	}
	k.Reset(every)
}

// errSilent ends the session of a node that counts as offline. In its next session the
// agent reports first what became of its replicas.
var errSilent = errors.New("this node was silent for too long; connect again")

// routeNode marks a node's session after a change of the node.
func (s *Sessions) routeNode(c state.Change) {
	before, _ := c.Old.(*v1.Node)
	after, _ := c.New.(*v1.Node)
	current := s.connected.get(after.GetMetadata().GetUid())
	if current == nil || before == nil {
		return // a new session sends everything
	}
	if !proto.Equal(before.GetSpec(), after.GetSpec()) {
		current.markAll()
	}
	if !maps.Equal(spec.NodeLabels(before), spec.NodeLabels(after)) {
		current.markPace()
		current.markIngress() // it may answer for other routes now
	}
	went := before.GetStatus().GetState() != spec.NodeOffline && after.GetStatus().GetState() == spec.NodeOffline
	if went && s.Store.Snapshot().Node(current.node).GetStatus().GetState() == spec.NodeOffline {
		current.cancel(errSilent)
	}
}
