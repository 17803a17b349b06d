package sessions

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Nodes receives what the agents' sessions report. Its methods must not block.
type Nodes interface {
	// Connected gets the address that the session came from, if it is known.
	Connected(uid string, machine netip.Addr, status *v1.NodeStatus)
	Heartbeat(uid string, beat *v1.Heartbeat)
	// Answered gets the time that an agent took to answer a ping.
	Answered(uid string, took time.Duration)
	// Goodbye gets the reason why an agent will not be back soon.
	Goodbye(uid, reason string)
	Disconnected(uid string)
}

// Sessions are the sessions of all agents with this server. It is the AgentService.
type Sessions struct {
	v1.UnsafeAgentServiceServer
	*core.Core
	nodes     Nodes
	collector *gcpacer.Collector // may be nil
	login     func(*state.Snapshot, *v1.Revision) *v1.RegistryLogin
	addresses func() []string
	refused   *core.Duplicates

	connected   *table
	encoded     *encodedRevisions
	attachments *attachments
	reports     *reports
	progress    *progress
}

// Options is what Sessions are made of.
type Options struct {
	Core  *core.Core
	Nodes Nodes
	// Collector says when sessions wait for a garbage collection. It may be nil.
	Collector *gcpacer.Collector
	// Login returns the login with which a node pulls the image of a revision.
	Login func(*state.Snapshot, *v1.Revision) *v1.RegistryLogin
	// Addresses returns the addresses of all servers.
	Addresses func() []string
	// Duplicates remembers agents that were refused.
	Duplicates *core.Duplicates
}

// New makes the sessions of a server.
func New(o Options) *Sessions {
	return &Sessions{
		Core: o.Core, nodes: o.Nodes, collector: o.Collector, login: o.Login, addresses: o.Addresses, refused: o.Duplicates,
		connected: newTable(o.Collector.Pause), encoded: newEncodedRevisions(),
		attachments: &attachments{waiting: map[string]*attachment{}}, reports: newReports(), progress: newProgress(),
	}
}

// Run writes the agents' reports and gives sessions their turns until ctx ends.
func (s *Sessions) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.connected.turns.run(ctx) })
	g.Go(func() error { return s.record(ctx) })
	return g.Wait()
}

// Count returns how many agents are connected.
func (s *Sessions) Count() int { return s.connected.count() }

// Connected reports whether a node's agent is connected. The channel is closed when
// that may have changed.
func (s *Sessions) Connected(node string) (connected bool, changed <-chan struct{}) {
	current, changed := s.connected.look(node)
	return current != nil, changed
}

// CatchUp does what Route does, for all changes that may have been missed.
func (s *Sessions) CatchUp(snap *state.Snapshot) {
	s.connected.each(func(one *session) {
		one.markServers()
		one.markTune()
		one.markAll()
		if snap.Node(one.node).GetStatus().GetState() == spec.NodeOffline {
			one.cancel(errSilent)
		}
	})
	s.progress.forgetMissing(snap)
}

// Route marks the sessions that a change concerns: their agents must be told of it.
func (s *Sessions) Route(c state.Change) {
	switch {
	case c.Kind == state.KindServer:
		s.connected.each(func(one *session) {
			one.markServers()
			one.markTune() // signs of life are for those who have a choice
		})
	case c.Kind == state.KindPassword:
		s.connected.each((*session).markAll) // whoever pulls may need it now
	case c.Kind == state.KindCluster:
		s.connected.each((*session).markTune)
	case c.Kind == state.KindNode && c.New != nil:
		s.routeNode(c)
	case c.Kind == state.KindReplica:
		before, _ := c.Old.(*v1.Replica)
		after, _ := c.New.(*v1.Replica)
		uid, nodes := assignment.Concerned(before, after)
		if after == nil {
			s.progress.forget(uid)
		}
		for _, node := range nodes {
			if current := s.connected.get(node); current != nil {
				current.mark(uid)
			}
		}
	}
}

// table has the agents that are connected now, one session for each node.
type table struct {
	mu      sync.Mutex
	byNode  map[string]*session
	changed chan struct{} // closed when a node comes or goes
	turns   *turns
}

func newTable(pause func(context.Context) bool) *table {
	return &table{byNode: map[string]*session{}, changed: make(chan struct{}), turns: newTurns(pause)}
}

// announce wakes those who wait for a node. It is called with the lock held.
func (s *table) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// look returns the node's session, if there is one, and what is closed when
// that may have changed.
func (s *table) look(node string) (*session, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNode[node], s.changed
}

// session is what waits to be sent to one agent. Only names of replicas wait
// here: what is sent about them is read at the moment of sending, so that a
// slow agent costs no memory and receives no outdated word.
type session struct {
	node   string
	ctx    context.Context
	cancel context.CancelCauseFunc
	wake   chan struct{}

	mu    sync.Mutex
	full  bool
	dirty map[string]bool
	// queued is set while the session waits for its turn to be told of dirty ones,
	// and turn when that has come.
	turns        *turns
	queued, turn bool
	opens        []*v1.Open
	// servers is set when the agent does not know where all servers are.
	servers bool
	// tune is set when the agent may have to report at another pace than it was
	// told.
	tune bool
	// told is that pace, and alive how often it hears that the server is alive; only
	// the sender's.
	told, alive time.Duration
	pings
	// word is closed at the agent's next word, if somebody waits for one, and every
	// is how often it speaks.
	word  chan struct{}
	every time.Duration

	instance string // of the agent; empty if it does not say
	by       string // the server that passes on what the agent says; empty if none does

	// speaking is held while something that the agent said is acted on, which ends
	// when over is set.
	speaking sync.Mutex
	over     bool
}

var errReplaced = errors.New("another session of the same node has taken over")

// enter makes a new session the node's current one and ends an older one. What
// the new one begins with is done before anybody else can enter or leave.
func (s *table) enter(ctx context.Context, node, instance string, begin func()) *session {
	ctx, cancel := context.WithCancelCause(ctx)
	entered := &session{node: node, instance: instance, by: auth.RelayedBy(ctx), ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), full: true, servers: true, tune: true, dirty: map[string]bool{}, turns: s.turns}
	entered.signal()
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byNode[node]; old != nil {
		old.cancel(errReplaced)
		old.finish()
	}
	s.byNode[node] = entered
	s.announce()
	begin()
	return entered
}

// leave ends a session, and calls end if the node has none any more.
func (s *table) leave(gone *session, end func()) {
	gone.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byNode[gone.node] == gone {
		gone.finish()
		delete(s.byNode, gone.node)
		s.announce()
		end()
	}
}

// during calls f if the session is still the node's current one: what an older
// one says late must not overwrite what the newer one has said. Sessions do not
// wait for each other here: thousands speak every second.
func (s *session) during(f func()) {
	s.speaking.Lock()
	defer s.speaking.Unlock()
	if !s.over {
		f()
	}
}

// finish has nothing more acted on that the agent says.
func (s *session) finish() {
	s.speaking.Lock()
	defer s.speaking.Unlock()
	s.over = true
}

func (s *table) get(node string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNode[node]
}

// count is how many agents are connected.
func (s *table) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byNode)
}

// each calls f for every session there is.
func (s *table) each(f func(*session)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.byNode {
		f(one)
	}
}

func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) mark(replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty[replica] = true
	if !s.queued {
		s.queued = true
		s.turns.ask(s)
	}
}

// grant lets the agent be told of what has changed.
func (s *session) grant() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued, s.turn = false, true
	s.signal()
}

func (s *session) markAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = true
	s.signal()
}

func (s *session) open(o *v1.Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens = append(s.opens, o)
	s.signal()
}

// raise sets something that the agent must be told of.
func (s *session) raise(flag *bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*flag = true
	s.signal()
}

// lower reports whether it was set, and that once.
func (s *session) lower(flag *bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := *flag
	*flag = false
	return was
}

// take empties the session of what is about replicas.
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

// takeOpens empties it of what is to be opened.
func (s *session) takeOpens() []*v1.Open {
	s.mu.Lock()
	defer s.mu.Unlock()
	opens := s.opens
	s.opens = nil
	return opens
}

// free reports whether nothing has to wait for a turn any more. What is to be opened
// may be of a replica that the agent has yet to be told of.
func (s *session) free() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.turn || s.full || len(s.dirty) == 0 || len(s.opens) > 0
	s.turn = false
	return free
}

func (s *Sessions) Session(stream grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown]) error {
	if !s.Consensus.IsLeader() {
		return core.Refuse(codes.Unavailable, "this server does not lead the cluster now; try another one")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return core.Refuse(codes.InvalidArgument, "a session begins with hello")
	}
	node := core.Caller(stream.Context()).ID.Name()
	if err := checkStatus(hello.GetStatus()); err != nil {
		return err
	}
	if err := s.admitInstance(stream.Context(), node, hello.GetInstance(), origin(hello.GetStatus())); err != nil {
		return err
	}
	current := s.connected.enter(stream.Context(), node, hello.GetInstance(), func() {
		s.nodes.Connected(node, auth.MachineOf(stream.Context()), hello.GetStatus())
		s.reports.submit(node, s.progress.take(s.Store.Snapshot(), node, hello.GetReplicas()))
	})
	defer s.connected.leave(current, func() {
		s.nodes.Disconnected(node)
		s.progress.drop(node)
	})
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, current) }() // ends with the stream
	return s.send(stream, current, received)
}

// maxNodeStatus bounds what one node can put into the replicated state.
const maxNodeStatus = 256 << 10

func checkStatus(status *v1.NodeStatus) error {
	if size := proto.Size(status); size > maxNodeStatus {
		return core.Refuse(codes.InvalidArgument, "the node's status has %d bytes, more than the %d that a node may take", size, maxNodeStatus)
	}
	return nil
}

// receive takes what the agent says until the stream ends.
func (s *Sessions) receive(stream grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown], current *session) error {
	node := current.node
	for {
		up, err := stream.Recv()
		if err != nil {
			return err
		}
		switch m := up.GetMessage().(type) {
		case *v1.SessionUp_Heartbeat:
			if err := checkStatus(m.Heartbeat.GetStatus()); err != nil {
				return err
			}
			current.heard(m.Heartbeat)
			current.during(func() { s.nodes.Heartbeat(node, m.Heartbeat) })
			current.askToPing(time.Now())
		case *v1.SessionUp_Pong:
			if took, ok := current.answered(m.Pong.GetSequence(), time.Now()); ok {
				current.during(func() { s.nodes.Answered(node, took) })
			}
		case *v1.SessionUp_Goodbye:
			current.during(func() { s.nodes.Goodbye(node, brief(m.Goodbye.GetReason())) })
		case *v1.SessionUp_Report:
			current.during(func() {
				s.reports.submit(node, s.progress.take(s.Store.Snapshot(), node, m.Report.GetReplicas()))
				s.reports.submitEvents(node, m.Report.GetEvents(), s.Now())
			})
		default:
			return core.Refuse(codes.InvalidArgument, "after hello a session takes heartbeats, reports, pongs and a goodbye only")
		}
	}
}

// send passes on what waits in the session until the stream ends.
func (s *Sessions) send(stream grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown], current *session, received <-chan error) error {
	life := newLifeSigns()
	defer life.Stop()
	for {
		select {
		case err := <-received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-current.ctx.Done():
			return core.Refuse(codes.Unavailable, "%s", context.Cause(current.ctx))
		case <-life.C:
			if !life.due(s.collector.Holds()) {
				continue
			}
			if err := stream.Send(alive); err != nil {
				return err
			}
			continue
		case <-current.wake:
		}
		if current.free() {
			sent, err := s.sendAssignments(stream, current)
			if err != nil {
				return err
			}
			if sent {
				life.given(current.alive)
			}
		}
		if sequence, ok := current.ping(time.Now()); ok {
			if err := stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Ping{Ping: &v1.Ping{Sequence: sequence}}}); err != nil {
				return err
			}
		}
		for _, o := range current.takeOpens() {
			if err := stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Open{Open: o}}); err != nil {
				return err
			}
		}
	}
}

// sendAssignments sends what the agent does not know yet, if there is anything.
func (s *Sessions) sendAssignments(stream grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown], current *session) (sent bool, err error) {
	full, dirty := current.take()
	message := s.withPace(current, s.withServers(current, s.assignments(current.node, full, dirty)))
	if message == nil {
		return false, nil
	}
	end := s.traceAssignments(stream.Context(), message)
	for _, one := range message.GetAssign() {
		one.Revision = s.encoded.of(one.GetRevision())
	}
	err = stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Assignments{Assignments: message}})
	end(err)
	return true, err
}

// assignments is what the node must know now: everything, or what is new about
// the replicas that changed.
func (s *Sessions) assignments(node string, full bool, dirty []string) *v1.Assignments {
	snap := s.Store.Snapshot()
	message := assignment.News(snap, node, dirty)
	if full {
		message = assignment.Full(snap, node)
		message.Time = timestamppb.New(s.Now())
	}
	for _, one := range message.GetAssign() {
		one.Login = s.login(snap, one.GetRevision())
	}
	return message
}

// markServers has the agent told where the servers are.
func (s *session) markServers() { s.raise(&s.servers) }

// takeServers reports whether the agent must be told, once.
func (s *session) takeServers() bool { return s.lower(&s.servers) }

// withServers adds to what is sent to an agent where the servers are, if the
// agent does not know.
func (s *Sessions) withServers(current *session, message *v1.Assignments) *v1.Assignments {
	if !current.takeServers() {
		return message
	}
	if message == nil {
		message = &v1.Assignments{Epoch: s.Store.Snapshot().Cluster().GetStatus().GetEpoch()}
	}
	message.Servers = s.addresses()
	return message
}

// traceAssignments traces what is sent to a node, until it has been sent.
func (s *Sessions) traceAssignments(ctx context.Context, message *v1.Assignments) (end func(error)) {
	if s.Tracing == nil || message.GetFull() {
		return func(error) {}
	}
	var spans []*telemetry.Span
	for _, a := range message.GetAssign() {
		if parent := telemetry.TraceOf(a.GetRevision(), time.Now()); parent != "" {
			_, span := s.Tracing.Start(telemetry.WithTraceparent(ctx, parent), telemetry.SpanInternal, "assign",
				"replica", a.GetReplica().GetMetadata().GetName(), "node", a.GetReplica().GetSpec().GetNode())
			spans = append(spans, span)
		}
	}
	return func(err error) {
		for _, span := range spans {
			span.End(err)
		}
	}
}
