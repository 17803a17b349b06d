package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/netd"
	"github.com/cloudless/cloudless/internal/resolver"
)

// fakeMesh records what the agent says.
type fakeMesh struct {
	events chan netd.Events
	own    atomic.Pointer[[]netip.Addr] // what the agent says of its addresses

	mu       sync.Mutex
	names    netd.Names
	clients  map[netip.Addr]resolver.Client
	services map[string]resolver.Service
	fetched  []string
	setup    mesh.Setup
	key      mesh.PrivateKey
	peers    map[string]mesh.Peer
	relays   []mesh.Relay
	told     chan struct{}
	status   mesh.Status
}

func (m *fakeMesh) Probe(_ context.Context, id string) (mesh.PeerStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.status.Peers, func(p mesh.PeerStatus) bool { return p.ID == id }); i >= 0 {
		return m.status.Peers[i], nil
	}
	return mesh.PeerStatus{}, errors.New("this node does not know that peer yet")
}

func (m *fakeMesh) Status(_ context.Context, all bool) (mesh.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.Peers = slices.DeleteFunc(slices.Clone(s.Peers), func(p mesh.PeerStatus) bool { return !all && p.State == mesh.StateIdle })
	return s, nil
}

func newFakeMesh() *fakeMesh {
	return &fakeMesh{events: make(chan netd.Events, 1), told: make(chan struct{}, 100)}
}

func (m *fakeMesh) Run(ctx context.Context, e netd.Events) {
	e.Failed("there is no /dev/net/tun")
	m.events <- e
	<-ctx.Done()
}

func (m *fakeMesh) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.told <- struct{}{}
}

func (m *fakeMesh) Configure(s mesh.Setup, k mesh.PrivateKey) {
	m.change(func() { m.setup, m.key = s, k })
}

func (m *fakeMesh) SetPeers(all []mesh.Peer) {
	m.change(func() {
		m.peers = map[string]mesh.Peer{}
		for _, p := range all {
			m.peers[p.ID] = p
		}
	})
}

func (m *fakeMesh) UpdatePeers(changed []mesh.Peer, removed []string) {
	m.change(func() {
		for _, p := range changed {
			m.peers[p.ID] = p
		}
		for _, id := range removed {
			delete(m.peers, id)
		}
	})
}

func (m *fakeMesh) SetRelays(list []mesh.Relay) { m.change(func() { m.relays = list }) }

func (m *fakeMesh) SetNames(n netd.Names) { m.change(func() { m.names = n }) }

func (m *fakeMesh) SetWill(netd.Will) {}

func (m *fakeMesh) SetClients(_ context.Context, all map[netip.Addr]resolver.Client, _ map[string][]resolver.NameRule) {
	m.change(func() { m.clients = all })
}

func (m *fakeMesh) Relearn() {}

func (m *fakeMesh) SetServices(all []resolver.Service) {
	m.change(func() { m.services = map[string]resolver.Service{} })
	m.UpdateServices(all, nil)
}

func (m *fakeMesh) UpdateServices(changed []resolver.Service, removed []resolver.Name) {
	m.change(func() {
		for _, n := range removed {
			delete(m.services, n.Name)
		}
		for _, s := range changed {
			m.services[s.Name.Name] = s
		}
	})
}

func (m *fakeMesh) Fetched(namespaces []string) {
	m.change(func() { m.fetched = append(m.fetched, namespaces...) })
}

// until waits until what the agent has said is as wanted.
func (m *fakeMesh) until(wanted func() bool) {
	for {
		m.mu.Lock()
		ok := wanted()
		m.mu.Unlock()
		if ok {
			return
		}
		<-m.told
	}
}

func sendNetwork(t *testing.T, s *session, n *v1.Network) {
	t.Helper()
	if err := s.stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Network{Network: n}}); err != nil {
		t.Fatal(err)
	}
}

func TestAgentJoinsTheMesh(t *testing.T) {
	n := newNode(t)
	n.mesh = newFakeMesh()
	n.start()
	session := n.join()
	session.send(t, &v1.Assignments{Full: true, Epoch: 1, Node: &v1.NodeSpec{SubnetV4: "10.64.3.0/24", SubnetV6: "fd00:0:0:3::/64"}})
	key, err := mesh.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	peer := &v1.NetworkPeer{
		Id: "node/2", Name: "two", Key: key.Public().String(), Prefixes: []string{"10.64.2.0/24"}, Candidates: []string{"192.0.2.2:7701"}, Relay: "s-1",
	}
	sendNetwork(t, session, &v1.Network{
		Full: true, Peers: []*v1.NetworkPeer{peer, {Id: "node/9", Name: "bad", Key: "no key"}},
		Relays: []*v1.NetworkRelay{{Id: "s-1", Address: "192.0.2.1:7700"}}, Ranges: []string{"10.64.0.0/10"},
	})
	n.mesh.until(func() bool { return len(n.mesh.peers) == 1 && len(n.mesh.relays) == 1 })
	own := []netip.Prefix{netip.MustParsePrefix("10.64.3.1/32"), netip.MustParsePrefix("fd00:0:0:3::1/128")}
	if !slices.Equal(n.mesh.setup.Addresses, own) {
		t.Errorf("the node's addresses are %v, want %v", n.mesh.setup.Addresses, own)
	}
	if told := *n.mesh.own.Load(); !slices.Equal(told, []netip.Addr{own[0].Addr(), own[1].Addr()}) {
		t.Errorf("the agent says that its addresses are %v, want %v", told, own)
	}
	if got := n.mesh.peers["node/2"]; got.Key != key.Public() || got.Relay != "s-1" || len(got.Candidates) != 1 || len(got.Prefixes) != 1 {
		t.Errorf("the peer is %+v", got)
	}
	sendNetwork(t, session, &v1.Network{Removed: []string{"node/2"}})
	n.mesh.until(func() bool { return len(n.mesh.peers) == 0 })
	first := n.mesh.key

	// What the mesh announces is reported, and the key lasts.
	events := <-n.mesh.events
	events.Announced(mesh.Announcement{Key: first.Public(), Candidates: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:7701")}, Relay: "s-1"})
	var failures []*v1.EventReport
	var reported *v1.NodeMesh
	for reported == nil || len(failures) == 0 {
		up := <-session.ups
		failures = append(failures, up.GetReport().GetEvents()...)
		if m := up.GetHeartbeat().GetStatus().GetMesh(); m != nil {
			reported = m
		}
	}
	if reported.GetKey() != first.Public().String() || reported.GetRelay() != "s-1" || !slices.Equal(reported.GetCandidates(), []string{"192.0.2.3:7701"}) {
		t.Errorf("reported %v", reported)
	}
	if got := failures[0]; got.GetReason() != "MeshFailed" || got.GetMessage() != "Replicas of this node do not reach those of other nodes: there is no /dev/net/tun." {
		t.Errorf("the failure was reported as %v", got)
	}
	events.Failed("")
	for len(failures) < 2 {
		failures = append(failures, (<-session.ups).GetReport().GetEvents()...)
	}
	if got := failures[1]; got.GetReason() != "MeshMended" {
		t.Errorf("the end of the failure was reported as %v", got)
	}
	again, err := n.agent.store.meshKey()
	if err != nil || again.Public() != first.Public() {
		t.Errorf("the key is now %v, %v", again.Public(), err)
	}
}

// The key is replaced with the certificate.
func TestMeshKeyIsReplaced(t *testing.T) {
	n, _ := withServices(t)
	n.mesh.until(func() bool { return !n.mesh.key.IsZero() })
	before := n.mesh.key.Public()
	n.agent.ReplaceMeshKey()
	if n.mesh.key.Public() == before {
		t.Error("the key has not changed")
	}
	if stored, err := n.agent.store.meshKey(); err != nil || stored.Public() != n.mesh.key.Public() {
		t.Errorf("the stored key is another one: %v", err)
	}
}
