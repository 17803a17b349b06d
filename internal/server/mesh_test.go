package server

import (
	"crypto/tls"
	"net"
	"runtime"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/mesh/relay"
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

// received passes on packets that a relay sends.
type received chan string

func (r received) Packet(_ relay.Address, packet []byte) { r <- string(packet) }
func (received) Absent(relay.Address)                    {}

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
	sender.Send(relay.AddressOf("node/"+two.uid()), []byte("sealed"))
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
