package agent

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/telemetry"
)

func (s *session) networkStatus(t *testing.T, n *node, all bool) *v1.AttachUp {
	t.Helper()
	s.open(t, &v1.Open{Id: "network-1", What: &v1.Open_NetworkStatus{NetworkStatus: &v1.OpenNetworkStatus{All: all}}})
	at := <-n.server.attached
	defer close(at.end)
	up, err := at.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func TestNetworkStatusHasPathsAndDrops(t *testing.T) {
	m := newFakeMesh()
	m.status = mesh.Status{
		Port: 7701,
		Peers: []mesh.PeerStatus{
			{
				Name: "two", State: mesh.StateDirect, Address: netip.MustParseAddrPort("192.0.2.2:7701"), RoundTrip: 1234567 * time.Nanosecond,
				Handshake: time.Unix(1000, 0), Sent: 10, Received: 20, SentRate: 1, ReceivedRate: 2, MTU: 1420,
			},
			{Name: "three", State: mesh.StateIdle},
		},
		Relays: []mesh.RelayStatus{{ID: "s", Address: "192.0.2.1:7700", Home: true, Connected: true, RoundTrip: 20123 * time.Microsecond}},
		States: map[mesh.State]int{mesh.StateDirect: 1, mesh.StateIdle: 1},
		Totals: mesh.Totals{Sent: 100, Received: 200, Handshakes: 3},
	}
	n := newNode(t)
	n.mesh = m
	n.network.drops = []nodenet.Drop{{Group: "w", Owner: "web in namespace default", Rule: "namespace", Reason: "why", Packets: 4, Bytes: 240}}
	n.start()
	s := n.join()
	s.send(t, full())
	got := s.networkStatus(t, n, false).GetNetworkStatus()
	if len(got.GetPeers()) != 1 || got.GetDirect() != 1 || got.GetIdle() != 1 || got.GetPort() != 7701 || got.GetHandshakes() != 3 || got.GetSentBytes() != 100 {
		t.Errorf("the status is %v", got)
	}
	p := got.GetPeers()[0]
	if p.GetPeer() != "two" || p.GetState() != "direct" || p.GetAddress() != "192.0.2.2:7701" || p.GetLatency() != "1.23ms" ||
		p.GetLastHandshake().AsTime().Unix() != 1000 || p.GetReceivedBytesPerSecond() != 2 || p.GetMtu() != 1420 {
		t.Errorf("the path is %v", p)
	}
	if r := got.GetRelays(); len(r) != 1 || !r[0].GetHome() || r[0].GetLatency() != "20.1ms" {
		t.Errorf("the relays are %v", r)
	}
	if d := got.GetDrops(); len(d) != 1 || d[0].GetWorkloadUid() != "w" || d[0].GetPackets() != 4 {
		t.Errorf("the dropped packets are %v", d)
	}
	if all := s.networkStatus(t, n, true).GetNetworkStatus().GetPeers(); len(all) != 2 || all[1].GetLastHandshake() != nil || all[1].GetAddress() != "" {
		t.Errorf("all peers are %v", all)
	}
}

func TestNetworkStatusWithoutAMeshIsRefused(t *testing.T) {
	n, s := running(t)
	if why := s.networkStatus(t, n, false).GetError(); !strings.Contains(why, "not in the mesh") {
		t.Errorf("refused with %q", why)
	}
}

func TestNetworkProbeConnectsFromInside(t *testing.T) {
	n, s := running(t)
	port, _ := program(t)
	s.open(t, &v1.Open{Id: "probe-1", What: &v1.Open_NetworkProbe{NetworkProbe: &v1.OpenNetworkProbe{
		ReplicaUid: "a", Connect: []string{fmt.Sprintf("127.0.0.1:%d", port), "127.0.0.1:1"}, Listens: port, Peer: "node/two",
	}}})
	at := <-n.server.attached
	defer close(at.end)
	up, err := at.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got := up.GetNetworkProbe()
	if c := got.GetConnects(); len(c) != 2 || c[0].GetError() != "" || c[0].GetLatency() == "" || c[1].GetError() != "connection refused" {
		t.Errorf("connected: %v", c)
	}
	if got.GetListens() != "loopback" { // the task of this test has no other address
		t.Errorf("it listens on %q", got.GetListens())
	}
	if !strings.Contains(got.GetPathError(), "not in the mesh") {
		t.Errorf("the path is %v, %q", got.GetPath(), got.GetPathError())
	}
}

// A UDP program need not answer; only a refusal shows that nothing listens.
func TestNetworkProbeSendsDatagrams(t *testing.T) {
	n, s := running(t)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	echo, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		if _, peer, err := echo.ReadFrom(nil); err == nil {
			_, _ = echo.WriteTo([]byte("hi"), peer)
		}
	}()
	s.open(t, &v1.Open{Id: "probe-1", What: &v1.Open_NetworkProbe{NetworkProbe: &v1.OpenNetworkProbe{
		ReplicaUid: "a", Protocol: "udp", Connect: []string{silent.LocalAddr().String(), echo.LocalAddr().String(), "127.0.0.1:1"},
		Listens: uint32(silent.LocalAddr().(*net.UDPAddr).Port),
	}}})
	at := <-n.server.attached
	defer close(at.end)
	up, err := at.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	c := up.GetNetworkProbe().GetConnects()
	if len(c) != 3 || c[0].GetError()+c[0].GetLatency() != "" || c[1].GetLatency() == "" || c[2].GetError() != "connection refused" {
		t.Errorf("tried: %v", c)
	}
	if where := up.GetNetworkProbe().GetListens(); where != "loopback" { // the task of this test has no other address
		t.Errorf("it listens on %q", where)
	}
}

func TestDropsSinceACount(t *testing.T) {
	before := []nodenet.Drop{{Rule: "host", Packets: 2, Bytes: 20}, {Rule: "namespace", Packets: 1, Bytes: 10}, {Group: "w", Rule: "no-path", Packets: 1}}
	after := []nodenet.Drop{{Rule: "host", Packets: 5, Bytes: 50}, {Rule: "namespace", Packets: 1, Bytes: 10}, {Rule: "no-path", Packets: 1, Bytes: 60}}
	got := dropsSince(before, after)
	if len(got) != 2 || got[0].Packets != 3 || got[0].Bytes != 30 || got[1].Rule != "no-path" {
		t.Errorf("dropped %+v", got)
	}
}

func TestNetworkMetrics(t *testing.T) {
	n := newNode(t)
	n.mesh = newFakeMesh()
	n.mesh.status = mesh.Status{
		States: map[mesh.State]int{mesh.StateDirect: 2, mesh.StateDown: 1}, Totals: mesh.Totals{Sent: 10, Received: 20, Handshakes: 3},
	}
	n.network.drops = []nodenet.Drop{{Group: "w", Rule: "host", Packets: 1}, {Group: "v", Rule: "host", Packets: 2}}
	n.start()
	registry := telemetry.NewRegistry()
	defer n.agent.Observe(registry)()
	err := testutil.GatherAndCompare(registry.Gatherer(), strings.NewReader(`
# HELP cloudless_mesh_handshakes_total Keys that were agreed on with other nodes.
# TYPE cloudless_mesh_handshakes_total counter
cloudless_mesh_handshakes_total 3
# HELP cloudless_mesh_peers Other nodes by how this one reaches them (direct, relayed, down, idle).
# TYPE cloudless_mesh_peers gauge
cloudless_mesh_peers{state="direct"} 2
cloudless_mesh_peers{state="down"} 1
cloudless_mesh_peers{state="idle"} 0
cloudless_mesh_peers{state="relayed"} 0
# HELP cloudless_mesh_sent_bytes_total Encrypted bytes sent to other nodes.
# TYPE cloudless_mesh_sent_bytes_total counter
cloudless_mesh_sent_bytes_total 10
# HELP cloudless_network_dropped_packets_total Packets that the rules of the node have dropped, by rule.
# TYPE cloudless_network_dropped_packets_total counter
cloudless_network_dropped_packets_total{rule="host"} 3
`), "cloudless_mesh_peers", "cloudless_mesh_handshakes_total", "cloudless_mesh_sent_bytes_total", "cloudless_network_dropped_packets_total")
	if err != nil {
		t.Error(err)
	}
}
