package server

import (
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/auth"
)

// inState waits until a node is in a state.
func (c *cluster) inState(node, want string) {
	c.t.Helper()
	c.until(func(snap *state.Snapshot) bool { return snap.Node(node).GetStatus().GetState() == want })
}

// configure changes the cluster's configuration past the API.
func (c *cluster) configure(change func(*v1.ClusterSpec)) {
	c.t.Helper()
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		cluster := proto.CloneOf(snap.Cluster())
		change(cluster.GetSpec())
		b.Update(cluster, cluster.GetMetadata().GetVersion())
	})
}

func TestCordonedNodeKeepsItsReplicasAndTakesNoNewOnes(t *testing.T) {
	c := newCluster(t)
	operator := c.as(core.RoleOperator)
	w := c.work("n1", idle)
	made := c.create(operator, workload("web"))

	cordoned, err := operator.CordonNode(c.ctx, &v1.CordonNodeRequest{Name: "n1", Reason: "new disk"})
	must(t, err)
	if s := cordoned.GetStatus(); s.GetState() != "cordoned" || !strings.HasPrefix(s.GetReason(), "new disk (by user/") || s.GetCapacity().GetCpu() != "4" {
		t.Errorf("the cordoned node is %v", s)
	}
	_, err = operator.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(2)})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOn("") {
			return strings.Contains(r.GetStatus().GetReason(), "n1: is cordoned: new disk")
		}
		return false
	})
	c.running(made.GetMetadata().GetUid(), 1)

	// Again is no change; another reason is.
	again, err := operator.CordonNode(c.ctx, &v1.CordonNodeRequest{Name: "n1"})
	must(t, err)
	if again.GetMetadata().GetVersion() != cordoned.GetMetadata().GetVersion() {
		t.Error("cordoning what is cordoned has changed it")
	}
	_, err = operator.CordonNode(c.ctx, &v1.CordonNodeRequest{Name: "n1", Reason: "new fan", Version: 1})
	wantCode(t, err, codes.Aborted, "n1")
	other, err := operator.CordonNode(c.ctx, &v1.CordonNodeRequest{Name: "n1", Reason: "new fan"})
	must(t, err)
	if !strings.HasPrefix(other.GetStatus().GetReason(), "new fan") {
		t.Errorf("the reason is %q", other.GetStatus().GetReason())
	}

	// The next session finds it cordoned.
	w.leave()
	assignments(t, w.connect(c.ctx))
	c.inState(w.uid(), "cordoned")

	ready, err := operator.UncordonNode(c.ctx, &v1.UncordonNodeRequest{Name: "n1"})
	must(t, err)
	if ready.GetStatus().GetState() != "ready" || ready.GetSpec().GetAvailabilityBy() != "" || ready.GetSpec().GetSubnetV4() == "" {
		t.Errorf("the node is %v", ready)
	}
	c.until(func(snap *state.Snapshot) bool {
		on := 0
		for range snap.ReplicasOn(w.uid()) {
			on++
		}
		return on == 2
	})

	_, err = c.as(core.RoleViewer).CordonNode(c.ctx, &v1.CordonNodeRequest{Name: "n1"})
	wantCode(t, err, codes.PermissionDenied, "viewer")
	_, err = operator.CordonNode(c.ctx, &v1.CordonNodeRequest{Name: "n2"})
	wantCode(t, err, codes.NotFound, "node n2 does not exist")
	events, err := operator.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "n1"})
	must(t, err)
	count := map[string]int{}
	for _, e := range events.GetItems() {
		count[e.GetSpec().GetReason()]++
	}
	if count["Cordoned"] != 2 || count["Uncordoned"] != 1 {
		t.Errorf("the events are %v", count)
	}
}

// The interval can also be set for a class of nodes. A new interval is sent at once, without other news.
func TestHeartbeatIntervalFollowsTheConfiguration(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	if first := assignments(t, stream); first.GetHeartbeat() != "1s" {
		t.Errorf("the session begins with %v", first)
	}
	c.configure(func(s *v1.ClusterSpec) { s.Liveness = &v1.Liveness{Heartbeat: "2s", Silence: "1m"} })
	if next := assignments(t, stream); next.GetHeartbeat() != "2s" || next.GetFull() || len(next.GetAssign()) != 0 {
		t.Errorf("the new interval was sent as %v", next)
	}
	c.configure(func(s *v1.ClusterSpec) {
		s.NodeClasses = []*v1.NodeClass{{Name: "laptops", Labels: "kind=laptop", Liveness: &v1.Liveness{Heartbeat: "5s"}}}
	})
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		n := proto.CloneOf(snap.Node(m.uid()))
		n.Metadata.Labels = map[string]string{"kind": "laptop"}
		b.Update(n, n.GetMetadata().GetVersion())
	})
	if next := assignments(t, stream); next.GetHeartbeat() != "5s" {
		t.Errorf("the interval of its class was sent as %v", next)
	}
}

// The memory that containers must leave to the system is the node's own choice, unless the configuration has another.
func TestReservedMemoryFollowsTheConfiguration(t *testing.T) {
	c := newCluster(t)
	stream, err := c.join("n1").Session(c.ctx)
	must(t, err)
	status := machineStatus()
	status.Reserved = &v1.NodeResources{Memory: "410Mi"}
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{Status: status}}}))
	assignments(t, stream)
	for _, want := range []string{"2Gi", "410Mi"} {
		c.configure(func(s *v1.ClusterSpec) {
			if s.Reserved = nil; want == "2Gi" {
				s.Reserved = &v1.ResourceAmounts{Memory: want}
			}
		})
		if next := assignments(t, stream); next.GetReservedMemory() != want || next.GetHeartbeat() != "" {
			t.Errorf("to reserve %s was sent as %v", want, next)
		}
	}
}

// An agent detects a hung server by missing keepalives. It gets keepalives once there is another server to connect to.
func TestKeepalivesFollowTheConfiguration(t *testing.T) {
	c := newCluster(t)
	server := func(name string) {
		t.Helper()
		c.change(func(_ *state.Snapshot, b *state.Batch) {
			b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: name, Name: name}, Spec: &v1.ServerSpec{Address: name + ":7700"}})
		})
	}
	server("one")
	stream := c.join("n1").connect(c.ctx)
	if first := assignments(t, stream); first.GetAlive() != "" || first.GetHeartbeat() != "1s" {
		t.Errorf("the session begins with %v", first)
	}
	server("two")
	if next := assignments(t, stream); next.GetAlive() != "3s" || next.GetHeartbeat() != "" {
		t.Errorf("after the second server joined the session sent %v", next)
	}
	c.configure(func(s *v1.ClusterSpec) { s.Liveness = &v1.Liveness{Silence: "1m", Reconnect: "1s"} })
	if next := assignments(t, stream); next.GetAlive() != "300ms" {
		t.Errorf("the shorter interval was sent as %v", next)
	}
	for keepalives := 0; keepalives < 3; {
		down, err := stream.Recv()
		must(t, err)
		switch {
		case down.GetAlive() != nil:
			keepalives++
		case down.GetNetwork() == nil && down.GetIngress() == nil: // news of the mesh come when they come
			t.Fatalf("instead of a keepalive came %v", down)
		}
	}
}

// The server sends a ping after a heartbeat and measures how quickly the agent answers.
func TestResponseTimeIsMeasured(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	c.inState(m.uid(), "ready")
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{}}}))
	down := receive(t, stream)
	if down.GetPing().GetSequence() == 0 {
		t.Fatalf("after a heartbeat came %v", down)
	}
	answer := func(sequence uint64) {
		must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Pong{Pong: &v1.Pong{Sequence: sequence}}}))
	}
	answer(down.GetPing().GetSequence() + 7) // a ping that was never sent
	answer(down.GetPing().GetSequence())
	viewer := c.as(core.RoleViewer)
	for {
		n, err := viewer.GetNode(c.ctx, &v1.GetNodeRequest{Name: "n1"})
		must(t, err)
		r := n.GetStatus().GetReliability()
		if strings.HasPrefix(r.GetResponseTime().GetBasis(), "answers in") {
			if r.GetRecord().GetResponseSeconds() <= 0 || r.GetScore() == 0 {
				t.Errorf("the reliability is %v", r)
			}
			return
		}
	}
}

// A node that counts as offline has to begin a new session and reports its replicas in it. Until then their phase is
// unknown.
func TestSilentNodeLosesItsSessionAndItsReplicasAreUnknown(t *testing.T) {
	c := newCluster(t)
	viewer := c.as(core.RoleViewer)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	made, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	replica := assignments(t, stream).GetAssign()[0].GetReplica()
	must(t, report(stream, replica.GetMetadata().GetUid(), obey(replica)))
	c.running(made.GetMetadata().GetUid(), 1)
	watch, err := viewer.WatchReplicas(c.ctx, &v1.WatchReplicasRequest{Workload: "web"})
	must(t, err)
	phases := func(want string) *v1.Replica {
		t.Helper()
		for {
			change, err := watch.Recv()
			must(t, err)
			if change.GetReplica().GetStatus().GetPhase() == want {
				return change.GetReplica()
			}
		}
	}
	phases(spec.PhaseRunning)

	c.configure(func(s *v1.ClusterSpec) { s.Liveness = &v1.Liveness{Heartbeat: "50ms", Silence: "100ms"} })
	for {
		if _, err := stream.Recv(); err != nil {
			wantCode(t, err, codes.Unavailable, "this node was silent for too long")
			break
		}
	}
	if lost := phases(spec.PhaseUnknown); lost.GetStatus().GetReason() != "node n1 is offline; it was running there" {
		t.Errorf("the replica is shown as %v", lost.GetStatus())
	}
	w, err := viewer.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	must(t, err)
	if s := w.GetStatus(); s.GetRunning() != 0 || s.GetPhase() != "pending" || s.GetReason() != "node n1 is offline, and no other node can take its replicas" {
		t.Errorf("the workload is %v", s)
	}

	c.configure(func(s *v1.ClusterSpec) { s.Liveness = &v1.Liveness{Silence: "1m"} })
	back := assignments(t, m.connect(c.ctx))
	if len(back.GetAssign()) != 1 || back.GetAssign()[0].GetReplica().GetMetadata().GetUid() != replica.GetMetadata().GetUid() {
		t.Errorf("the new session sent %v", back)
	}
	phases(spec.PhaseRunning)
}

func TestNodeIsOfflineOnceItsAgentSaysGoodbye(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	c.inState(m.uid(), "ready")
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Goodbye{Goodbye: &v1.Goodbye{Reason: "stopped by cloudless down"}}}))
	must(t, stream.CloseSend())
	c.inState(m.uid(), "offline")
	if got := c.Store.Snapshot().Node(m.uid()).GetStatus(); got.GetReason() != "stopped by cloudless down" || !got.GetSaidGoodbye() {
		t.Errorf("the status is %v", got)
	}
	again := m.connect(c.ctx)
	assignments(t, again)
	c.inState(m.uid(), "ready")
	if c.Store.Snapshot().Node(m.uid()).GetStatus().GetSaidGoodbye() {
		t.Error("the node is back, and has still said goodbye")
	}
	// It is lost without notice now.
	c.configure(func(s *v1.ClusterSpec) { s.Liveness = &v1.Liveness{Heartbeat: "50ms", Silence: "100ms"} })
	c.inState(m.uid(), "offline")
	if c.Store.Snapshot().Node(m.uid()).GetStatus().GetSaidGoodbye() {
		t.Error("a silent node has said goodbye")
	}
}

// machinesOf passes on the machines that sessions come from.
type machinesOf struct {
	Nodes
	from chan netip.Addr
}

func (m machinesOf) Connected(uid string, machine netip.Addr, status *v1.NodeStatus) {
	m.from <- machine
	m.Nodes.Connected(uid, machine, status)
}

// Also a session that another server relays comes from the agent's machine, and the agent cannot forge the address.
func TestSessionComesFromTheAgentsMachine(t *testing.T) {
	from := make(chan netip.Addr, 2)
	leader, follower := pair(t, func(o *Options) { o.Nodes = machinesOf{o.Nodes, from} })
	secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: 2})
	for _, at := range []*cluster{leader, follower} {
		key, csr, err := identity.NewKeyAndCSR()
		must(t, err)
		answer, err := at.dial(nil, "").Enroll(at.ctx, &v1.EnrollRequest{Token: secret, Csr: csr, Name: "n-" + at.UID})
		must(t, err)
		creds, err := identity.NewCredentials(key, answer.GetCertificates())
		must(t, err)
		forged := metadata.AppendToOutgoingContext(at.ctx, auth.MetadataMachine, "198.51.100.9")
		stream, err := at.dial(creds, "").Session(forged)
		must(t, err)
		must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{Status: machineStatus()}}}))
		assignments(t, stream)
		if machine := <-from; machine != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("the session at server %s comes from %v", at.UID, machine)
		}
	}
}
