package server

import (
	"bytes"
	"context"
	"net"
	"runtime/pprof"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// ours returns the goroutines that run code of this package, except tests.
func ours(t *testing.T) []string {
	t.Helper()
	var all bytes.Buffer
	must(t, pprof.Lookup("goroutine").WriteTo(&all, 2))
	var found []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "internal/server.") && !strings.Contains(stack, "_test.go") {
			found = append(found, stack)
		}
	}
	return found
}

func TestServerStopsWithOpenStreams(t *testing.T) {
	before := len(ours(t))
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	m := c.join("n1")
	c.work("n2", func(open *v1.Open, stream attachClient) {
		if open.GetExec() != nil {
			echo(nil)(open, stream)
			return
		}
		sendLine(stream, 0, "x")
		awaitEnd(stream)
	})
	c.create(op, workload("web"))

	// One stream of each kind, all of them idle.
	session := m.connect(c.ctx)
	assignments(t, session)
	watch, err := op.WatchWorkloads(c.ctx, &v1.WatchWorkloadsRequest{Name: "nope"})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
	health, err := healthv1.NewHealthClient(op.conn).Watch(c.ctx, &healthv1.HealthCheckRequest{})
	must(t, err)
	_, err = health.Recv()
	must(t, err)
	exec := c.exec(c.ctx, op, "silent")
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true})
	must(t, err)
	_, err = logs.Recv()
	must(t, err)
	line := c.lines(c.ctx, op.token, "/v1/workloads:watch")
	line()
	socket, _, err := c.socket(op.token, "/v1/namespaces/default/workloads/web:exec")
	must(t, err)
	writeFrame(t, c.ctx, socket, execStart("", "silent"))
	readFrame(t, c.ctx, socket)

	c.stop()
	for what, err := range map[string]error{
		"session": ending(session), "watch": second(watch.Recv()), "health": second(health.Recv()),
		"exec": second(exec.Recv()), "logs": lastOf(logs),
	} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s ended with %v", what, err)
		}
	}
	if _, _, err := socket.Read(c.ctx); err == nil {
		t.Error("the socket is still open")
	}
	if _, err := net.Dial("tcp", c.Address()); err == nil {
		t.Error("the port is still open")
	}
	for left := ours(t); len(left) > before; left = ours(t) { // a handler may be on its last line
		if c.ctx.Err() != nil {
			t.Fatalf("goroutines are left:\n%s", strings.Join(left, "\n\n"))
		}
	}
}

func TestCallInProgressIsAnsweredBeforeShutdown(t *testing.T) {
	entered, proceed := make(chan struct{}), make(chan struct{})
	c := newCluster(t, func(o *Options) { o.Placement = slowPlacement{o.Placement, entered, proceed} })
	viewer := c.as(core.RoleViewer)
	c.join("n1")
	answered := make(chan error, 1)
	go func() {
		_, err := viewer.GetNode(c.ctx, &v1.GetNodeRequest{Name: "n1"})
		answered <- err
	}()
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.stop()
	}()
	<-c.stopping.Done()
	close(proceed)
	check(t, <-answered)
	<-stopped
}

// slowPlacement answers when the test lets it.
type slowPlacement struct {
	Placement
	entered, proceed chan struct{}
}

func (s slowPlacement) Requested(snap *state.Snapshot, uid string) *v1.NodeResources {
	close(s.entered)
	<-s.proceed
	return s.Placement.Requested(snap, uid)
}

func TestServerThatNeverRanFreesItsPort(t *testing.T) {
	c := newCluster(t)
	other, err := New(c.ctx, Options{
		UID: "s-2", Address: "127.0.0.1:0", Store: c.Store, Consensus: c.Consensus, CA: c.ca, Registry: c.registry,
		Nodes: c.nodes, Placement: c.placement, Logger: c.Logger,
	})
	must(t, err)
	must(t, other.Close())
	again, err := net.Listen("tcp", other.Address())
	must(t, err)
	must(t, again.Close())
	if context.Cause(other.stopping) == nil {
		t.Error("what belongs to the server goes on")
	}
	if _, err := New(c.ctx, Options{UID: "s-3", Address: c.Address(), CA: c.ca, Consensus: c.Consensus, Store: c.Store, Registry: c.registry, Logger: c.Logger}); err == nil {
		t.Error("two servers have one port")
	}
}

// lastOf returns how a log ends, after notes about agents that left before.
func lastOf(logs grpc.ServerStreamingClient[v1.LogEntry]) error {
	for {
		if _, err := logs.Recv(); err != nil {
			return err
		}
	}
}
