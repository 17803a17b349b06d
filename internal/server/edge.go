package server

import (
	"context"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/gateway"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/server/relay"
)

// edge is the gRPC server. It consists of one server for each kind of caller, all with the same services, because gRPC
// limits the streams of a connection by server.
type edge struct {
	// servers serves other servers, which relay the sessions of thousands of agents over one connection, and the
	// gateway, which has one connection for all HTTP requests.
	servers *grpc.Server
	// members serves agents, which authenticate with certificates.
	members *grpc.Server
	// strangers serves all others. They send a token with each call, or want to join.
	strangers *grpc.Server
	methods   map[string]relay.Passable
}

const (
	// memberStreams is how many streams an agent may have open: its session, and one for each log, exec, copy and forwarded connection.
	memberStreams = 10_000
	// callerStreams is the same limit for callers without a certificate.
	callerStreams = 1_000
	// idleTimeout is how long a connection may be open without a call.
	idleTimeout = 5 * time.Minute
	// maxHeaders is the maximum size of the headers of a call in bytes.
	maxHeaders = 64 << 10
)

func newEdge(port *oneport.Port, guard *auth.Guard) *edge {
	build := func(alive keepalive.ServerParameters, more ...grpc.ServerOption) *grpc.Server {
		alive.Time, alive.Timeout = 30*time.Second, 20*time.Second
		return grpc.NewServer(append(more,
			grpc.KeepaliveParams(alive),
			grpc.Creds(gateway.Credentials{TransportCredentials: port.GRPCCredentials()}),
			grpc.ForceServerCodecV2(api.ServerCodec()),
			grpc.UnaryInterceptor(guard.Unary),
			grpc.StreamInterceptor(guard.Stream),
			grpc.UnknownServiceHandler(auth.NoSuchMethod),
			grpc.MaxRecvMsgSize(gateway.MaxMessage),
			grpc.ReadBufferSize(readBuffer),
			grpc.InitialWindowSize(streamWindow),
			grpc.InitialConnWindowSize(connWindow),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		)...)
	}
	idle := keepalive.ServerParameters{MaxConnectionIdle: idleTimeout}
	return &edge{
		methods: map[string]relay.Passable{},
		servers: build(keepalive.ServerParameters{}, grpc.NumStreamWorkers(streamWorkers/2), grpc.InTapHandle(guard.TapMember)),
		members: build(idle, grpc.MaxConcurrentStreams(memberStreams), grpc.InTapHandle(guard.TapMember)),
		strangers: build(idle, grpc.MaxConcurrentStreams(callerStreams), grpc.NumStreamWorkers(streamWorkers/2),
			grpc.MaxHeaderListSize(maxHeaders), grpc.StatsHandler(port.GRPCStats()), grpc.InTapHandle(guard.Tap)),
	}
}

func (e *edge) all() []*grpc.Server { return []*grpc.Server{e.servers, e.members, e.strangers} }

// RegisterService implements grpc.ServiceRegistrar, and records the methods.
func (e *edge) RegisterService(about *grpc.ServiceDesc, service any) {
	for _, m := range about.Methods {
		e.methods["/"+about.ServiceName+"/"+m.MethodName] = relay.Passable{Service: service, Call: m.Handler}
	}
	for _, server := range e.all() {
		server.RegisterService(about, service)
	}
}

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (e *edge) GetServiceInfo() map[string]grpc.ServiceInfo { return e.strangers.GetServiceInfo() }

// serve serves the connections of a port and of the gateway until the listeners close.
func (e *edge) serve(port *oneport.Port, inner net.Listener) error {
	var g errgroup.Group
	for listener, server := range map[net.Listener]*grpc.Server{
		inner: e.servers, port.GRPCServers(): e.servers, port.GRPC(): e.members, port.GRPCStrangers(): e.strangers,
	} {
		g.Go(func() error { return ignoreClosed(server.Serve(listener)) })
	}
	return g.Wait()
}

// stop closes all connections. It waits for calls in progress until the context ends.
func (e *edge) stop(ctx context.Context) {
	var g errgroup.Group
	for _, server := range e.all() {
		g.Go(func() error {
			defer context.AfterFunc(ctx, server.Stop)()
			server.GracefulStop()
			return nil
		})
	}
	_ = g.Wait()
}
