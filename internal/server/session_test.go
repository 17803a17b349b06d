package server

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// running waits until a workload has so many running replicas and returns them.
func (c *cluster) running(workloadUID string, count int) []*v1.Replica {
	c.t.Helper()
	var found []*v1.Replica
	c.until(func(snap *state.Snapshot) bool {
		found = nil
		for r := range snap.ReplicasOf(workloadUID) {
			if r.GetStatus().GetPhase() == spec.PhaseRunning {
				found = append(found, r)
			}
		}
		return len(found) == count
	})
	return found
}

func TestSessionSendsAllAssignmentsAndThenChanges(t *testing.T) {
	c := newCluster(t)
	admin, m := c.as(core.RoleAdmin), c.join("n1")
	stream := m.connect(c.ctx)
	first := assignments(t, stream)
	if !first.GetFull() || len(first.GetAssign()) != 0 || first.GetEpoch() != 1 {
		t.Fatalf("the first assignments of an empty node are %v", first)
	}
	if got := first.GetNode(); got.GetSubnetV4() == "" || !proto.Equal(got, m.node.GetSpec()) {
		t.Errorf("the session sent the spec %v, and the node has %v", got, m.node.GetSpec())
	}
	made, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	delta := assignments(t, stream)
	if delta.GetFull() || len(delta.GetAssign()) != 1 || len(delta.GetRemove()) != 0 {
		t.Fatalf("a new replica was sent as %v", delta)
	}
	replica := delta.GetAssign()[0].GetReplica()
	if got := delta.GetAssign()[0].GetRevision().GetMetadata().GetUid(); got != made.GetStatus().GetRevisionUid() {
		t.Errorf("the assignment has revision %s, want %s", got, made.GetStatus().GetRevisionUid())
	}

	// The server does not echo the agent's report: the next assignment is of another replica.
	must(t, report(stream, replica.GetMetadata().GetUid(), obey(replica)))
	c.running(made.GetMetadata().GetUid(), 1)
	_, err = admin.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(2)})
	must(t, err)
	delta = assignments(t, stream)
	if len(delta.GetAssign()) != 1 || delta.GetAssign()[0].GetReplica().GetMetadata().GetUid() == replica.GetMetadata().GetUid() {
		t.Errorf("after scaling up the session sent %v", delta)
	}

	// The agent may remove a replica that has ended.
	ended := proto.CloneOf(replica.GetStatus())
	ended.Phase = spec.PhaseFailed
	must(t, report(stream, replica.GetMetadata().GetUid(), ended))
	for {
		delta = assignments(t, stream)
		if len(delta.GetRemove()) == 1 && delta.GetRemove()[0] == replica.GetMetadata().GetUid() {
			break
		}
	}

	// A new session sends all assignments: the second replica, and the one that replaces the first.
	c.until(func(snap *state.Snapshot) bool {
		live := 0
		for r := range snap.ReplicasOn(m.uid()) {
			if spec.Live(r.GetStatus().GetPhase()) {
				live++
			}
		}
		return live == 2
	})
	again := assignments(t, m.connect(c.ctx))
	if !again.GetFull() || len(again.GetAssign()) != 2 {
		t.Errorf("the second session began with %v", again)
	}
}

func TestSecondSessionOfANodeReplacesTheFirst(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	first := m.connect(c.ctx)
	assignments(t, first)
	second := m.connect(c.ctx)
	assignments(t, second)
	wantCode(t, ending(first), codes.Unavailable, "another session of the same node")

	// The node stays connected: the end of the first session does not affect the second.
	c.until(func(snap *state.Snapshot) bool { return snap.Node(m.uid()).GetStatus().GetState() == "ready" })
	if !c.hasSession(m.uid()) {
		t.Error("the node has no session")
	}
	_, err := c.as(core.RoleAdmin).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	if delta := assignments(t, second); len(delta.GetAssign()) != 1 {
		t.Errorf("the second session received %v", delta)
	}
}

func TestSessionMustBeginWithHello(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	stream, err := m.Session(c.ctx)
	must(t, err)
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{}}}))
	_, err = stream.Recv()
	wantCode(t, err, codes.InvalidArgument, "begins with hello")

	stream = m.connect(c.ctx)
	assignments(t, stream)
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{}}}))
	wantCode(t, ending(stream), codes.InvalidArgument, "heartbeats, reports, pongs, follows, reports of routes, acknowledgements of secrets and a goodbye only")
}

func TestNodeReportsOnlyItsOwnReplicas(t *testing.T) {
	c := newCluster(t)
	c.work("owner", idle)
	made := c.create(c.as(core.RoleAdmin), workload("web"))
	foreign := c.running(made.GetMetadata().GetUid(), 1)[0].GetMetadata().GetUid()

	stranger := c.join("stranger")
	stream := stranger.connect(c.ctx)
	assignments(t, stream)
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: "own", Name: "web-own", Namespace: "default"},
			Spec:     &v1.ReplicaSpec{NodeUid: stranger.uid()}, Status: &v1.ReplicaStatus{Phase: spec.PhasePlaced},
		})
	})
	// Reports that come together are written together: when one of them is stored, the other one was refused.
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Report{Report: &v1.Report{Replicas: []*v1.ReplicaReport{
		{Uid: foreign, Status: &v1.ReplicaStatus{Phase: spec.PhaseFailed, Reason: "a lie"}},
		{Uid: "own", Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning}},
	}}}}))
	snap := c.until(func(snap *state.Snapshot) bool {
		return snap.Replica("own").GetStatus().GetPhase() == spec.PhaseRunning
	})
	if got := snap.Replica(foreign).GetStatus(); got.GetPhase() != spec.PhaseRunning || got.GetReason() != "" {
		t.Errorf("another node changed the replica to %v", got)
	}
}

func TestManyReportsAreWrittenTogether(t *testing.T) {
	c := newCluster(t)
	const count = 200 // more than one batch takes
	m := c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	c.inState(m.uid(), "ready")
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		for range count {
			uid := state.NewUID()
			b.Create(&v1.Replica{
				Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid, Namespace: "default"},
				Spec:     &v1.ReplicaSpec{NodeUid: m.uid(), Desired: spec.DesiredRunning},
				Status:   &v1.ReplicaStatus{Phase: spec.PhasePlaced},
			})
		}
	})
	var all []*v1.ReplicaReport
	for r := range c.Store.Snapshot().ReplicasOn(m.uid()) {
		all = append(all, &v1.ReplicaReport{Uid: r.GetMetadata().GetUid(), Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning}})
	}
	before := c.Store.Snapshot().Index()
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Report{Report: &v1.Report{Replicas: all}}}))
	after := c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOn(m.uid()) {
			if r.GetStatus().GetPhase() != spec.PhaseRunning {
				return false
			}
		}
		return true
	})
	if entries := after.Index() - before; entries > 4 {
		t.Errorf("%d reports took %d entries of the log", count, entries)
	}
}

func TestLaggingDispatchSendsAllAssignmentsAgain(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)

	// A second dispatch loop does what one that lags does: it subscribes again and sends all assignments.
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan error, 1)
	go func() { done <- c.dispatch(ctx) }()
	if again := assignments(t, stream); !again.GetFull() {
		t.Errorf("after a lag the session sent %v", again)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("dispatch ended without its context's error")
	}
}

// A long reason is shortened and does not end the session.
func TestNodeCannotFillTheState(t *testing.T) {
	c := newCluster(t)
	loud := c.join("loud")
	stream, err := loud.Session(c.ctx)
	must(t, err)
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{
		Status: &v1.NodeStatus{Reason: strings.Repeat("x", 256<<10)},
	}}}))
	_, err = stream.Recv()
	wantCode(t, err, codes.InvalidArgument, "more than the")

	session := c.join("talkative").connect(c.ctx)
	assignments(t, session)
	made, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	r := assignments(t, session).GetAssign()[0].GetReplica()
	status := obey(r)
	status.Reason = strings.Repeat("ä", 5000)
	must(t, report(session, r.GetMetadata().GetUid(), status))
	stored := c.running(made.GetMetadata().GetUid(), 1)[0].GetStatus().GetReason()
	if len(stored) > 1100 || !utf8.ValidString(stored) {
		t.Errorf("%d bytes of reason were stored", len(stored))
	}
}

// So much changes at once that the change feed drops the changes.
func TestSessionsCatchUpOnMissedChanges(t *testing.T) {
	c := newCluster(t)
	m, silent := c.join("n1"), c.join("n2")
	stream, ended := m.connect(c.ctx), silent.connect(c.ctx)
	assignments(t, stream)
	for _, node := range []*member{m, silent} {
		c.inState(node.uid(), "ready")
	}
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		cluster, node := proto.CloneOf(snap.Cluster()), proto.CloneOf(snap.Node(silent.uid()))
		cluster.Spec.Liveness = &v1.Liveness{Heartbeat: "2s", Silence: "1m"}
		node.Status.State = spec.NodeOffline
		b.Update(cluster, cluster.GetMetadata().GetVersion())
		b.Update(node, node.GetMetadata().GetVersion())
		b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: "s-9", Name: "s-9"}, Spec: &v1.ServerSpec{Address: "10.0.0.9:7700"}})
		for range 1 << 15 { // more changes than a subscriber may lag behind
			b.Put(&v1.Token{Metadata: &v1.Metadata{Uid: "many", Name: "many"}, Spec: &v1.TokenSpec{}})
		}
	})
	var pace string
	var servers []string
	for next := (&v1.Assignments{}); !next.GetFull(); {
		next = assignments(t, stream)
		pace, servers = cmp.Or(next.GetHeartbeat(), pace), append(servers, next.GetServers()...)
	}
	if pace != "2s" || !slices.Contains(servers, "10.0.0.9:7700") {
		t.Fatalf("the session sent the heartbeat interval %q and the servers %q", pace, servers)
	}
	wantCode(t, ending(ended), codes.Unavailable, "this node was silent for too long")
}
