package sessions

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/routes"
	"github.com/cloudless/cloudless/internal/server/auth"
)

// table holds the sessions of the connected agents, at most one for each node.
type table struct {
	mu      sync.Mutex
	byNode  map[string]*session
	changed chan struct{} // closed when an agent connects or disconnects
	turns   *turns
}

func newTable(pause func(context.Context) bool) *table {
	return &table{byNode: map[string]*session{}, changed: make(chan struct{}), turns: newTurns(pause)}
}

// announce wakes goroutines that wait for a node. The caller holds the lock.
func (t *table) announce() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *table) get(node string) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byNode[node]
}

// look returns the node's session, or nil, and a channel that is closed when that may
// have changed.
func (t *table) look(node string) (*session, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byNode[node], t.changed
}

func (t *table) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byNode)
}

// each calls f for every session while it holds the lock.
func (t *table) each(f func(*session)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.byNode {
		f(one)
	}
}

var errReplaced = errors.New("another session of the same node has taken over")

// enter makes a new session the node's current one and ends the older one. It calls
// begin before another session of the node can enter or leave.
func (t *table) enter(ctx context.Context, node, instance string, begin func()) *session {
	ctx, cancel := context.WithCancelCause(ctx)
	entered := &session{
		node: node, instance: instance, relay: auth.RelayedBy(ctx), ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1),
		full: true, servers: true, pace: true, networkFull: true, ingressDue: true, secretsDue: true, trustDue: true, asked: map[string]bool{}, dirty: map[string]bool{}, turns: t.turns,
	}
	entered.signal()
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.byNode[node]; old != nil {
		old.cancel(errReplaced)
		old.finish()
	}
	t.byNode[node] = entered
	t.announce()
	begin()
	return entered
}

// leave ends a session. It calls end if the node has no session afterwards.
func (t *table) leave(gone *session, end func()) {
	gone.cancel(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byNode[gone.node] == gone {
		gone.finish()
		delete(t.byNode, gone.node)
		t.announce()
		end()
	}
}

// session is the queue of messages for one agent. It holds only the uids of replicas.
// Their assignments are read from the state when they are sent, so that a slow agent
// costs no memory and never gets outdated assignments.
type session struct {
	node     string
	instance string // identifies the agent's process; empty if the agent does not send it
	relay    string // the server that relays the session; empty if the agent is connected to this one
	ctx      context.Context
	cancel   context.CancelCauseFunc
	wake     chan struct{}

	mu    sync.Mutex
	full  bool            // the agent needs all assignments
	dirty map[string]bool // replicas that have changed
	// queued is set while the session waits for its turn to send dirty replicas, and turn
	// when it has the turn.
	turns        *turns
	queued, turn bool
	opens        []*v1.Open
	lease        *v1.Lease // to be sent; nil if there is none
	servers      bool      // the agent needs the addresses of the servers
	pace         bool      // the agent may need other intervals
	// networkFull says that the agent needs all of its network; otherwise it needs the changes in network. namespaces
	// are those whose replicas and services it follows, and asked those that it has asked for.
	networkFull       bool
	network           []*v1.Network
	namespaces, asked map[string]bool
	// ingressDue says that the agent may need something else for routes.
	ingressDue bool
	// secretsDue says that the agent may need other secrets, and secrets is what was sent to it. Only the sender changes it.
	secretsDue bool
	secrets    nodeSecrets
	// trustDue says that the agent may need to trust other authorities; trusts is what it has said last.
	trustDue bool
	trusts   *v1.TrustUp
	// nextBeat is closed at the agent's next heartbeat, and nil if nothing waits for it.
	nextBeat chan struct{}
	every    time.Duration // the agent's interval between heartbeats

	// heartbeat and alive are the intervals, reserved the memory, and disk the limits, that were sent to the agent. Only the sender uses
	// them.
	heartbeat, alive time.Duration
	reserved         string
	disk             *v1.DiskLimits
	// ingressKnown is what the agent knows of routes; nil if nothing was sent. Only the sender uses it.
	ingressKnown *routes.Set
	// granting is set while a request for leases is being answered.
	granting atomic.Bool
	pings    pings

	// handling is held while a message of the agent is handled. No message is handled
	// after over is set.
	handling sync.Mutex
	over     bool
}

// handle calls f if the session is still the node's current one: a late message of an
// older session must not overwrite what the newer one has sent. Each session has its own
// lock, because thousands of sessions send messages every second.
func (s *session) handle(f func()) {
	s.handling.Lock()
	defer s.handling.Unlock()
	if !s.over {
		f()
	}
}

// finish makes handle ignore all later messages.
func (s *session) finish() {
	s.handling.Lock()
	defer s.handling.Unlock()
	s.over = true
}

func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// mark makes the session send a replica when it gets its turn.
func (s *session) mark(replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty[replica] = true
	if !s.queued {
		s.queued = true
		s.turns.ask(s)
	}
}

// grant gives the session its turn.
func (s *session) grant() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued, s.turn = false, true
	s.signal()
}

func (s *session) open(o *v1.Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens = append(s.opens, o)
	s.signal()
}

func (s *session) markAll() { s.raise(&s.full) }

func (s *session) markServers() { s.raise(&s.servers) }

func (s *session) takeServers() bool { return s.lower(&s.servers) }

func (s *session) markPace() { s.raise(&s.pace) }

func (s *session) takePace() bool { return s.lower(&s.pace) }

// raise sets a flag and wakes the sender.
func (s *session) raise(flag *bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*flag = true
	s.signal()
}

// lower clears a flag and reports whether it was set.
func (s *session) lower(flag *bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := *flag
	*flag = false
	return was
}

// take returns and clears what is marked: all assignments, or those of the dirty replicas.
func (s *session) take() (full bool, dirty []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full = s.full
	for uid := range s.dirty {
		dirty = append(dirty, uid)
	}
	slices.Sort(dirty)
	s.full = false
	clear(s.dirty)
	return full, dirty
}

func (s *session) takeOpens() []*v1.Open {
	s.mu.Lock()
	defer s.mu.Unlock()
	opens := s.opens
	s.opens = nil
	return opens
}

// mayAssign reports whether assignments may be sent now. Only dirty replicas wait for a
// turn, and not even those if a stream waits to be opened: the agent may have to learn of
// the stream's replica first.
func (s *session) mayAssign() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	may := s.turn || s.full || len(s.dirty) == 0 || len(s.opens) > 0
	s.turn = false
	return may
}
