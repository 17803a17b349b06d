package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver/manual"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/deadpeer"
	"github.com/cloudless/cloudless/internal/identity"
)

// Client is a connection to a cluster. It is safe for concurrent use, and reconnects by itself.
type Client struct {
	conn     *grpc.ClientConn
	trust    *identity.Trust
	link     *link
	shortcut *shortcut
	http     *http.Transport
	auth     token
}

// Option changes how a Client connects.
type Option struct {
	dial  []grpc.DialOption
	token func() string
}

// WithDialOptions adds options to the gRPC connection, such as interceptors. They come after the Client's own and see
// every attempt of a call.
func WithDialOptions(options ...grpc.DialOption) Option { return Option{dial: options} }

// WithTokenOf makes each call send the token that current returns at that time, instead of the one that the context had when
// the Client connected: it may be renewed meanwhile.
func WithTokenOf(current func() string) Option { return Option{token: current} }

// Dial connects to the cluster. It returns an [*UnreachableError] when none of its servers answers, or when the answer
// does not come from a server of that cluster.
func Dial(ctx context.Context, where Context, options ...Option) (*Client, error) {
	trust, err := where.trust()
	if err != nil {
		return nil, err
	}
	return dial(ctx, where, trust, options)
}

// Greet connects without a token, for the few calls that need no identity.
func Greet(ctx context.Context, where Context, options ...Option) (*Client, error) {
	where.Token = ""
	trust, err := where.trustOnly()
	if err != nil {
		return nil, err
	}
	return dial(ctx, where, trust, options)
}

func dial(ctx context.Context, where Context, trust *identity.Trust, options []Option) (*Client, error) {
	c := &Client{trust: trust, link: &link{addresses: where.Addresses}, shortcut: newShortcut(where.Addresses)}
	c.auth = func() string { return where.Token }
	for _, option := range options {
		if option.token != nil {
			c.auth = option.token
		}
	}
	c.http = newHTTPTransport(trust, c.link)
	var err error
	if c.conn, err = c.newConn(trust, c.link, options); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", where.Name, err)
	}
	if c.shortcut.conn, err = c.newConn(trust, c.shortcut.link, options); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", where.Name, err), c.conn.Close())
	}
	if err := connect(ctx, c.conn, c.link); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// CA is the certificates of the cluster's authorities as the servers show them now, in PEM form, for [Context.CA].
func (c *Client) CA() string { return string(c.trust.PEM()) }

// Close ends the connection and every call on it.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return errors.Join(c.conn.Close(), c.shortcut.conn.Close())
}

// Workloads calls the service for workloads and their replicas.
func (c *Client) Workloads() cloudlessv1.WorkloadServiceClient {
	return cloudlessv1.NewWorkloadServiceClient(c.conn)
}

// Plans calls the service that predicts the effect of a change, and applies plans.
func (c *Client) Plans() cloudlessv1.PlanServiceClient {
	return cloudlessv1.NewPlanServiceClient(c.conn)
}

// Service calls any service of the contract, such as Service(c, cloudlessv1.NewNodeServiceClient).
func Service[T any](c *Client, service func(grpc.ClientConnInterface) T) T { return service(c.conn) }

// Roles calls the service for roles, and for who has them.
func (c *Client) Roles() cloudlessv1.RoleServiceClient {
	return cloudlessv1.NewRoleServiceClient(c.conn)
}

// Namespaces calls the service for namespaces and their quotas.
func (c *Client) Namespaces() cloudlessv1.NamespaceServiceClient {
	return cloudlessv1.NewNamespaceServiceClient(c.conn)
}

// Deployments calls the service for the rollouts of workloads.
func (c *Client) Deployments() cloudlessv1.DeploymentServiceClient {
	return cloudlessv1.NewDeploymentServiceClient(c.conn)
}

// Explanations calls the service that says why replicas are where they are.
func (c *Client) Explanations() cloudlessv1.ExplainServiceClient {
	return cloudlessv1.NewExplainServiceClient(c.conn)
}

// Nodes calls the service for nodes.
func (c *Client) Nodes() cloudlessv1.NodeServiceClient {
	return cloudlessv1.NewNodeServiceClient(c.conn)
}

// Logins calls the service by which users get and renew their own tokens.
func (c *Client) Logins() cloudlessv1.LoginServiceClient {
	return cloudlessv1.NewLoginServiceClient(c.conn)
}

// Tokens calls the service for tokens.
func (c *Client) Tokens() cloudlessv1.TokenServiceClient {
	return cloudlessv1.NewTokenServiceClient(c.conn)
}

// Images calls the service for images.
func (c *Client) Images() cloudlessv1.ImageServiceClient {
	return cloudlessv1.NewImageServiceClient(c.conn)
}

// Events calls the service for events.
func (c *Client) Events() cloudlessv1.EventServiceClient {
	return cloudlessv1.NewEventServiceClient(c.conn)
}

// Cluster calls the service for the cluster itself.
func (c *Client) Cluster() cloudlessv1.ClusterServiceClient {
	return cloudlessv1.NewClusterServiceClient(c.conn)
}

// maxAnswer is the longest answer in bytes: a full page of large workloads.
const maxAnswer = 64 << 20

// Flow-control windows of a stream and of a connection. Fixed windows keep gRPC from measuring the connection with a
// ping for every message.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

func (c *Client) newConn(trust *identity.Trust, link *link, options []Option) (*grpc.ClientConn, error) {
	servers := manual.NewBuilderWithScheme("cloudless")
	servers.InitialState(ResolverState(link.addresses))
	link.resolver = servers
	config := identity.FollowTLS(trust, func() {})
	config.NextProtos = []string{"h2"} // only that: it distinguishes gRPC from the rest on one port
	calls := interceptor{link: c.link, shortcut: c.shortcut}
	dial := []grpc.DialOption{
		grpc.WithResolvers(servers),
		grpc.WithTransportCredentials(&watchedTLS{TransportCredentials: credentials.NewTLS(config), link: link}),
		grpc.WithPerRPCCredentials(c.auth),
		grpc.WithContextDialer(link.dial),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithDefaultServiceConfig(retries()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.ForceCodecV2(api.ClientCodec())),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithUnaryInterceptor(calls.unary),
		grpc.WithStreamInterceptor(calls.stream),
	}
	for _, option := range options {
		dial = append(dial, option.dial...)
	}
	return grpc.NewClient("cloudless:///servers", dial...)
}

// connect waits until a server has answered or all have failed.
func connect(ctx context.Context, conn *grpc.ClientConn, link *link) error {
	conn.Connect()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return link.unreachable(errors.New("no server answered"))
		}
		if !conn.WaitForStateChange(ctx, state) {
			return link.unreachable(context.Cause(ctx))
		}
	}
}

// retries lets calls survive a short absence of the servers. A method that is not listed may have taken effect although
// its answer was lost: retried, it would undo what others have changed since, or be refused because of its own change.
// The interceptor adds an idempotency key to every request that can have one.
var retries = sync.OnceValue(func() string {
	var names []string
	for m := range api.Methods() {
		if m.Retry {
			names = append(names, fmt.Sprintf(`{"service": %q, "method": %q}`, m.Descriptor.Parent().FullName(), m.Descriptor.Name()))
		}
	}
	return `{"methodConfig": [{
	"name": [` + strings.Join(names, ", ") + `],
	"retryPolicy": {
		"maxAttempts": 4,
		"initialBackoff": "0.1s",
		"maxBackoff": "1s",
		"backoffMultiplier": 3,
		"retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`
})

// token is the bearer token of the next call; empty if it has none.
type token func() string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if t() == "" {
		return nil, nil
	}
	return map[string]string{"authorization": t.header()}, nil
}

func (token) RequireTransportSecurity() bool { return true }

func (t token) header() string { return "Bearer " + t() }

// link dials the servers and remembers why the last attempt failed, which gRPC keeps only as text.
type link struct {
	resolver *manual.Resolver

	mu        sync.Mutex
	addresses []string
	current   string // that of the newest connection
	last      error
}

// A server whose machine is up and whose process hangs is detected by a ping, when it has sent nothing for pingAfter
// while calls are open. gRPC does not ping sooner, and servers allow that much.
const (
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// dialer detects a dead peer through TCP itself, without the server's help.
var dialer = deadpeer.Dialer()

func (l *link) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		l.failed(err)
		return nil, err
	}
	l.connected(address)
	return conn, nil
}

func (l *link) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
}

// unreachable is a readable error: the newest failure if there is one, otherwise the given one.
func (l *link) unreachable(otherwise error) *UnreachableError {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil {
		otherwise = l.last
	}
	return &UnreachableError{Addresses: slices.Clone(l.addresses), Err: otherwise}
}

// down reports whether the newest attempt to connect failed.
func (l *link) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last != nil
}

// watchedTLS reports the outcome of handshakes to the link.
type watchedTLS struct {
	credentials.TransportCredentials
	link *link
}

func (w *watchedTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		w.link.failed(handshakeFailed(raw.RemoteAddr().String(), err))
		return nil, nil, err
	}
	w.link.failed(nil)
	return conn, info, nil
}

func (w *watchedTLS) Clone() credentials.TransportCredentials {
	return &watchedTLS{TransportCredentials: w.TransportCredentials.Clone(), link: w.link}
}
