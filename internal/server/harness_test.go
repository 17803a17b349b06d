package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/nodes"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/control/secrets"
	"github.com/cloudless/cloudless/internal/control/services"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core/coretest"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// cluster is a whole server on its own port, with real state on disk, real certificates and
// real loops. Only the machines are simulated, see agent_test.go.
type cluster struct {
	*Server
	t *testing.T
	// log is everything that was logged, at debug level.
	log *logBuffer
	// stop ends the server and waits for it. It may be called more than once.
	stop func()
	// ctx ends a while after a test should have passed, so that a hanging test fails.
	ctx context.Context
}

func newCluster(t *testing.T, change ...func(*Options)) *cluster {
	t.Helper()
	log := &logBuffer{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	dir, store := t.TempDir(), state.New()
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(dir, "kek.json"))
	must(t, err)
	agreed, err := consensus.Open(ctx, consensus.Options{
		Dir: filepath.Join(dir, "raft"), ServerID: "s-1", Address: "127.0.0.1:0", Store: store, Logger: logger, Bootstrap: true,
	})
	must(t, err)
	t.Cleanup(func() { check(t, agreed.Close()) })
	must(t, agreed.WaitLeader(ctx))
	ca, err := membership.Found(ctx, agreed, sealer, membership.Site{})
	must(t, err)
	tolerateSilence(t, agreed, store)
	images, err := registry.Open(ctx, registry.Options{
		Dir: filepath.Join(dir, "registry"), Logger: logger,
		KeepDeleted: func() time.Duration { return spec.RetentionOf(store.Snapshot().Cluster().GetSpec()).Images },
	})
	must(t, err)
	t.Cleanup(func() { check(t, images.Close()) })
	loop := nodes.New(store, agreed, nil)
	options := Options{
		UID: "s-1", Version: "test", Address: "127.0.0.1:0", Store: store, Consensus: agreed, CA: ca, Sealer: sealer, Registry: images,
		Nodes: loop, Placement: replicas.Placement{}, Logger: logger, Foreign: noNetwork{},
	}
	for _, f := range change {
		f(&options)
	}
	s, err := New(ctx, options)
	must(t, err)
	c := &cluster{Server: s, t: t, log: log, ctx: ctx}
	c.stop = c.run(agreed, loop)
	t.Cleanup(c.stop)
	return c
}

// withNames gives a server the names of objects, and with them the object store.
func withNames(t *testing.T) func(*Options) {
	t.Helper()
	group, err := names.Open(t.Context(), names.Options{
		Dir: filepath.Join(t.TempDir(), "names"), ServerID: "s-1", Address: "127.0.0.1:0", Bootstrap: true, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { check(t, group.Close()) })
	return func(o *Options) { o.Names = group }
}

// tolerateSilence lets nodes be silent for as long as a test may take: most simulated
// agents send no heartbeats.
func tolerateSilence(t *testing.T, agreed *consensus.Consensus, store *state.Store) {
	t.Helper()
	cluster := proto.CloneOf(store.Snapshot().Cluster())
	cluster.Spec.Liveness = &v1.Liveness{Silence: "10m"}
	var b state.Batch
	b.Update(cluster, cluster.GetMetadata().GetVersion())
	_, err := agreed.Propose(t.Context(), b.Transaction(time.Now()))
	must(t, err)
}

// addressBook maps the servers of a test to their addresses.
type addressBook struct {
	mu  sync.Mutex
	all map[string]string
}

func (b *addressBook) set(server, address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[server] = address
}

func (b *addressBook) get(server string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[server]
}

// noNetwork is a transport without a network.
type noNetwork struct{}

func (noNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no network")
}

// run serves and runs the loops of the leader.
func (c *cluster) run(agreed *consensus.Consensus, loop *nodes.Loop) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	var done sync.WaitGroup
	done.Go(func() { check(c.t, c.Run(ctx)) })
	done.Go(func() {
		_ = agreed.Lead(ctx, func(ctx context.Context) error {
			var both sync.WaitGroup
			both.Go(func() { _ = loop.Run(ctx) })
			offered := services.Loop{Store: c.Store, Proposer: agreed}
			both.Go(func() { _ = offered.Run(ctx) })
			kept := secrets.Loop{Store: c.Store, Proposer: agreed}
			both.Go(func() { _ = kept.Run(ctx) })
			placement := replicas.Loop{Store: c.Store, Proposer: agreed}
			err := placement.Run(ctx)
			both.Wait()
			return err
		})
	})
	return sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
}

// user is one caller with a client for every service.
type user struct {
	v1.WorkloadServiceClient
	v1.NodeServiceClient
	v1.ClusterServiceClient
	v1.TokenServiceClient
	v1.ImageServiceClient
	v1.EventServiceClient
	v1.PlanServiceClient
	v1.ExplainServiceClient
	v1.EnrollmentServiceClient
	v1.AgentServiceClient
	conn *grpc.ClientConn
	// token is the secret that the caller sends, if any.
	token string
}

// dial connects with a certificate, an API token, or no credentials.
func (c *cluster) dial(member *identity.Credentials, token string) *user {
	c.t.Helper()
	var source identity.CertificateSource
	if member != nil {
		source = member.Certificate
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(identity.ClientTLS(c.ca.Trust(), source)))}
	if token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearerToken(token)))
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Address(), options...)
	must(c.t, err)
	c.t.Cleanup(func() { check(c.t, conn.Close()) })
	return &user{
		v1.NewWorkloadServiceClient(conn), v1.NewNodeServiceClient(conn), v1.NewClusterServiceClient(conn),
		v1.NewTokenServiceClient(conn), v1.NewImageServiceClient(conn), v1.NewEventServiceClient(conn), v1.NewPlanServiceClient(conn),
		v1.NewExplainServiceClient(conn),
		v1.NewEnrollmentServiceClient(conn), v1.NewAgentServiceClient(conn), conn, token,
	}
}

type bearerToken string

func (b bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearerToken) RequireTransportSecurity() bool { return true }

// as returns a user with an API token of a role.
func (c *cluster) as(role string) *user {
	c.t.Helper()
	return c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Role: role}))
}

func (c *cluster) newTokenSecret(request *v1.CreateTokenRequest) string {
	c.t.Helper()
	made, err := c.CreateToken(c.ctx, request)
	must(c.t, err)
	return made.GetSecret()
}

// web returns an HTTP client, with a certificate or without.
func (c *cluster) web(member *identity.Credentials) *http.Client {
	var source identity.CertificateSource
	if member != nil {
		source = member.Certificate
	}
	return c.webSpeaking(source, "h2", "http/1.1")
}

// webWithoutHTTP2 is for WebSockets.
func (c *cluster) webWithoutHTTP2() *http.Client { return c.webSpeaking(nil, "http/1.1") }

func (c *cluster) webSpeaking(source identity.CertificateSource, protocols ...string) *http.Client {
	config := identity.ClientTLS(c.ca.Trust(), source)
	config.NextProtos = protocols
	transport := &http.Transport{ForceAttemptHTTP2: slices.Contains(protocols, "h2"), DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", c.Address())
	}}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// request makes one HTTP request; header has pairs of a name and a value.
func (c *cluster) request(member *identity.Credentials, method, path, body string, header ...string) (*http.Response, string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.ctx, method, "https://cloudless"+path, strings.NewReader(body))
	must(c.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := c.web(member).Do(r)
	must(c.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(c.t, err)
	return response, string(text)
}

// until waits until the state satisfies the condition, and returns it.
func (c *cluster) until(want func(*state.Snapshot) bool) *state.Snapshot {
	c.t.Helper()
	snap, feed := c.Store.Subscribe()
	for !want(snap) {
		if _, err := feed.Next(c.ctx); err != nil {
			c.t.Fatalf("the state never satisfied the condition: %v", err)
		}
		snap = c.Store.Snapshot()
	}
	return snap
}

// change writes objects to the state, bypassing the API.
func (c *cluster) change(build func(*state.Snapshot, *state.Batch)) {
	c.t.Helper()
	_, err := c.Propose(c.ctx, func(snap *state.Snapshot, b *state.Batch) error {
		build(snap, b)
		return nil
	})
	must(c.t, err)
}

// logBuffer keeps what is logged.
type logBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

var wantCode = coretest.WantCode

// manifests returns objects as a plan holds them.
func manifests(objects ...proto.Message) (all []*v1.Manifest) {
	for _, o := range objects {
		all = append(all, spec.ManifestOf(o))
	}
	return all
}
