package server

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// runs puts a workload's replica onto a node that says hello and runs it, and returns the
// session.
func (c *cluster) runs(op *user, m *member, name string) (sessionClient, *v1.Replica) {
	c.t.Helper()
	stream := m.connect(c.ctx)
	assignments(c.t, stream)
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload(name)})
	must(c.t, err)
	r := assignments(c.t, stream).GetAssign()[0].GetReplica()
	must(c.t, report(stream, r.GetMetadata().GetUid(), obey(r)))
	return stream, c.running(made.GetMetadata().GetUid(), 1)[0]
}

func (c *cluster) beat(stream sessionClient, cpu string, replicas ...*v1.ReplicaUsage) {
	c.t.Helper()
	must(c.t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{
		Usage: &v1.NodeResources{Cpu: cpu, Memory: "2Gi", Disk: "10Gi"}, Replicas: replicas,
	}}}))
}

// frame reads frames until one satisfies the condition.
func frame(t *testing.T, receive func() (*v1.Usage, error), want func(*v1.Usage) bool) *v1.Usage {
	t.Helper()
	for {
		next, err := receive()
		must(t, err)
		if want(next) {
			return next
		}
	}
}

func TestUsageIsSentAsItArrives(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	stream, r := c.runs(op, c.join("n1"), "web")
	uid := r.GetMetadata().GetUid()
	watching, end := context.WithCancel(c.ctx)
	watch, err := viewer.WatchUsage(watching, &v1.GetUsageRequest{Namespace: "default", Workload: "web"})
	must(t, err)
	if first, err := watch.Recv(); err != nil || len(first.GetReplicas()) != 0 {
		t.Errorf("before any word the usage is %v (%v)", first, err)
	}
	c.beat(stream, "1", &v1.ReplicaUsage{Uid: uid, MemoryBytes: 7, Cpu: 0.5}, &v1.ReplicaUsage{Uid: "of another node"})
	got := frame(t, watch.Recv, func(u *v1.Usage) bool { return len(u.GetReplicas()) == 1 })
	if u := got.GetReplicas()[0]; u.GetReplica() != r.GetMetadata().GetName() || u.GetWorkload() != "web" || u.GetNode() != "n1" || u.GetCpu() != 0.5 {
		t.Errorf("the replica's usage is %v", u)
	}
	if n := got.GetNodes(); len(n) != 1 || n[0].GetUsage().GetCpu() != "1" || n[0].GetCapacity().GetCpu() != "4" || n[0].GetReplicas() != 1 || n[0].GetState() != "ready" {
		t.Errorf("the nodes' usage is %v", n)
	}
	c.beat(stream, "2", &v1.ReplicaUsage{Uid: uid, MemoryBytes: 8})
	frame(t, watch.Recv, func(u *v1.Usage) bool {
		return u.GetReplicas()[0].GetMemoryBytes() == 8 && u.GetNodes()[0].GetUsage().GetCpu() == "2"
	})

	for _, ask := range []struct {
		request         *v1.GetUsageRequest
		nodes, replicas int
	}{
		{&v1.GetUsageRequest{}, 1, 1},
		{&v1.GetUsageRequest{Namespace: "default"}, 1, 1},
		{&v1.GetUsageRequest{Namespace: "other"}, 1, 0},
		{&v1.GetUsageRequest{Workload: "web"}, 1, 1},
	} {
		now, err := viewer.GetUsage(c.ctx, ask.request)
		must(t, err)
		if len(now.GetNodes()) != ask.nodes || len(now.GetReplicas()) != ask.replicas || now.GetTime() == nil {
			t.Errorf("%v: %v", ask.request, now)
		}
	}
	_, err = viewer.GetUsage(c.ctx, &v1.GetUsageRequest{Namespace: "default", Workload: "nope"})
	wantCode(t, err, codes.NotFound, "workload nope does not exist in namespace default")

	// A replica that has ended uses nothing, whatever its node said last.
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	must(t, report(stream, uid, &v1.ReplicaStatus{Phase: "stopped"}))
	c.until(func(snap *state.Snapshot) bool { return snap.Replica(uid).GetStatus().GetPhase() == "stopped" })
	now, err := viewer.GetUsage(c.ctx, &v1.GetUsageRequest{})
	must(t, err)
	if len(now.GetReplicas()) != 0 {
		t.Errorf("after the end it uses %v", now.GetReplicas())
	}
	end()
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Errorf("the watch ended with %v", err)
	}
}

// However often nodes report, a watcher gets a frame now and then, and finally the newest
// report.
func TestManyReportsShareAFrame(t *testing.T) {
	c := newCluster(t)
	stream, r := c.runs(c.as(core.RoleOperator), c.join("n1"), "web")
	watch, err := c.as(core.RoleViewer).WatchUsage(c.ctx, &v1.GetUsageRequest{})
	must(t, err)
	const words = 500
	for i := range words {
		c.beat(stream, "1", &v1.ReplicaUsage{Uid: r.GetMetadata().GetUid(), MemoryBytes: uint64(i)})
	}
	frames := 0
	frame(t, watch.Recv, func(u *v1.Usage) bool {
		frames++
		return len(u.GetReplicas()) == 1 && u.GetReplicas()[0].GetMemoryBytes() == words-1
	})
	if frames > words/10 {
		t.Errorf("%d words made %d frames", words, frames)
	}
}

func TestEventsOfAWorkloadIncludeThoseOfItsReplicas(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", idle)
	watch, err := op.WatchEvents(c.ctx, &v1.WatchEventsRequest{Workload: "web-2"})
	must(t, err)
	c.create(op, workload("web"))
	c.create(op, workload("web-2"))
	var watched []string
	for range 3 {
		e, err := watch.Recv()
		must(t, err)
		watched = append(watched, e.GetSpec().GetObjectKind()+" "+e.GetSpec().GetReason())
	}
	if want := "[workload Created replica Placed replica Started]"; fmt.Sprint(watched) != want {
		t.Errorf("watched %v, want %s", watched, want)
	}
	list, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Workload: "web"})
	must(t, err)
	if len(list.GetItems()) != 3 {
		t.Errorf("web has the events %v", list.GetItems())
	}
	for e := range c.Store.Snapshot().OldestEvents() {
		kind := e.GetSpec().GetObjectKind()
		if e.GetSpec().GetReason() == "" || (kind == "workload" || kind == "replica") != (e.GetSpec().GetWorkload() != "") {
			t.Errorf("an event lacks its reason or its workload: %v", e)
		}
	}
}
