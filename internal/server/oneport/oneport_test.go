package oneport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/identity"
)

// cluster is a CA, with what its members need to connect.
type cluster struct{ ca *identity.CA }

func newCluster(t *testing.T) cluster {
	t.Helper()
	ca, err := identity.NewCA("test-cluster", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return cluster{ca}
}

func (c cluster) member(t *testing.T, kind identity.Kind, name ...string) *identity.Credentials {
	t.Helper()
	id, err := identity.NewID(c.ca.Trust().Cluster(), kind, name...)
	if err != nil {
		t.Fatal(err)
	}
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := c.ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: true, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	member, err := identity.NewCredentials(key, chain)
	if err != nil {
		t.Fatal(err)
	}
	return member
}

func (c cluster) options(t *testing.T) Options {
	t.Helper()
	return Options{
		Address:     "127.0.0.1:0",
		Trust:       c.ca.Trust(),
		Certificate: c.member(t, identity.KindServer, "s-1").Certificate,
		Log:         slog.New(slog.DiscardHandler),
	}
}

// service is a port with grpc-go and net/http behind it, as the API edge uses it.
type service struct {
	cluster
	port     *Port
	overHTTP atomic.Int64 // requests that came through net/http
	caller   atomic.Value // identity.ID of the last gRPC caller
}

func serve(t *testing.T, c cluster, o Options) *service {
	t.Helper()
	port, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{cluster: c, port: port}

	rpc := grpc.NewServer(grpc.Creds(port.GRPCCredentials()), grpc.UnaryInterceptor(s.noteCaller), grpc.StatsHandler(port.GRPCStats()))
	healthpb.RegisterHealthServer(rpc, health.NewServer())
	handler := Handler(rpc, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := identity.PeerID(*r.TLS)
		fmt.Fprintf(w, "%s %s", r.Proto, id)
	}))
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.overHTTP.Add(1)
		handler.ServeHTTP(w, r)
	})}

	ran, rpcDone, webDone := make(chan error, 1), make(chan error, 3), make(chan error, 1)
	go func() { ran <- port.Run(context.WithoutCancel(t.Context())) }()
	for _, listener := range []net.Listener{port.GRPC(), port.GRPCServers(), port.GRPCStrangers()} {
		go func() { rpcDone <- rpc.Serve(listener) }()
	}
	go func() { webDone <- web.Serve(port.HTTP()) }()
	t.Cleanup(func() {
		if err := port.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		for range 3 {
			<-rpcDone
		}
		<-webDone
		rpc.Stop()
		if err := web.Close(); err != nil {
			t.Errorf("close HTTP server: %v", err)
		}
	})
	return s
}

func (s *service) noteCaller(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil, status.Errorf(codes.Internal, "the peer has %T", p.AuthInfo)
	}
	id, _ := identity.PeerID(info.State)
	s.caller.Store(id)
	return next(ctx, req)
}

// dial makes a gRPC client of a member.
func (s *service) dial(t *testing.T, config *tls.Config) healthpb.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient(s.port.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn)
}

// get makes an HTTP request and returns what the handler saw.
func (s *service) get(t *testing.T, config *tls.Config, http2 bool) (string, error) {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{TLSClientConfig: config, Protocols: &protocols}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.port.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func TestGRPCClientIsServedByGRPCItself(t *testing.T) {
	c := newCluster(t)
	s := serve(t, c, c.options(t))
	node := c.member(t, identity.KindNode, "n-1")
	client := s.dial(t, identity.ClientTLS(c.ca.Trust(), node.Certificate))
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if s.overHTTP.Load() != 0 {
		t.Error("the call went through net/http")
	}
	if s.caller.Load() != node.ID() {
		t.Errorf("the caller was seen as %v, want %s", s.caller.Load(), node.ID())
	}
}

// Some gRPC clients also offer http/1.1. They are served all the same, and with the same
// identity.
func TestGRPCClientThatOffersBothIsServedThroughHTTP(t *testing.T) {
	c := newCluster(t)
	s := serve(t, c, c.options(t))
	node := c.member(t, identity.KindNode, "n-1")
	config := identity.ClientTLS(c.ca.Trust(), node.Certificate)
	config.NextProtos = []string{"h2", "http/1.1"}
	if _, err := s.dial(t, config).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if s.overHTTP.Load() != 1 {
		t.Errorf("%d calls went through net/http, want 1", s.overHTTP.Load())
	}
	if s.caller.Load() != node.ID() {
		t.Errorf("the caller was seen as %v, want %s", s.caller.Load(), node.ID())
	}
}

func TestHTTPClientsAreServedInTheVersionTheySpeak(t *testing.T) {
	c := newCluster(t)
	s := serve(t, c, c.options(t))
	user := c.member(t, identity.KindUser, "ada")
	for _, test := range []struct {
		name   string
		source identity.CertificateSource
		http2  bool
		want   string
	}{
		{"HTTP/2 with a certificate", user.Certificate, true, "HTTP/2.0 " + user.ID().String()},
		{"HTTP/1.1 with a certificate", user.Certificate, false, "HTTP/1.1 " + user.ID().String()},
		{"HTTP/2 without a certificate", nil, true, "HTTP/2.0 "},
		{"HTTP/1.1 without a certificate", nil, false, "HTTP/1.1 "},
	} {
		got, err := s.get(t, identity.ClientTLS(c.ca.Trust(), test.source), test.http2)
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v; want %q", test.name, got, err, test.want)
		}
	}
}

func TestClientThatOffersNoProtocolGetsHTTP1(t *testing.T) {
	c := newCluster(t)
	s := serve(t, c, c.options(t))
	conn, err := tls.Dial("tcp", s.port.Addr().String(), identity.ClientTLS(c.ca.Trust(), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if want := "HTTP/1.1 200 OK\r\n"; err != nil || string(answer[:min(len(want), len(answer))]) != want {
		t.Errorf("answer %q, %v", answer, err)
	}
}

func TestNonMembersAreRefused(t *testing.T) {
	c := newCluster(t)
	s := serve(t, c, c.options(t))
	oldTLS := identity.ClientTLS(c.ca.Trust(), nil)
	oldTLS.MinVersion, oldTLS.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	stranger := newCluster(t).member(t, identity.KindNode, "n-1")
	unknown := identity.ClientTLS(c.ca.Trust(), nil)
	unknown.NextProtos = []string{"smtp"}
	for name, config := range map[string]*tls.Config{
		"TLS 1.2":                       oldTLS,
		"a certificate of another CA":   identity.ClientTLS(c.ca.Trust(), stranger.Certificate),
		"a protocol that is not served": unknown,
	} {
		conn, err := tls.Dial("tcp", s.port.Addr().String(), config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // where TLS 1.3 tells a client that it is refused
			_ = conn.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The program of a replica may have a certificate of the cluster. It is a stranger nevertheless: the limits for strangers
// apply, and no protocol of members is spoken with it.
func TestWorkloadsAreStrangers(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Peers, o.Members = []string{"peer/1"}, []string{"member/1"}
	s := serve(t, c, o)
	workload := c.member(t, identity.KindWorkload, "default", "web")
	for _, protocol := range []string{"peer/1", "member/1"} {
		config := identity.ClientTLS(c.ca.Trust(), workload.Certificate)
		config.NextProtos = []string{protocol}
		conn, err := tls.Dial("tcp", s.port.Addr().String(), config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", protocol, err)
		}
	}
	client := s.dial(t, identity.ClientTLS(c.ca.Trust(), workload.Certificate))
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	s.port.mu.Lock()
	defer s.port.mu.Unlock()
	for one := range s.port.conns {
		if one.id.Kind() == identity.KindWorkload && one.route == s.port.grpc {
			t.Error("the connection of a workload is treated as that of a member")
		}
	}
}

func TestCloseIdentityCutsTheConnectionsOfOneMember(t *testing.T) {
	c := newCluster(t)
	s := serve(t, c, c.options(t))
	watch := func(member *identity.Credentials) grpc.ServerStreamingClient[healthpb.HealthCheckResponse] {
		client := s.dial(t, identity.ClientTLS(c.ca.Trust(), member.Certificate))
		stream, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	bad, good := c.member(t, identity.KindNode, "bad"), c.member(t, identity.KindNode, "good")
	cut, kept := watch(bad), watch(good)

	if n := s.port.CloseIdentity(bad.ID()); n != 1 {
		t.Errorf("CloseIdentity closed %d connections, want 1", n)
	}
	if _, err := cut.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream of the closed identity: %v", err)
	}
	if n := s.port.CloseIdentity(identity.ID{}); n != 0 {
		t.Errorf("CloseIdentity without a connection closed %d", n)
	}
	if n := s.port.CloseIdentity(good.ID()); n != 1 {
		t.Errorf("%d connections of the other member were open, want 1", n)
	}
	if _, err := kept.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream of the other identity: %v", err)
	}
}

func TestListenRefusesInvalidOptions(t *testing.T) {
	c := newCluster(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	taken, noTrust, negative := c.options(t), c.options(t), c.options(t)
	taken.Address = busy.Addr().String()
	noTrust.Trust = nil
	negative.MaxHandshakes = -1
	for name, o := range map[string]Options{"taken": taken, "no trust": noTrust, "negative": negative} {
		if port, err := Listen(t.Context(), o); err == nil {
			_ = port.Close()
			t.Errorf("%s: listens", name)
		}
	}
}
