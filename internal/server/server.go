// Package server is the API edge: it authenticates, authorizes and validates every call,
// proposes the changes, and answers from the replicated state. gRPC, HTTP/JSON, the
// registry, metrics and the agents' sessions all use one address.
//
// It guarantees that only /healthz is answered without an identity, and that a node can act
// only as itself. It decides nothing about placement or rollout, and it never connects to a
// node: logs and exec travel on streams that the agent opens.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
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
	"github.com/cloudless/cloudless/internal/control/authority"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/buckets"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/disks"
	"github.com/cloudless/cloudless/internal/server/gateway"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/login"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/server/network"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/server/packets"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/server/sessions"
	"github.com/cloudless/cloudless/internal/server/storage"
	"github.com/cloudless/cloudless/internal/server/streams"
	"github.com/cloudless/cloudless/internal/server/svid"
	"github.com/cloudless/cloudless/internal/server/trust"
	"github.com/cloudless/cloudless/internal/server/website"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Nodes knows the state of the nodes, which it learns from the agents' sessions. Its methods must not block.
type Nodes interface {
	sessions.Nodes
	// Settle sets the state of a node to what its spec asks for.
	Settle(n *v1.Node)
	// Observe adds to a node what only this server knows: its usage and when it was last seen.
	Observe(n *v1.Node)
	// Usage returns the current usage by the uids of nodes and of replicas, and a channel that is closed when there is
	// news. The maps must not be changed.
	Usage() (nodes map[string]*v1.NodeResources, replicas map[string]*v1.ReplicaUsage, news <-chan struct{})
}

// Placement answers questions about where replicas are and could be.
type Placement interface {
	// Explain says for each node why it cannot take the pending replicas.
	Explain(snap *state.Snapshot, workloadUID string) []*v1.NodeReason
	// Explanation judges every node for a workload, or only the node with the given uid, and says why the replicas are
	// where they are.
	Explanation(snap *state.Snapshot, workloadUID, nodeUID string, all bool) (*v1.Explanation, error)
	// Requested is the sum of what the replicas on a node request.
	Requested(snap *state.Snapshot, nodeUID string) *v1.NodeResources
	// Nodes is the number of nodes on which a daemon should run.
	Nodes(snap *state.Snapshot, w *v1.Workload) int
	// ExceedsQuota says why not even one replica of a workload fits into the quota of its namespace.
	ExceedsQuota(snap *state.Snapshot, workloadUID string) string
	// Pending counts the replicas without a node, by one word for the reason.
	Pending(snap *state.Snapshot) map[string]int
	// Allocatable is how much of a node all its replicas together may request.
	Allocatable(snap *state.Snapshot, n *v1.Node) *v1.NodeResources
	// Used is what a namespace uses now, and by how much that exceeds its quota.
	Used(snap *state.Snapshot, n *v1.Namespace) *v1.NamespaceStatus
	// ShortOfQuota says which part of the namespace's quota keeps the pending replicas of a workload waiting. It is
	// empty if the quota is not the reason.
	ShortOfQuota(snap *state.Snapshot, workloadUID string) string
	// Departing lists the replicas that are to leave a draining node, and what each waits for.
	Departing(snap *state.Snapshot, n *v1.Node) []*v1.DepartingReplica
	// Undrainable says why a drain that was forecast would not do, and what would help.
	Undrainable(before, after *state.Snapshot, n *v1.Node) (reasons []string, help string)
	// CountedDefaults says in sentences what counts against the quota of a namespace although a workload does not request it.
	CountedDefaults(n *v1.Namespace, w *v1.WorkloadSpec) []string
	// Forecast applies a transaction to the fork, simulates what follows, and returns the outcome for the replicas of
	// each workload.
	Forecast(now time.Time, fork *state.Fork, tx *statev1.Transaction, workloads []string) ([]*v1.PlanChange, []*v1.Preemption, error)
}

// Scaling measures autoscaled workloads.
type Scaling interface {
	// Values are the newest measurements of a workload, nil if this server makes none.
	Values(workloadUID string) []*v1.ScaleValue
}

// Traffic knows what nodes report of the routes that they answer for.
type Traffic interface {
	// Route is the traffic of a route, nil if no node has reported any.
	Route(uid string) *v1.RouteTraffic
	// Port says why a node does not answer at a port, "tcp" or "udp"; empty if it does. It is not known before the node has
	// reported.
	Port(nodeUID, protocol string, port int32) (problem string, known bool)
}

// Options are the parts and settings of a Server.
type Options struct {
	UID     string // of this server
	Version string
	// Address to listen on.
	Address string
	// Advertise is the address at which others reach this server; Address if empty.
	Advertise string
	// Hosts are further names and addresses for the certificate of this server, for clients that check host names.
	Hosts []string

	Store     *state.Store
	Consensus *consensus.Consensus
	CA        *identity.CA
	// KeepAuthority writes a copy of the cluster's authority for the next start; nil keeps none.
	KeepAuthority func(*statev1.Authority) error
	// Sealer holds the key-encryption key, which servers that join receive.
	Sealer *identity.Sealer
	// Names is this server's part in the group that keeps the names of objects; nil if it has none.
	Names *names.Group
	// Addresses returns the current address of another server; nil if only the state knows addresses.
	Addresses func(server string) string
	Registry  *registry.Registry
	Nodes     Nodes
	Placement Placement
	// Scaling knows what autoscaled workloads use now. It may be nil.
	Scaling Scaling
	// Traffic knows what happens on routes now, and TrafficReports gets what nodes report of them. Wake is called for a service
	// that is scaled to zero and has requests waiting. They may be nil.
	Traffic        Traffic
	TrafficReports sessions.Traffic
	Wake           func(serviceUID string)
	Logger         *slog.Logger

	// Scrape is the process's registry of metrics, and Metrics are the server's counters in it. New makes those that
	// are nil. Tracing may be nil.
	Scrape  *telemetry.Registry
	Metrics *telemetry.Server
	Tracing *telemetry.Tracing
	// Collector delays background work while garbage is collected; nil delays nothing.
	Collector *gcpacer.Collector

	// CertificateTTL is the validity of the certificates of nodes and of this server. They are renewed well before it
	// ends. 0 means thirty days.
	CertificateTTL time.Duration

	// Clock is the clock of this server; nil means the machine's.
	Clock func() time.Time

	// Strangers limits callers without an identity; zero means the defaults.
	Strangers oneport.Limits

	// Contents is what buckets hold; that of the object store if nil.
	Contents buckets.Objects

	// Foreign carries requests to registries outside the cluster; nil means a transport with the proxy settings of the
	// environment.
	Foreign http.RoundTripper
}

// Server is the API edge of one server process.
type Server struct {
	*core.Core
	address    string
	duplicates core.Duplicates

	ca        *identity.CA
	sealer    *identity.Sealer
	registry  *registry.Registry
	nodes     Nodes
	placement Placement
	scaling   Scaling
	traffic   Traffic

	port *oneport.Port
	auth *auth.Authenticator
	// catchUpWithLeader waits until this server has applied what the leader had committed when it was called.
	catchUpWithLeader func(context.Context) error
	revoked           *auth.Revocations
	memberCalls       auth.MemberCalls
	sessions          *sessions.Sessions
	offline           atomic.Pointer[offlineNodes]
	scrape            *telemetry.Registry
	metrics           *telemetry.Server
	kinds             planKinds
	plans             *plans
	// planning and applying bound the plans that are made and applied at a time: each one simulates what follows. Whoever may
	// only look cannot keep others from applying.
	planning, applying *core.Turns
	membership         *membership.Membership
	enrollment         *membership.Enrollment
	login              *login.Service
	tokenUses          *login.Uses
	refusals           *buckets.Refusals
	peers              *relay.Conns
	images             *images.Images
	router             *relay.Router
	passed             *relay.PassedCalls
	packets            *packets.Server
	disks              *disks.Disks
	names              *names.Group
	identities         *svid.Service
	// contents is what buckets hold; nil if there is no object store.
	contents buckets.Objects
	// storage is the object store; nil without names.
	storage     *storage.Storage
	storageNews *storage.News
	sites       *website.Server
	// directory knows buckets and access keys for the front ends of the object store.
	directory *buckets.Directory

	grpc  *edge
	http  *http.Server
	inner *gateway.Inner
	// stopping ends when the server stops; every stream ends with it.
	stopping context.Context
	stop     context.CancelCauseFunc
}

// How much a caller may send before the other side has read it, on one stream and on one connection. With fixed windows
// gRPC does not measure the connection by a ping for every message, which would cost more than a small call itself.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
	// httpWindow is smaller than what a stranger may send on a connection: net/http keeps reading while a handler
	// authenticates the caller, and a caller with a large body must not be cut off for that.
	httpWindow = 192 << 10
)

// readBuffer is small, because every connected agent holds one all the time, and TLS beneath it reads whole records
// anyway.
const readBuffer = 1 << 10

// httpStreams is how many requests one HTTP/2 connection may have open.
const httpStreams = 250

// plansWaiting is how many calls may wait until they can make a plan. More are refused, and clients retry.
const plansWaiting = 128

// streamWorkers is the number of goroutines that are reused for calls, so that their stacks need not grow again for
// each call. Further concurrent calls get new goroutines.
const streamWorkers = 64

// New opens the port. The server answers nothing before Run.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.CertificateTTL == 0 {
		o.CertificateTTL = membership.DefaultCertificateTTL
	}
	if o.Scrape == nil || o.Metrics == nil {
		o.Scrape = telemetry.NewRegistry()
		o.Metrics = telemetry.NewServer(o.Scrape)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	s := &Server{
		Core: &core.Core{UID: o.UID, Store: o.Store, Consensus: o.Consensus, Clock: o.Clock, Logger: o.Logger, Tracing: o.Tracing, Seals: authority.Keys{Sealer: o.Sealer}.SealedNow},
		ca:   o.CA, sealer: o.Sealer, registry: o.Registry, nodes: o.Nodes, placement: o.Placement, scaling: o.Scaling, traffic: o.Traffic, names: o.Names,
		revoked: auth.NewRevocations(),
		scrape:  o.Scrape,
		metrics: o.Metrics,
		plans:   newPlans(),
		inner:   gateway.NewInner(),

		contents: o.Contents,
	}
	atOnce := max(4, runtime.GOMAXPROCS(0))
	s.planning = core.NewTurns("plans", atOnce, 2, plansWaiting, plansWaiting/8)
	s.applying = core.NewTurns("plans", atOnce, 2, plansWaiting, plansWaiting/4)
	s.stopping, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	s.registerMetrics(s.scrape)
	certificate, err := membership.NewCertificate(s.Core, o.CA, o.CertificateTTL, o.Hosts)
	if err != nil {
		return nil, err
	}
	s.port, err = oneport.Listen(ctx, oneport.Options{
		Address: o.Address, Trust: o.CA.Trust(), Certificate: certificate.Certificate, Log: o.Logger,
		Peers: peers.Protocols(), Members: []string{packets.Protocol}, Nodes: []string{disks.Protocol, origin.Protocol}, Admit: membership.AdmitMembers(s.Store), TicketKeys: o.CA.TicketKeys, Hold: sessions.HoldNodes(o.Collector), Limits: o.Strangers,
	})
	if err != nil {
		return nil, err
	}
	s.address = s.port.Addr().String()
	s.packets = packets.New(s.port.Peers(packets.Protocol), s.address, o.Logger)
	s.disks = disks.New(disks.Options{
		Connections: s.port.Peers(disks.Protocol), Store: s.Store, Logger: o.Logger, Metrics: telemetry.NewChunks(s.scrape),
	})
	s.connect(o, certificate)
	s.sessions = sessions.New(sessions.Options{
		Core: s.Core, Nodes: o.Nodes, Collector: o.Collector, Login: s.images.LoginOf, Addresses: s.membership.Addresses, Duplicates: &s.duplicates,
		Traffic: o.TrafficReports, Wake: o.Wake, Unseal: o.Sealer.Unseal, Metrics: s.metrics,
	})
	s.identities = svid.New(s.Core, s.ca, s.sealer)
	guard := &auth.Guard{
		Auth: s.auth, MemberCalls: &s.memberCalls, Router: s.router, Revoked: s.revoked, Logger: s.Logger,
		Metrics: s.metrics, Tracing: s.Tracing, Stopping: s.stopping,
	}
	if err := s.openStorage(); err != nil {
		return nil, errors.Join(err, s.port.Close())
	}
	if s.grpc, err = s.newGRPC(guard); err != nil {
		return nil, errors.Join(err, s.port.Close())
	}
	handler, err := gateway.New(gateway.Options{
		Auth: s.auth, Revoked: s.revoked, Metrics: s.metrics, Logger: s.Logger, Inner: s.inner, Stopping: s.stopping,
		Registry: s.images.Handler(), RefuseRegistry: images.WriteError, Scrape: s.scrape.Handler(),
		WorkloadKeys: s.identities.Keys,
	})
	if err != nil {
		return nil, errors.Join(err, s.port.Close())
	}
	s.http = &http.Server{
		Handler:           oneport.Handler(guard.TapHTTP(s.grpc.strangers), s.withS3(handler)),
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
	s.sites = s.newSites()
	return s, nil
}

// connect makes how this server reaches the others, and how calls find the leader.
func (s *Server) connect(o Options, certificate *identity.Rotator) {
	s.membership = membership.New(membership.Options{
		Core: s.Core, Version: o.Version, Advertise: o.Advertise, Addresses: o.Addresses, CA: o.CA, Sealer: o.Sealer,
		KeepAuthority: o.KeepAuthority,
		Certificate:   certificate, CertificateTTL: o.CertificateTTL, Port: s.port, Duplicates: &s.duplicates,
		ForgetServer: func(server string) { s.images.ForgetServer(server) },
	})
	s.peers = s.membership.Conns()
	s.router = relay.NewRouter(s.Core, s.peers, s.membership.Addresses, s.membership.Expel)
	s.catchUpWithLeader = s.router.CatchUp
	s.membership.CatchUpWithLeader = s.router.CatchUp
	s.images = images.New(images.Options{
		Core: s.Core, Registry: s.registry, Sealer: s.sealer, Foreign: o.Foreign, Conns: s.peers, Router: s.router,
		PeerConfig: s.membership.PeerConfig(), Address: s.address, Stopping: s.stopping,
	})
	s.auth = auth.NewAuthenticator(s.stopping, s.Core, s.ca.Trust().Cluster(), func(ctx context.Context) error { return s.catchUpWithLeader(ctx) })
	s.enrollment = membership.NewEnrollment(s.stopping, s.membership, s.auth)
	s.login = login.New(login.Options{
		Core: s.Core, Fingerprint: func() identity.Fingerprint { return s.ca.Trust().Fingerprint() }, Foreign: o.Foreign, CheckAdmins: s.checkAdmins,
	})
	s.tokenUses = login.NewUses(s.Core, s.peers, &s.auth.Uses)
	s.storageNews = storage.NewNews(s.Core, s.peers.Ready)
}

// Images returns the images that this server serves.
func (s *Server) Images() *images.Images { return s.images }

// Membership returns how this server belongs to its cluster.
func (s *Server) Membership() *membership.Membership { return s.membership }

// Sessions returns the sessions of the agents with this server.
func (s *Server) Sessions() *sessions.Sessions { return s.sessions }

// Disks returns the disks of the nodes, as far as they are connected to this server.
func (s *Server) Disks() *disks.Disks { return s.disks }

// KeyReports are what the members say of their keys.
func (s *Server) KeyReports(ctx context.Context) authority.Reports {
	return authority.Reports{Servers: s.membership.KeyReports(ctx), Nodes: s.sessions.TrustReports()}
}

// Address is the address that the server listens on.
func (s *Server) Address() string { return s.address }

func (s *Server) newGRPC(guard *auth.Guard) (*edge, error) {
	server := newEdge(s.port, guard)
	s.passed = &relay.PassedCalls{Guard: guard.Unary, Methods: server.methods, Stopping: s.stopping}
	all, namespaces, nodes := newWorkloads(s), newNamespaces(s), newNodes(s)
	offered, leading, ruling := newServices(s), newRoutes(s), newPolicies(s)
	named, bindings, stores := newRoles(s), newRoleBindings(s), newBuckets(s)
	s.kinds = planKinds{namespaces, all, offered, leading, nodes, named, bindings, ruling, stores}
	v1.RegisterWorkloadServiceServer(server, &workloads{collection: all, replicas: newReplicas(s), Streams: s.newStreams()})
	v1.RegisterDeploymentServiceServer(server, &deploymentService{collection: newDeployments(s)})
	v1.RegisterNodeServiceServer(server, &nodeService{collection: nodes})
	v1.RegisterClusterServiceServer(server, &clusterService{Server: s})
	v1.RegisterTokenServiceServer(server, &tokenService{collection: newTokens(s)})
	v1.RegisterLoginServiceServer(server, s.login)
	v1.RegisterImageServiceServer(server, &imageService{Server: s, logins: newLogins(s)})
	v1.RegisterEventServiceServer(server, &eventService{collection: newEvents(s)})
	v1.RegisterPlanServiceServer(server, &planService{Server: s})
	v1.RegisterRoleServiceServer(server, &roleService{collection: named, bindings: bindings})
	v1.RegisterNamespaceServiceServer(server, &namespaceService{collection: namespaces})
	v1.RegisterPolicyServiceServer(server, &policyService{collection: ruling})
	v1.RegisterServiceServiceServer(server, &serviceService{collection: offered})
	v1.RegisterCertificateServiceServer(server, &certificateService{collection: newCertificates(s)})
	v1.RegisterSecretServiceServer(server, &secretService{collection: newSecrets(s)})
	v1.RegisterRouteServiceServer(server, &routeService{collection: leading})
	v1.RegisterBucketServiceServer(server, &bucketService{collection: stores, keys: newAccessKeys(s)})
	v1.RegisterEndpointServiceServer(server, &endpointService{collection: offered})
	v1.RegisterConnectivityServiceServer(server, network.New(s.Core, s.sessions.Open))
	v1.RegisterExplainServiceServer(server, newExplainService(nodes))
	v1.RegisterEnrollmentServiceServer(server, s.enrollment)
	v1.RegisterAgentServiceServer(server, s.sessions)
	v1.RegisterServerServiceServer(server, &serverService{collection: newServers(s)})
	if s.names != nil {
		v1.RegisterNamesServiceServer(server, s.names)
	}
	v1.RegisterPeerServiceServer(server, &peerService{Membership: s.membership, Copies: images.Copies{Images: s.images}, PassedCalls: s.passed, Uses: s.tokenUses, News: s.storageNews, Refusals: s.refusals})
	v1.RegisterIdentityServiceServer(server, s.identities)
	v1.RegisterAuthorityServiceServer(server, trust.New(s.Core, s.membership.Keys(), s.KeyReports))
	if s.storage != nil {
		if err := s.storage.Serve(server, s.directory); err != nil {
			return nil, err
		}
	}
	healthv1.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	return server, nil
}

// newStreams makes what serves logs, exec, cp and forward by the sessions of the nodes.
func (s *Server) newStreams() *streams.Streams {
	return streams.New(streams.Options{Core: s.Core, Attach: s.sessions.Open, Connected: s.sessions.Connected, HasOutput: hasOutput})
}

// Pressed reports whether this server is busy with callers without an identity rather than with members.
func (s *Server) Pressed() bool { return s.memberCalls.AreFew(time.Now()) && s.port.Pressed() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.port.Run(ctx) })
	g.Go(func() error { return s.membership.Run(ctx) })
	g.Go(func() error { return s.dispatch(ctx) })
	g.Go(func() error { return s.sessions.Run(ctx) })
	g.Go(func() error { return s.packets.Run(ctx) })
	g.Go(func() error { return s.disks.Run(ctx) })
	g.Go(func() error { return s.runStorage(ctx) })
	g.Go(func() error { return s.enrollment.Run(ctx) })
	g.Go(func() error { return s.images.Prune(ctx) })
	g.Go(func() error { return s.tokenUses.Run(ctx) })
	g.Go(func() error { return s.refusals.Run(ctx) })
	g.Go(func() error { return s.grpc.serve(s.port, s.inner) })
	g.Go(func() error { return ignoreClosed(s.http.Serve(s.port.HTTP())) })
	g.Go(func() error { return ignoreClosed(s.sites.Serve(s.port.Peers(origin.Protocol))) })
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

// shutdown ends streams first, then gives calls in progress a moment.
func (s *Server) shutdown() {
	s.stop(core.ErrStopping)
	patience, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.http.Shutdown(patience); err != nil {
		_ = s.http.Close()
	}
	s.sites.Shutdown(patience)
	s.grpc.stop(patience)
	_ = s.inner.Close()
	if s.storage != nil {
		s.storage.Close()
	}
	s.images.Close()
	s.peers.Close()
	_ = s.port.Close()
}

// Close frees the port of a server that never ran. After Run it does nothing.
func (s *Server) Close() error {
	s.stop(core.ErrStopping)
	if s.storage != nil {
		s.storage.Close()
	}
	return s.port.Close()
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// dispatch tells the parts of the server about every change of the state. One loop
// serves all sessions, so that a change costs the same however many agents are
// connected.
func (s *Server) dispatch(ctx context.Context) error {
	for feed := s.Store.Follow(); ; {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		if news.Resync {
			s.catchUp(news.Snapshot)
			continue
		}
		for _, c := range news.Changes {
			s.route(c)
		}
		s.membership.ActedOn(news.Changes)
	}
}

// catchUp does what route does, for all changes that this server may have missed.
func (s *Server) catchUp(snap *state.Snapshot) {
	s.sessions.CatchUp(snap)
	s.disks.CatchUp(snap)
	s.revoked.RevokeMissing(snap)
	s.revoked.Recheck(s.auth, "")
	s.membership.CatchUp(snap)
}

func (s *Server) route(c state.Change) {
	s.sessions.Route(c)
	s.disks.Route(c)
	s.membership.Route(c)
	switch {
	case c.Kind == state.KindToken && c.New == nil:
		s.revoked.Revoke(c.Old.GetMetadata().GetUid())
	case c.Kind == state.KindToken && c.Old != nil:
		s.revoked.Recheck(s.auth, c.Old.GetMetadata().GetUid())
	case c.Kind == state.KindRole || c.Kind == state.KindRoleBinding:
		s.revoked.Recheck(s.auth, "")
	}
}
