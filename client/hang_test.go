package client_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
)

// noticed ends a test that hangs itself.
const noticed = 10 * time.Minute

// A hanging process keeps its connections, and its kernel acknowledges what it receives.
func TestCallLeavesAHangingServer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a silent server is asked; make test runs it")
	}
	t.Parallel()
	a := newAuthority(t, "one")
	hangs := newHanging(t, a.serve(identity.KindServer, named("hangs").register))
	well := a.serve(identity.KindServer, named("well").register)
	c := dial(t, a.context(hangs.address, well))
	hangs.stop()
	ctx, cancel := context.WithTimeout(t.Context(), noticed)
	defer cancel()
	got, err := c.Cluster().GetCluster(ctx, &cloudlessv1.GetClusterRequest{})
	if err != nil || got.GetMetadata().GetName() != "well" {
		t.Errorf("%v answers, %v", got, err)
	}
}

func TestWatchEndsWhenItsServerHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a silent server is asked; make test runs it")
	}
	t.Parallel()
	a := newAuthority(t, "one")
	hangs := newHanging(t, a.serve(identity.KindServer, func(r grpc.ServiceRegistrar) {
		cloudlessv1.RegisterWorkloadServiceServer(r, silent{})
	}))
	ctx, cancel := context.WithTimeout(t.Context(), noticed)
	defer cancel()
	watch, err := dial(t, a.context(hangs.address)).Workloads().WatchWorkloads(ctx, &cloudlessv1.WatchWorkloadsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Header(); err != nil {
		t.Fatal(err)
	}
	hangs.stop()
	if _, err := watch.Recv(); err == nil || ctx.Err() != nil {
		t.Errorf("the watch of a server that hangs goes on: %v", err)
	}
}

// silent accepts a watch and sends nothing.
type silent struct {
	cloudlessv1.UnimplementedWorkloadServiceServer
}

func (silent) WatchWorkloads(_ *cloudlessv1.WatchWorkloadsRequest, stream grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error {
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func TestPushLeavesAHangingServer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a silent server is asked; make test runs it")
	}
	t.Parallel()
	a := newAuthority(t, "one")
	begun := make(chan struct{})
	hangs := newHanging(t, a.serveHTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	})))
	well := a.serveHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var web http.Client
	go func() {
		<-begun
		hangs.stop()
	}()
	push := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), noticed)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPatch, "https://registry.cloudless.internal/v2/", strings.NewReader("a layer"))
		if err != nil {
			return err
		}
		resp, err := web.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				t.Fatal("a push waits for a server that hangs")
			}
			return err
		}
		return resp.Body.Close()
	}
	for asked := false; !asked; { // a server that is slow to connect to is left before
		web.Transport = dial(t, a.context(hangs.address, well)).HTTPTransport()
		err := push()
		select {
		case <-begun:
			asked = true
			if err == nil {
				t.Error("a server that hangs has answered")
			}
		default:
		}
	}
	if err := push(); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
}

// An answer may take long if many servers must have an image first.
func TestPushWaitsForASlowServer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a silent server is asked; make test runs it")
	}
	t.Parallel()
	a := newAuthority(t, "one")
	slow := a.serveHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(12 * time.Second) }))
	web := http.Client{Transport: dial(t, a.context(slow)).HTTPTransport()}
	resp, err := web.Get("https://registry.cloudless.internal/v2/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// hanging is a proxy on which nothing moves once it is stopped, though connections are accepted.
type hanging struct {
	address string
	stopped atomic.Bool
}

func newHanging(t *testing.T, server string) *hanging {
	t.Helper()
	listener := listen(t)
	h := &hanging{address: listener.Addr().String()}
	var mu sync.Mutex
	var all []net.Conn
	keep := func(conn net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, conn)
	}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			keep(from)
			to, err := net.Dial("tcp", server)
			if err != nil {
				return
			}
			keep(to)
			go h.pass(from, to)
			go h.pass(to, from)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range all {
			_ = conn.Close()
		}
	})
	return h
}

func (h *hanging) stop() { h.stopped.Store(true) }

func (h *hanging) pass(from io.Reader, to io.WriteCloser) {
	defer to.Close()
	data := make([]byte, 32<<10)
	for {
		n, err := from.Read(data)
		if err != nil {
			return
		}
		if h.stopped.Load() {
			continue
		}
		if _, err := to.Write(data[:n]); err != nil {
			return
		}
	}
}
