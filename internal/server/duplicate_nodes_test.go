package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// connectAs begins a session of one of several agents with the same identity.
func (m *member) connectAs(ctx context.Context, instance string) sessionClient {
	m.c.t.Helper()
	stream, err := m.Session(ctx)
	must(m.c.t, err)
	status := machineStatus()
	status.Info = &v1.NodeInfo{Hostname: "box-" + instance}
	must(m.c.t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{Status: status, Instance: instance}}}))
	return stream
}

// sendHeartbeats sends heartbeats until ctx ends.
func sendHeartbeats(ctx context.Context, stream sessionClient) {
	for ctx.Err() == nil {
		if stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{Interval: "50ms"}}}) != nil {
			return
		}
		time.Sleep(50 * time.Millisecond) // the interval that the heartbeat names
	}
}

// Two agents run on copies of one data folder. The second is refused, the first keeps its work, and the cluster's
// problems name the copy.
func TestAgentOnACopiedDataFolderIsRefused(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	first := m.connectAs(c.ctx, "one")
	assignments(t, first)
	go sendHeartbeats(c.ctx, first)
	for range 3 { // retrying does not help
		_, err := m.connectAs(c.ctx, "two").Recv()
		wantCode(t, err, codes.AlreadyExists, "is a copy of that of node n1, which runs elsewhere")
	}
	_, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	for len(receive(t, first).GetAssignments().GetAssign()) == 0 { // wait until the first agent gets the replica
	}
	c.until(func(snap *state.Snapshot) bool { return snap.Node(m.uid()).GetStatus().GetState() == "ready" })
	cluster, err := c.as(core.RoleAdmin).GetCluster(c.ctx, &v1.GetClusterRequest{})
	must(t, err)
	if problems := strings.Join(cluster.GetStatus().GetProblems(), "\n"); !strings.Contains(problems, "a copy of the data folder of node n1 runs on another machine (box-two") {
		t.Errorf("the problems are %q", problems)
	}
	events := 0
	for e := range c.Store.Snapshot().Events("") {
		if e.GetSpec().GetReason() == "Copied" {
			events++
		}
	}
	if events != 1 {
		t.Errorf("there are %d events about it", events)
	}
}

// A machine that loses power leaves an open session behind. The agent that starts next replaces it.
func TestAgentReplacesASilentOneAfterAPowerFailure(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	first := m.connectAs(c.ctx, "before")
	assignments(t, first)
	second := m.connectAs(c.ctx, "after") // while the first is silent
	assignments(t, second)
	wantCode(t, ending(first), codes.Unavailable, "") // it was replaced, or silent for too long
}

// An agent that has closed its session is replaced at once.
func TestRestartedAgentIsAdmitted(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	ctx, cancel := context.WithCancel(c.ctx)
	first := m.connectAs(ctx, "before")
	assignments(t, first)
	go sendHeartbeats(ctx, first)
	cancel()
	assignments(t, m.connectAs(c.ctx, "after"))
}
