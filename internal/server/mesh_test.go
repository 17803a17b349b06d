package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/mesh/relay"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// nextNetwork receives the next message about the mesh.
func nextNetwork(t *testing.T, stream sessionClient) *v1.Network {
	t.Helper()
	for {
		down, err := stream.Recv()
		must(t, err)
		if n := down.GetNetwork(); n != nil {
			return n
		}
	}
}

// announce says how a node can be reached, as its agent does.
func announce(t *testing.T, stream sessionClient, key string) {
	t.Helper()
	status := machineStatus()
	status.Mesh = &v1.NodeMesh{Key: key, Candidates: []string{"192.0.2.7:7701"}, Relay: "s-1"}
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{Status: status}}}))
}

func TestNodesLearnHowToReachEachOther(t *testing.T) {
	c := newCluster(t)
	one, two := c.join("one"), c.join("two")
	first := one.connect(c.ctx)
	if full := nextNetwork(t, first); !full.GetFull() || len(full.GetPeers()) != 0 || len(full.GetRanges()) != 2 {
		t.Errorf("the first message is %v", full)
	}
	second := two.connect(c.ctx)
	nextNetwork(t, second)
	announce(t, second, "key of two")
	news := nextNetwork(t, first)
	if len(news.GetPeers()) != 1 {
		t.Fatalf("the news are %v", news)
	}
	peer := news.GetPeers()[0]
	if peer.GetId() != "node/"+two.uid() || peer.GetName() != "two" || peer.GetKey() != "key of two" || peer.GetRelay() != "s-1" ||
		len(peer.GetPrefixes()) != 2 || len(peer.GetCandidates()) != 1 {
		t.Errorf("the peer is %v", peer)
	}
	// A session that begins later has everything at once.
	if full := nextNetwork(t, one.connect(c.ctx)); !full.GetFull() || len(full.GetPeers()) != 1 {
		t.Errorf("the first message of a later session is %v", full)
	}
}

func TestNodesLearnThatANodeWasRemoved(t *testing.T) {
	c := newCluster(t)
	one, two := c.join("one"), c.join("two")
	first, second := one.connect(c.ctx), two.connect(c.ctx)
	nextNetwork(t, first)
	announce(t, second, "key of two")
	nextNetwork(t, first)
	_, err := c.as("admin").DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "two", Force: true})
	must(t, err)
	if news := nextNetwork(t, first); len(news.GetRemoved()) != 1 || news.GetRemoved()[0] != "node/"+two.uid() {
		t.Errorf("the news are %v", news)
	}
}

// Peers know a node by its key. The second node with a key is refused, whether the first is connected or offline, and the
// first keeps the key.
func TestKeyInTheMeshBelongsToOneNode(t *testing.T) {
	c := newCluster(t)
	one, two := c.join("one"), c.join("two")
	ctx, disconnect := context.WithCancel(c.ctx)
	first := one.connect(ctx)
	announce(t, first, "the key")
	c.until(func(snap *state.Snapshot) bool { return snap.Node(one.uid()).GetStatus().GetMesh() != nil })
	refuse := func() {
		t.Helper()
		second := two.connect(c.ctx)
		announce(t, second, "the key")
		wantCode(t, ending(second), codes.FailedPrecondition, "node two has the same key in the mesh as node one", "delete agent/mesh.key")
	}
	refuse()
	disconnect()
	wantCode(t, ending(first), codes.Canceled, "")
	refuse()
	snap := c.Store.Snapshot()
	if snap.Node(two.uid()).GetStatus().GetMesh() != nil || snap.Node(one.uid()).GetStatus().GetMesh().GetKey() != "the key" {
		t.Errorf("node one has %v, and node two has %v", snap.Node(one.uid()).GetStatus().GetMesh(), snap.Node(two.uid()).GetStatus().GetMesh())
	}
	cluster, err := c.as(core.RoleAdmin).GetCluster(c.ctx, &v1.GetClusterRequest{})
	must(t, err)
	if problems := strings.Join(cluster.GetStatus().GetProblems(), "\n"); !strings.Contains(problems, "node two has the same key in the mesh as node one") {
		t.Errorf("the problems are %q", problems)
	}

	// A new key is accepted, and the old key of a node is free again.
	renewed := one.connect(c.ctx)
	announce(t, renewed, "another key")
	c.until(func(snap *state.Snapshot) bool {
		return snap.Node(one.uid()).GetStatus().GetMesh().GetKey() == "another key"
	})
	announce(t, two.connect(c.ctx), "the key")
	c.until(func(snap *state.Snapshot) bool {
		return snap.Node(two.uid()).GetStatus().GetMesh().GetKey() == "the key"
	})
}

func TestReplicaHasOnlyAddressesOfItsNode(t *testing.T) {
	c := newCluster(t)
	one := c.join("one")
	stream := one.connect(c.ctx)
	assignments(t, stream)
	_, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	replica := assignments(t, stream).GetAssign()[0].GetReplica()
	uid := replica.GetMetadata().GetUid()
	subnet, err := netip.ParsePrefix(c.Store.Snapshot().Node(one.uid()).GetSpec().GetSubnetV4())
	must(t, err)
	own := subnet.Addr().Next().Next().String()
	status := obey(replica)
	status.Addresses = []string{"192.0.2.1", own, "fd00:ffff::1"}
	must(t, report(stream, uid, status))
	snap := c.until(func(snap *state.Snapshot) bool { return snap.Replica(uid).GetStatus().GetPhase() == spec.PhaseRunning })
	if got := snap.Replica(uid).GetStatus().GetAddresses(); !slices.Equal(got, []string{own}) {
		t.Errorf("the replica has the addresses %v, want %s", got, own)
	}
}

func servicesIn(n *v1.Network) (names []string) {
	for _, s := range n.GetServices() {
		names = append(names, s.GetName())
	}
	slices.Sort(names)
	return names
}

// nextServices receives the next message about services.
func nextServices(t *testing.T, stream sessionClient) *v1.Network {
	t.Helper()
	for {
		if n := nextNetwork(t, stream); len(n.GetServices())+len(n.GetRemovedServices())+len(n.GetFollowed()) > 0 {
			return n
		}
	}
}

// untilServices receives messages until one is as wanted. News of earlier changes may come before, after the full set has
// them already.
func untilServices(t *testing.T, stream sessionClient, wanted func(*v1.Network) bool) *v1.Network {
	t.Helper()
	for {
		if n := nextServices(t, stream); wanted(n) {
			return n
		}
	}
}

func removes(n *v1.Network) bool { return len(n.GetRemovedServices()) > 0 }

func TestNodesLearnTheServicesTheyNeed(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	make := func(name string, exported bool) *v1.Service {
		s, err := op.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered(name, func(s *v1.ServiceSpec) {
			s.Exported, s.External = exported, []*v1.ExternalEndpoint{{Addresses: []string{"192.0.2.9"}}}
		})})
		must(t, err)
		return s
	}
	private := make("private", false)
	make("public", true)
	stream := c.join("one").connect(c.ctx)
	full := untilServices(t, stream, (*v1.Network).GetFull)
	if got := servicesIn(full); !slices.Equal(got, []string{"public"}) {
		t.Fatalf("a node without replicas knows services %v", got)
	}
	one := full.GetServices()[0]
	if len(one.GetAddresses()) != 2 || len(one.GetPorts()) != 1 || len(one.GetEndpoints()) != 1 || one.GetEndpoints()[0].GetState() != spec.EndpointReady || !one.GetNearestFirst() {
		t.Errorf("the service is %v", one)
	}
	if len(full.GetServiceRanges()) != 2 || full.Zone == nil {
		t.Errorf("the first message is %v", full)
	}

	// It asks for a namespace, and from now on hears of it.
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Follow{Follow: &v1.Follow{Namespaces: []string{"default", "nowhere"}}}}))
	news := untilServices(t, stream, func(n *v1.Network) bool { return len(n.GetFollowed()) > 0 })
	if !slices.Equal(servicesIn(news), []string{"private"}) || !slices.Equal(news.GetFollowed(), []string{"default", "nowhere"}) {
		t.Errorf("the answer is %v", news)
	}
	_, err := op.services().DeleteService(c.ctx, &v1.DeleteServiceRequest{Name: "private"})
	must(t, err)
	if news := untilServices(t, stream, removes); !slices.Equal(news.GetRemovedServices(), []string{private.GetMetadata().GetUid()}) {
		t.Errorf("the news of the deleted service are %v", news)
	}
}

func TestServiceThatIsNoLongerExportedIsRemoved(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	export := func(yes bool) *v1.Service {
		answer, err := op.services().ApplyService(c.ctx, &v1.ApplyServiceRequest{Service: offered("api", func(s *v1.ServiceSpec) { s.Exported = yes })})
		must(t, err)
		return answer.GetService()
	}
	export(true)
	stream := c.join("one").connect(c.ctx)
	nextServices(t, stream)
	uid := export(false).GetMetadata().GetUid()
	if news := untilServices(t, stream, removes); !slices.Equal(news.GetRemovedServices(), []string{uid}) {
		t.Errorf("the news are %v", news)
	}
}

// Every node answers on a port that a workload publishes, so all of them know its service.
func TestNodesLearnPublishedServices(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	stream := c.join("one").connect(c.ctx)
	web := workload("web", replicasOf(0), func(w *v1.Workload) {
		w.Spec.Network = "node"
		w.Spec.Ports = []*v1.Port{{Name: "web", Port: 80, Publish: 8080}, {Name: "host", Port: 81, Publish: 8081, PublishMode: spec.PublishHost}}
	})
	made := c.create(op, web)
	var one *v1.NetworkService
	for one == nil || one.GetName() != "web" {
		if found := nextServices(t, stream).GetServices(); len(found) > 0 {
			one = found[0]
		}
	}
	if one.GetWorkloadUid() != made.GetMetadata().GetUid() || len(one.GetPublished()) != 1 || one.GetPublished()[0].GetPublish() != 8080 {
		t.Errorf("the service is %v", one)
	}
	_, err := op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	for news := nextServices(t, stream); !slices.Contains(news.GetRemovedServices(), one.GetUid()); news = nextServices(t, stream) {
		continue
	}
}

// received passes on packets that a relay sends.
type received chan string

func (r received) Packet(_ relay.Address, packet []byte) { r <- string(packet) }
func (received) Absent(relay.Address)                    {}
func (received) Flush()                                  {}

// dialRelay connects to the relay as the network process of a member does.
func (c *cluster) dialRelay(member *identity.Credentials) (net.Conn, error) {
	config := identity.ClientTLS(c.ca.Trust(), member.Certificate)
	config.NextProtos = []string{relay.Protocol}
	return (&tls.Dialer{Config: config}).DialContext(c.ctx, "tcp", c.Address())
}

func TestServerRelaysPacketsBetweenNodes(t *testing.T) {
	c := newCluster(t)
	one, two := c.join("one"), c.join("two")
	connect := func(m *member) (*relay.Client, received) {
		conn, err := c.dialRelay(m.creds)
		must(t, err)
		got := make(received, 1)
		client := relay.NewClient(conn, got)
		ended := make(chan error, 1)
		go func() { ended <- client.Run(c.ctx) }()
		t.Cleanup(func() {
			_ = conn.Close()
			<-ended
		})
		return client, got
	}
	sender, _ := connect(one)
	_, got := connect(two)
	for c.packets.Stats().Connected < 2 {
		runtime.Gosched() // until the server knows both
	}
	sender.Send(relay.AddressOf("node/"+two.uid()), [][]byte{[]byte("sealed")}, 0)
	if packet := <-got; packet != "sealed" {
		t.Errorf("received %q", packet)
	}
}

func TestRelayIsForMembersOnly(t *testing.T) {
	c := newCluster(t)
	one := c.join("one")
	conn, err := c.dialRelay(one.creds)
	must(t, err)
	_, err = c.as("admin").DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "one", Force: true})
	must(t, err)
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a removed node stays connected")
	}
	config := identity.ClientTLS(c.ca.Trust(), nil)
	config.NextProtos = []string{relay.Protocol}
	stranger, err := (&tls.Dialer{Config: config}).DialContext(c.ctx, "tcp", c.Address())
	if err == nil { // TLS 1.3 tells a client without a certificate only when it reads
		_, err = stranger.Read(make([]byte, 1))
		_ = stranger.Close()
	}
	if err == nil {
		t.Error("a caller without a certificate may use the relay")
	}
}
