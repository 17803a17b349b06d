package server

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"

	"github.com/cloudless/cloudless/internal/server/relay"

	"github.com/cloudless/cloudless/internal/server/images"

	"github.com/cloudless/cloudless/internal/server/gateway"
)

// Nodes is told what the agents' sessions say. It must not block.
type Nodes interface {
	// Connected is told from where the session came, if that is known.
	Connected(uid string, machine netip.Addr, status *v1.NodeStatus)
	Heartbeat(uid string, beat *v1.Heartbeat)
	// Answered is told how long an agent took to answer.
	Answered(uid string, took time.Duration)
	// Goodbye is told why an agent will not be back soon.
	Goodbye(uid, reason string)
	Disconnected(uid string)
	// Settle brings the state of a node to where its spec wants it now.
	Settle(n *v1.Node)
	// Observe adds to a node what is known only here: usage and when it was last seen.
	Observe(n *v1.Node)
	// Usage is what is in use now, by the uids of nodes and of replicas, and
	// what is closed when there is news. It must not be changed.
	Usage() (nodes map[string]*v1.NodeResources, replicas map[string]*v1.ReplicaUsage, news <-chan struct{})
}

// Placement answers questions about where replicas are and could be.
type Placement interface {
	// Explain says, for each node, why it cannot take the pending replicas.
	Explain(snap *state.Snapshot, workloadUID string) []*v1.NodeReason
	// Explanation judges every node for a workload, or one of which the uid is given,
	// and says of its replicas why they are where they are.
	Explanation(snap *state.Snapshot, workloadUID, nodeUID string, all bool) (*v1.Explanation, error)
	// Requested is the sum of what is promised to the replicas on a node.
	Requested(snap *state.Snapshot, nodeUID string) *v1.NodeResources
	// Nodes is on how many nodes a daemon should be.
	Nodes(snap *state.Snapshot, w *v1.Workload) int
	// Pending counts the replicas that have no node by one word for the reason.
	Pending(snap *state.Snapshot) map[string]int
	// Allocatable is what may be promised to the replicas on a node in all.
	Allocatable(snap *state.Snapshot, n *v1.Node) *v1.NodeResources
	// Used is what a namespace has now, and how far that is beyond its quota.
	Used(snap *state.Snapshot, n *v1.Namespace) *v1.NamespaceStatus
	// ShortOfQuota says what of the namespace's quota is used up for the pending
	// replicas of a workload, empty if that is not the reason.
	ShortOfQuota(snap *state.Snapshot, workloadUID string) string
	// Forecast plays on the fork what would follow the changes made to it, and
	// returns what would become of the workloads' replicas, one for each.
	Forecast(now time.Time, fork *state.Fork, tx *statev1.Transaction, workloads []string) ([]*v1.PlanChange, []*v1.Preemption, error)
}

// Options is what a Server is made of.
type Options struct {
	UID     string // of this server
	Version string
	// Address to listen on.
	Address string
	// Advertise is where others reach this server; where it listens if empty.
	Advertise string
	// Hosts are further names and addresses by which clients that check host
	// names may reach this server.
	Hosts []string

	Store     *state.Store
	Consensus *consensus.Consensus
	CA        *identity.CA
	// Sealer holds the key-encryption key, which is handed to servers that join.
	Sealer *identity.Sealer
	// Addresses says where another server is reached now; nil if nobody knows
	// better than the state.
	Addresses func(server string) string
	Registry  *registry.Registry
	Nodes     Nodes
	Placement Placement
	Logger    *slog.Logger

	// Scrape is the process's registry of metrics, and Metrics what the server
	// counts in it; both are made if they are nil. Tracing may be nil.
	Scrape  *telemetry.Registry
	Metrics *telemetry.Server
	Tracing *telemetry.Tracing
	// Collector says who waits while garbage is collected; nobody does if it is nil.
	Collector *gcpacer.Collector

	// CertificateTTL is how long certificates of nodes and of this server hold.
	// They are renewed well before. 0 means thirty days.
	CertificateTTL time.Duration

	// Clock is that of this server; nil stands for the machine's.
	Clock func() time.Time

	// Strangers is what callers without an identity may use; zero stands for the defaults.
	Strangers oneport.Limits

	// Foreign carries questions to registries of others; nil asks as the
	// environment of the process says.
	Foreign http.RoundTripper
}

// Server is the API edge of one server process.
type Server struct {
	*core.Core
	version, address string
	// advertised is where others reach this server.
	advertised string
	// instance tells this process from one that runs on a copy of its data folder.
	instance   string
	duplicates core.Duplicates
	// lookup resolves names.
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

	ca             *identity.CA
	sealer         *identity.Sealer
	registry       *registry.Registry
	nodes          Nodes
	placement      Placement
	certificateTTL time.Duration

	port        *oneport.Port
	certificate *identity.Rotator
	auth        *auth.Authenticator
	// catchUpWithLeader waits until this server knows what the leader knew a moment ago.
	catchUpWithLeader func(context.Context) error
	revoked           *auth.Revocations
	memberCalls       auth.MemberCalls
	sessions          *sessions
	collector         *gcpacer.Collector // may be nil
	encoded           *encodedRevisions
	attachments       *attachments
	reports           *reports
	admissions        *admissions
	progress          *progress
	offline           atomic.Pointer[offlineNodes]
	scrape            *telemetry.Registry
	metrics           *telemetry.Server
	kinds             planKinds
	plans             *plans
	peers             *relay.Conns
	images            *images.Images
	router            *relay.Router
	// acted is the index of the newest entry that dispatch has acted on.
	acted atomic.Uint64
	// spared are removed servers through which their removal is answered.
	spared sync.Map
	passed *relay.PassedCalls
	// expelled is closed, by expel, when this server is a member no more.
	expelled <-chan struct{}
	expel    func()

	grpc  *edge
	http  *http.Server
	inner *gateway.Inner
	// stopping ends when the server does; every stream ends with it.
	stopping context.Context
	stop     context.CancelCauseFunc
}

// What a caller may send before the other side has read it, on one stream and
// on one connection. Fixed windows keep gRPC from measuring the connection with
// a ping for every message, which costs more than a small call itself.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
	// httpWindow is smaller than what a stranger may send on a connection: net/http reads on while a handler finds out
	// who calls, and must not cut off a caller with a large body for it.
	httpWindow = 192 << 10
)

// readBuffer is small, because every connected agent has one for as long as it
// is connected, and TLS beneath it reads whole records anyway.
const readBuffer = 1 << 10

// httpStreams is how many requests one connection of HTTP/2 may have open.
const httpStreams = 250

// streamWorkers is how many goroutines are kept for calls, so that their stacks
// need not grow again for each. More calls at once get goroutines of their own.
const streamWorkers = 64

// New opens the port. Nothing is answered before Run.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.CertificateTTL == 0 {
		o.CertificateTTL = certificateTTL
	}
	if o.Scrape == nil || o.Metrics == nil {
		o.Scrape = telemetry.NewRegistry()
		o.Metrics = telemetry.NewServer(o.Scrape)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	s := &Server{
		Core:    &core.Core{UID: o.UID, Store: o.Store, Consensus: o.Consensus, Clock: o.Clock, Logger: o.Logger, Tracing: o.Tracing},
		version: o.Version, instance: rand.Text(), lookup: net.DefaultResolver.LookupNetIP,
		ca: o.CA, sealer: o.Sealer, registry: o.Registry, nodes: o.Nodes, placement: o.Placement, certificateTTL: o.CertificateTTL,
		revoked:     auth.NewRevocations(),
		sessions:    newSessions(o.Collector.Pause),
		collector:   o.Collector,
		encoded:     newEncodedRevisions(),
		attachments: &attachments{waiting: map[string]*attachment{}},
		reports:     newReports(),
		admissions:  newAdmissions(),
		progress:    newProgress(),
		scrape:      o.Scrape,
		metrics:     o.Metrics,
		plans:       newPlans(),
		inner:       gateway.NewInner(),
	}
	s.stopping, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	s.observe(s.scrape)
	var err error
	if s.certificate, err = newOwnCertificate(o); err != nil {
		return nil, err
	}
	s.port, err = oneport.Listen(ctx, oneport.Options{
		Address: o.Address, Trust: o.CA.Trust(), Certificate: s.certificate.Certificate, Log: o.Logger,
		Peers: peers.Protocols(), Admit: s.admitMember, TicketKeys: o.CA.TicketKeys, Hold: holdNodes(o.Collector), Limits: o.Strangers,
	})
	if err != nil {
		return nil, err
	}
	s.address = s.port.Addr().String()
	s.join(o)
	guard := &auth.Guard{
		Auth: s.auth, MemberCalls: &s.memberCalls, Router: s.router, Revoked: s.revoked, Logger: s.Logger,
		Metrics: s.metrics, Tracing: s.Tracing, Stopping: s.stopping,
	}
	s.grpc = s.newGRPC(guard)
	handler, err := gateway.New(gateway.Options{
		Auth: s.auth, Revoked: s.revoked, Metrics: s.metrics, Logger: s.Logger, Inner: s.inner, Stopping: s.stopping,
		Registry: s.images.Handler(), RefuseRegistry: images.WriteError, Scrape: s.scrape.Handler(),
	})
	if err != nil {
		return nil, errors.Join(err, s.port.Close())
	}
	s.http = &http.Server{
		Handler:           oneport.Handler(guard.TapHTTP(s.grpc.strangers), handler),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaders,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          httpStreams,
			MaxReceiveBufferPerConnection: httpWindow,
			MaxReceiveBufferPerStream:     httpWindow,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   20 * time.Second,
			WriteByteTimeout:              2 * time.Minute,
		},
		ErrorLog:    slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return s.stopping },
		ConnContext: oneport.ConnContext,
	}
	return s, nil
}

// Images are those that this server serves.
func (s *Server) Images() *images.Images { return s.images }

// Address is where the server listens.
func (s *Server) Address() string { return s.address }

func (s *Server) newGRPC(guard *auth.Guard) *edge {
	server := newEdge(s.port, guard)
	s.passed = &relay.PassedCalls{Guard: guard.Unary, Methods: server.methods, Stopping: s.stopping}
	all, namespaces := newWorkloads(s), newNamespaces(s)
	s.kinds = planKinds{namespaces, all}
	v1.RegisterWorkloadServiceServer(server, &workloads{collection: all, replicas: newReplicas(s)})
	v1.RegisterNodeServiceServer(server, &nodeService{collection: newNodes(s)})
	v1.RegisterClusterServiceServer(server, &clusterService{Server: s})
	v1.RegisterTokenServiceServer(server, &tokenService{collection: newTokens(s)})
	v1.RegisterImageServiceServer(server, &imageService{Server: s, logins: newLogins(s)})
	v1.RegisterEventServiceServer(server, &eventService{collection: newEvents(s)})
	v1.RegisterPlanServiceServer(server, &planService{Server: s})
	v1.RegisterNamespaceServiceServer(server, &namespaceService{collection: namespaces})
	v1.RegisterExplainServiceServer(server, newExplainService(s))
	v1.RegisterEnrollmentServiceServer(server, &enrollment{Server: s})
	v1.RegisterAgentServiceServer(server, &agentService{Server: s})
	v1.RegisterServerServiceServer(server, &serverService{collection: newServers(s)})
	v1.RegisterPeerServiceServer(server, &peerService{Server: s, Copies: images.Copies{Images: s.images}, PassedCalls: s.passed})
	healthv1.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	return server
}

// Pressed reports whether this server is busy with callers who have no identity, rather than with those who have one.
func (s *Server) Pressed() bool { return s.memberCalls.AreFew(time.Now()) && s.port.Pressed() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.port.Run(ctx) })
	g.Go(func() error { return s.certificate.Run(ctx) })
	g.Go(func() error { return s.untilExpelled(ctx) })
	g.Go(func() error { return s.stayAlone(ctx) })
	g.Go(func() error { return s.dispatch(ctx) })
	g.Go(func() error { return s.sessions.turns.run(ctx) })
	g.Go(func() error { return s.record(ctx) })
	g.Go(func() error { return (&enrollment{Server: s}).admitMachines(ctx) })
	g.Go(func() error { return s.images.Prune(ctx) })
	g.Go(func() error { return s.grpc.serve(s.port, s.inner) })
	g.Go(func() error { return ignoreClosed(s.http.Serve(s.port.HTTP())) })
	g.Go(func() error {
		<-ctx.Done()
		s.shutdown()
		return nil
	})
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// shutdown ends streams first, then gives calls that are under way a moment.
func (s *Server) shutdown() {
	s.stop(core.ErrStopping)
	patience, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.http.Shutdown(patience); err != nil {
		_ = s.http.Close()
	}
	s.grpc.stop(patience)
	_ = s.inner.Close()
	s.images.Close()
	s.peers.Close()
	_ = s.port.Close()
}

// Close frees the port of a server that was never run. After Run it does nothing.
func (s *Server) Close() error {
	s.stop(core.ErrStopping)
	return s.port.Close()
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}
