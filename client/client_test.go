package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

func TestCallsCarryTheToken(t *testing.T) {
	a := newAuthority(t, "one")
	where := a.context(a.serve(identity.KindServer, named("home").register))
	got, err := dial(t, where).Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{})
	if err != nil || got.GetMetadata().GetName() != "home" {
		t.Fatalf("GetCluster = %v, %v", got, err)
	}

	where.Token = "clapi_other"
	_, err = dial(t, where).Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("with another token: %v", err)
	}
	if want := "the token is not known: make a new one"; client.Message(err) != want {
		t.Errorf("Message = %q, want %q", client.Message(err), want)
	}
}

func TestDialUsesTheFirstServerThatAnswers(t *testing.T) {
	a := newAuthority(t, "one")
	where := a.context(closedAddress(t), a.serve(identity.KindServer, named("home").register))
	c := dial(t, where)
	if _, err := c.Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{}); err != nil {
		t.Fatal(err)
	}
	if now := c.Addresses(); len(now) != 2 || now[0] != where.Addresses[1] {
		t.Errorf("the one that answers is not tried first: %v", now)
	}
}

func TestDialSaysHowToStartAMissingCluster(t *testing.T) {
	a := newAuthority(t, "one")
	address := closedAddress(t)
	_, err := client.Dial(t.Context(), a.context(address))
	want := "cannot reach the cluster at " + address + ": is it running? start it with: cloudless up"
	if client.Message(err) != want {
		t.Errorf("Message = %q, want %q", client.Message(err), want)
	}
	if _, ok := errors.AsType[*client.UnreachableError](err); !ok || status.Code(err) != codes.Unavailable {
		t.Errorf("error is %T with code %s", err, status.Code(err))
	}
}

// If there were several servers, they may have moved.
func TestDialSaysWhatToDoIfAllServersHaveMoved(t *testing.T) {
	a := newAuthority(t, "one")
	one, two := closedAddress(t), closedAddress(t)
	_, err := client.Dial(t.Context(), a.context(one, two))
	want := "cannot reach the cluster at " + one + ", " + two + ": start its servers again, each with: cloudless server; if they have moved, name one of them with --server ADDRESS"
	if client.Message(err) != want {
		t.Errorf("Message = %q, want %q", client.Message(err), want)
	}
}

func TestDialRefusesForeignServers(t *testing.T) {
	mine, other := newAuthority(t, "mine"), newAuthority(t, "other")
	for name, address := range map[string]string{
		"a server of another cluster": other.serve(identity.KindServer, named("other").register),
		"a node of the same cluster":  mine.serve(identity.KindNode, named("mine").register),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Dial(t.Context(), mine.context(address))
			if err == nil || !strings.Contains(err.Error(), "is not a server of the cluster that the context names") {
				t.Errorf("Dial = %v", err)
			}
		})
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	a := newAuthority(t, "one")
	silent := listen(t) // accepts in the kernel, never completes a handshake
	defer silent.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	_, err := client.Dial(ctx, a.context(silent.Addr().String()))
	if err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("Dial = %v", err)
	}
}

func TestDialDistinguishesBrokenConnectionsFromForeignServers(t *testing.T) {
	a := newAuthority(t, "one")
	listener := listen(t)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	_, err := client.Dial(t.Context(), a.context(listener.Addr().String()))
	if err == nil || !strings.Contains(err.Error(), "broke while it was made") {
		t.Errorf("Dial = %v", err)
	}
}

func TestCallsReportALostCluster(t *testing.T) {
	a := newAuthority(t, "one")
	var server *grpc.Server
	address := a.serve(identity.KindServer, func(r grpc.ServiceRegistrar) {
		server = r.(*grpc.Server)
		named("home").register(r)
	})
	c := dial(t, a.context(address))
	server.Stop()
	_, err := c.Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{})
	if want := "cannot reach the cluster at " + address + ": is it running? start it with: cloudless up"; client.Message(err) != want {
		t.Errorf("Message = %q, want %q", client.Message(err), want)
	}
}

func TestReadsSurviveAShortAbsence(t *testing.T) {
	a := newAuthority(t, "one")
	var calls atomic.Int32
	flaky := cluster{answer: func() (*cloudlessv1.Cluster, error) {
		if calls.Add(1) < 3 {
			return nil, status.Error(codes.Unavailable, "no leader yet")
		}
		return &cloudlessv1.Cluster{}, nil
	}}
	c := dial(t, a.context(a.serve(identity.KindServer, flaky.register)))
	if _, err := c.Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{}); err != nil {
		t.Error(err)
	}
	if calls.Load() != 3 {
		t.Errorf("%d calls, want 3", calls.Load())
	}
}

// creator fails the first attempt and records the keys of all.
type creator struct {
	cloudlessv1.UnimplementedWorkloadServiceServer
	keys chan string
}

func (c *creator) CreateWorkload(_ context.Context, req *cloudlessv1.CreateWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.keys <- req.GetIdempotencyKey()
	if len(c.keys) == 1 {
		return nil, status.Error(codes.Unavailable, "the leader changed")
	}
	return req.GetWorkload(), nil
}

func TestCreationIsRetriedUnderOneKey(t *testing.T) {
	a := newAuthority(t, "one")
	srv := &creator{keys: make(chan string, 8)}
	c := dial(t, a.context(a.serve(identity.KindServer, func(r grpc.ServiceRegistrar) {
		cloudlessv1.RegisterWorkloadServiceServer(r, srv)
	})))
	request := &cloudlessv1.CreateWorkloadRequest{Workload: &cloudlessv1.Workload{}}
	if _, err := c.Workloads().CreateWorkload(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	first, second := <-srv.keys, <-srv.keys
	if first == "" || first != second {
		t.Errorf("keys %q and %q, want the same one", first, second)
	}
	if request.GetIdempotencyKey() != "" {
		t.Error("the caller's request was changed")
	}

	request.IdempotencyKey = "mine"
	if _, err := c.Workloads().CreateWorkload(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got := <-srv.keys; got != "mine" {
		t.Errorf("key %q, want the caller's own", got)
	}
}

func TestHTTPGoesOnlyToTheCluster(t *testing.T) {
	a := newAuthority(t, "one")
	address := a.serveHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %s", r.Proto, r.Host, r.URL.Path, r.Header.Get("Authorization"))
	}))
	web := http.Client{Transport: dial(t, a.context(closedAddress(t), address)).HTTPTransport()}

	resp, err := web.Get("https://registry.cloudless.internal/v2/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if want := "HTTP/1.1 registry.cloudless.internal /v2/ Bearer " + testToken; string(body) != want || err != nil {
		t.Errorf("answer %q, %v; want %q", body, err, want)
	}

	if _, err := web.Get("http://registry.cloudless.internal/v2/"); err == nil || !strings.Contains(err.Error(), "not an https address") {
		t.Errorf("without TLS: %v", err)
	}
}

// A server that is cut off from the others only refuses. Retries go to another server, however many clients there are.
func TestHTTPLeavesAServerCutOff(t *testing.T) {
	a := newAuthority(t, "one")
	cut := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Cloudless-Reason", "NO_LEADER")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	well := a.serveHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	web := http.Client{Transport: dial(t, a.context(a.serveHTTP(cut), a.serveHTTP(cut), well)).HTTPTransport()}
	ask := func() (status int) {
		resp, err := web.Get("https://registry.cloudless.internal/v2/")
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	var asked sync.WaitGroup
	for range 4 {
		asked.Go(func() { ask() })
	}
	asked.Wait()
	ask() // what is left of the first ones
	ask()
	for range 3 {
		if got := ask(); got != http.StatusOK {
			t.Errorf("status %d though one of three servers is well", got)
		}
	}
}

func TestHTTPRefusesAnotherCluster(t *testing.T) {
	mine, other := newAuthority(t, "mine"), newAuthority(t, "other")
	reached := false
	stranger := other.serveHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	var own *grpc.Server
	address := mine.serve(identity.KindServer, func(r grpc.ServiceRegistrar) { own = r.(*grpc.Server) })
	c := dial(t, mine.context(address, stranger))
	own.Stop() // so that only the foreign server is left
	_, err := (&http.Client{Transport: c.HTTPTransport()}).Get("https://registry.cloudless.internal/v2/")
	if err == nil || reached || !strings.Contains(err.Error(), "is not a server of the cluster that the context names, but of another one") {
		t.Errorf("a stranger was spoken to: %v", err)
	}
}
