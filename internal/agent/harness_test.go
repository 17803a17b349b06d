package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/identity"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/agent/probe"
	"github.com/cloudless/cloudless/internal/agent/secrets"
	"github.com/cloudless/cloudless/internal/agent/storage"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// node is a machine with an agent, and a server that plays the cluster.
type node struct {
	t       *testing.T
	dir     string
	tasks   *tasks
	machine *fakeMachine
	network *fakeNetwork
	mesh    *fakeMesh // may be nil
	server  *server
	metrics *telemetry.Agent // may be nil
	leave   func()           // may be nil
	quiet   func() time.Duration
	deaf    atomic.Bool // whether programs do not listen on their ports
	secrets string      // the folder of secrets, empty for a node that cannot keep any
	sockets string      // the folder for identity sockets; may be empty

	agent  *Agent
	driver *handle
	stop   func() // ends Run and waits for it
}

// newNode creates everything but starts no agent.
func newNode(t *testing.T) *node {
	return &node{
		t:       t,
		dir:     t.TempDir(),
		tasks:   newTasks(),
		machine: &fakeMachine{boot: "boot-1", disk: "100Gi", changes: make(chan struct{})},
		network: newFakeNetwork(),
		server:  newServer(t),
	}
}

func (n *node) options() Options {
	opts := Options{
		DataDir: n.dir,
		Client:  v1.NewAgentServiceClient(n.server.conn),
		Drivers: []driver.Driver{n.driver},
		Machine: n.machine,
		Network: n.network,
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: n.metrics,
		Leave:   n.leave,
		Quiet:   n.quiet,
	}
	if n.mesh != nil {
		opts.Mesh, opts.InMesh = n.mesh, func(own []netip.Addr) { n.mesh.own.Store(&own) }
	}
	if n.secrets != "" {
		var err error
		if opts.Secrets, err = secrets.Open(secrets.Options{Dir: n.secrets, Log: opts.Logger}); err != nil {
			n.t.Fatal(err)
		}
	}
	if n.sockets != "" {
		opts.Identity = identity.New(identity.Options{Dir: n.sockets, Cluster: "home", Logger: opts.Logger})
	}
	return opts
}

// start starts an agent on the data folder.
func (n *node) start() {
	n.t.Helper()
	n.driver = &handle{tasks: n.tasks}
	agent, err := New(n.options())
	if err != nil {
		n.t.Fatal(err)
	}
	n.agent = agent
	agent.listening = func(int, *v1.WorkloadSpec) probe.Result {
		if n.deaf.Load() {
			return probe.Result{Reason: "It does not listen on port 80 yet."}
		}
		return probe.Result{OK: true}
	}
	agent.leases.Now = func() time.Duration { return time.Since(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)) } // the time of the test
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("Run: %v", err)
		}
	})
	n.t.Cleanup(n.stop)
}

// crash is kill -9: the agent can no longer reach the driver or the data folder. Its tasks
// go on.
func (n *node) crash() {
	n.t.Helper()
	n.driver.cut()
	after := filepath.Join(n.t.TempDir(), "data")
	if err := os.CopyFS(after, os.DirFS(n.dir)); err != nil {
		n.t.Fatal(err)
	}
	n.tasks.release()
	n.stop()
	n.dir = after
}

// fakeMachine is a computer that changes when a test says so.
type fakeMachine struct {
	boot    string
	changes chan struct{}

	mu         sync.Mutex
	disk       string
	memoryUsed int64
	diskUsed   int64 // of 100 GiB
	conditions []*v1.Condition
	gpus       []machine.GPU
}

func (m *fakeMachine) BootID() string { return m.boot }

func (*fakeMachine) Traffic() (machine.Traffic, error) {
	return machine.Traffic{Received: 1, Sent: 2, Read: 3, Written: 4}, nil
}

func (m *fakeMachine) Memory() (pressure.Room, float64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return pressure.Room{Total: 8 << 30, Available: 8<<30 - m.memoryUsed}, 0, nil
}

func (m *fakeMachine) Disk() (storage.Disk, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return storage.Disk{Total: 100 << 30, Used: m.diskUsed}, nil
}

func (m *fakeMachine) GPUs() []machine.GPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gpus
}

func (m *fakeMachine) Status() (*v1.NodeStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &v1.NodeStatus{
		Capacity: &v1.NodeResources{Cpu: "4", Memory: "8Gi", Disk: m.disk},
		Usage:    &v1.NodeResources{Cpu: "100m"},

		Conditions: m.conditions,
	}, nil
}

func (m *fakeMachine) Addresses() ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("192.0.2.7")}, nil
}

func (m *fakeMachine) Watch(ctx context.Context, changed func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.changes:
			changed()
		}
	}
}

// server plays the cluster's side over a real connection in memory.
type server struct {
	v1.UnimplementedAgentServiceServer
	conn     *grpc.ClientConn
	sessions chan *session
	attached chan *attached

	mu     sync.Mutex
	away   bool
	copied bool
	// refusal, if not nil, ends every session.
	refusal error
	tries   int
}

func newServer(t *testing.T) *server {
	s := &server{sessions: make(chan *session), attached: make(chan *attached)}
	listener := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
	v1.RegisterAgentServiceServer(srv, s)
	serving := make(chan struct{})
	go func() { defer close(serving); _ = srv.Serve(listener) }()
	options := append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	var err error
	if s.conn, err = grpc.NewClient("passthrough:///memory", options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.conn.Close()
		srv.Stop()
		<-serving
	})
	return s
}

// setAway makes the server refuse new sessions.
func (s *server) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *server) attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

func (s *server) Session(stream grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown]) error {
	s.mu.Lock()
	s.tries++
	away, copied, refusal := s.away, s.copied, s.refusal
	s.mu.Unlock()
	if refusal != nil {
		return refusal
	}
	if copied {
		return status.Error(codes.AlreadyExists, "node box runs elsewhere")
	}
	if away {
		return status.Error(codes.Unavailable, "the server is away")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	sess := &session{
		stream:   stream,
		hello:    first.GetHello(),
		ups:      make(chan *v1.SessionUp),
		reported: map[string][]*v1.ReplicaStatus{},
		end:      make(chan struct{}),
	}
	sess.keep(sess.hello.GetReplicas())
	select {
	case s.sessions <- sess:
	case <-stream.Context().Done():
		return nil
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for {
			up, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case sess.ups <- up:
			case <-sess.end:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	select {
	case <-sess.end:
		return status.Error(codes.Unavailable, "the server ended the session")
	case <-received:
		return nil
	}
}

// session is one session as the server sees it.
type session struct {
	stream   grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown]
	hello    *v1.Hello
	ups      chan *v1.SessionUp
	reported map[string][]*v1.ReplicaStatus // by uid: received and not yet awaited
	events   []*v1.EventReport              // received while something was awaited
	applied  []*v1.SecretApplied            // received while something was awaited
	end      chan struct{}
}

// join accepts the agent's next session.
func (n *node) join() *session {
	n.t.Helper()
	sess := <-n.server.sessions
	if sess.hello == nil {
		n.t.Fatal("the first message of a session was no hello")
	}
	return sess
}

func (s *session) send(t *testing.T, a *v1.Assignments) {
	t.Helper()
	if err := s.stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Assignments{Assignments: a}}); err != nil {
		t.Fatal(err)
	}
}

func (s *session) open(t *testing.T, o *v1.Open) {
	t.Helper()
	if err := s.stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Open{Open: o}}); err != nil {
		t.Fatal(err)
	}
}

// await waits until the hello or a report says that the replica is in the phase, and
// returns its status. Reports about other replicas can be awaited later.
func (s *session) await(t *testing.T, uid, phase string) *v1.ReplicaStatus {
	t.Helper()
	return s.awaitStatus(t, uid, phase, func(status *v1.ReplicaStatus) bool { return status.GetPhase() == phase })
}

// awaitReady waits for a report that a replica serves.
func (s *session) awaitReady(t *testing.T, uid string) *v1.ReplicaStatus {
	t.Helper()
	return s.awaitStatus(t, uid, "ready", spec.ServesNow)
}

// awaitRestart waits for a report that a replica runs after so many restarts.
func (s *session) awaitRestart(t *testing.T, uid string, restarts int32) *v1.ReplicaStatus {
	t.Helper()
	return s.awaitStatus(t, uid, "restarted", func(status *v1.ReplicaStatus) bool {
		return status.GetPhase() == spec.PhaseRunning && status.GetRestarts() == restarts
	})
}

// awaitStatus waits for any status that matches.
func (s *session) awaitStatus(t *testing.T, uid, what string, is func(*v1.ReplicaStatus) bool) *v1.ReplicaStatus {
	t.Helper()
	for range 10_000 { // heartbeats included: more than two hours of them
		for len(s.reported[uid]) > 0 {
			status := s.reported[uid][0]
			s.reported[uid] = s.reported[uid][1:]
			if is(status) {
				return status
			}
		}
		select {
		case up := <-s.ups:
			s.keep(up.GetReport().GetReplicas())
			s.events = append(s.events, up.GetReport().GetEvents()...)
			s.applied = append(s.applied, up.GetSecrets().GetApplied()...)
		case <-s.stream.Context().Done():
			t.Fatalf("the session has ended before replica %s was %s", uid, what)
		}
	}
	t.Fatalf("replica %s is never %s", uid, what)
	return nil
}

// keep keeps reports until they are awaited.
func (s *session) keep(reports []*v1.ReplicaReport) {
	for _, report := range reports {
		s.reported[report.GetUid()] = append(s.reported[report.GetUid()], report.GetStatus())
	}
}

// said is the hello's status of a replica, or nil.
func (s *session) said(uid string) *v1.ReplicaStatus {
	for _, report := range s.hello.GetReplicas() {
		if report.GetUid() == uid {
			return report.GetStatus()
		}
	}
	return nil
}

// full is a full set of assignments.
func full(assign ...*v1.Assignment) *v1.Assignments {
	return &v1.Assignments{Epoch: 1, Full: true, Assign: assign}
}

// delta changes some assignments.
func delta(assign ...*v1.Assignment) *v1.Assignments {
	return &v1.Assignments{Epoch: 1, Assign: assign}
}

// assignment is a replica that should run, with edits to its workload.
func assignment(uid string, edits ...func(*v1.WorkloadSpec)) *v1.Assignment {
	w := &v1.WorkloadSpec{Image: "hello:1"}
	for _, edit := range edits {
		edit(w)
	}
	return &v1.Assignment{
		Replica: &v1.Replica{
			Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid},
			Spec:     &v1.ReplicaSpec{RevisionUid: "rev-" + uid, Desired: "running"},
		},
		Revision: &v1.Revision{
			Metadata: &v1.Metadata{Uid: "rev-" + uid},
			Spec:     &v1.RevisionSpec{Workload: w, Image: "registry/hello@sha256:1"},
		},
	}
}

func restart(policy, backoff, max string) func(*v1.WorkloadSpec) {
	return func(w *v1.WorkloadSpec) {
		w.Restart = &v1.Restart{Policy: policy, Backoff: backoff, MaxBackoff: max}
	}
}

// stopped is the same replica, to be stopped.
func stopped(a *v1.Assignment) *v1.Assignment {
	a = proto.CloneOf(a)
	a.Replica.Spec.Desired = spec.DesiredStopped
	return a
}

var errCut = errors.New("the agent was killed")
