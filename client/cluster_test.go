package client_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

const testToken = "clapi_test_secret"

// authority is the CA of a test's cluster.
type authority struct {
	ca *identity.CA
	t  *testing.T
}

func newAuthority(t *testing.T, cluster string) *authority {
	t.Helper()
	ca, err := identity.NewCA(cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &authority{ca: ca, t: t}
}

// serverTLS is the server TLS configuration of a member of the given kind.
func (a *authority) serverTLS(kind identity.Kind) *tls.Config {
	a.t.Helper()
	id, err := identity.NewID(a.ca.Trust().Cluster(), kind, "one")
	if err != nil {
		a.t.Fatal(err)
	}
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		a.t.Fatal(err)
	}
	chain, err := a.ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: true, Client: true}, time.Now())
	if err != nil {
		a.t.Fatal(err)
	}
	own, err := identity.NewCredentials(key, chain)
	if err != nil {
		a.t.Fatal(err)
	}
	return identity.ServerTLS(a.ca.Trust(), own.Certificate)
}

func (a *authority) context(addresses ...string) client.Context {
	trust := a.ca.Trust()
	return client.Context{Name: "test", Addresses: addresses, Cluster: trust.Cluster(), CA: string(trust.PEM()), Token: testToken}
}

// serve answers gRPC until the test ends and returns the address. Callers need the test's token.
func (a *authority) serve(kind identity.Kind, register func(grpc.ServiceRegistrar)) string {
	a.t.Helper()
	listener := listen(a.t)
	allowed := func(ctx context.Context) error {
		given, _ := metadata.FromIncomingContext(ctx)
		if got := given.Get("authorization"); len(got) != 1 || got[0] != "Bearer "+testToken {
			return status.Errorf(codes.Unauthenticated, "the token is not known: make a new one")
		}
		return nil
	}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(a.serverTLS(kind))),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := allowed(ctx); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if err := allowed(stream.Context()); err != nil {
				return err
			}
			return handle(srv, stream)
		}),
	)
	register(server)
	go func() { _ = server.Serve(listener) }()
	a.t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// serveHTTP answers gRPC and the given handler on one address until the test ends, and returns the address.
func (a *authority) serveHTTP(handler http.Handler) string {
	a.t.Helper()
	listener := listen(a.t)
	calls := grpc.NewServer()
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Content-Type") == "application/grpc" {
				calls.ServeHTTP(w, r)
				return
			}
			handler.ServeHTTP(w, r)
		}),
		TLSConfig:         a.serverTLS(identity.KindServer),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	a.t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// closedAddress is one without a listener.
func closedAddress(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

func dial(t *testing.T, where client.Context) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// cluster answers GetCluster.
type cluster struct {
	cloudlessv1.UnimplementedClusterServiceServer
	answer func() (*cloudlessv1.Cluster, error)
}

func (c cluster) GetCluster(context.Context, *cloudlessv1.GetClusterRequest) (*cloudlessv1.Cluster, error) {
	return c.answer()
}

func (c cluster) register(r grpc.ServiceRegistrar) { cloudlessv1.RegisterClusterServiceServer(r, c) }

func named(name string) cluster {
	return cluster{answer: func() (*cloudlessv1.Cluster, error) {
		return &cloudlessv1.Cluster{Metadata: &cloudlessv1.Metadata{Name: name}}, nil
	}}
}
