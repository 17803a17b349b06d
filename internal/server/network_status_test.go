package server

import (
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// meshed is an agent that knows how it reaches its peers.
func meshed(peer string) serveOpen {
	return func(open *v1.Open, stream attachClient) {
		found := &v1.NodeNetwork{Direct: 1, Idle: 1, Peers: []*v1.PeerPath{{Peer: peer, State: "direct"}}}
		if open.GetNetworkStatus().GetAll() {
			found.Peers = append(found.Peers, &v1.PeerPath{Peer: "sleeper", State: "idle"})
		}
		_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_NetworkStatus{NetworkStatus: found}})
		awaitEnd(stream)
	}
}

func TestNetworkStatusAsksTheNodes(t *testing.T) {
	c := newCluster(t)
	c.work("n1", meshed("n2"))
	c.work("n2", meshed("n1"))
	c.work("n3", func(_ *v1.Open, stream attachClient) {
		_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Error{Error: "there is no /dev/net/tun"}})
		awaitEnd(stream)
	})
	away := c.work("n4", idle)
	away.leave()
	c.disconnected(away.uid())
	viewer := v1.NewConnectivityServiceClient(c.as(core.RoleViewer).conn)
	got, err := viewer.GetNetworkStatus(c.ctx, &v1.GetNetworkStatusRequest{Nodes: []string{"n1", "n3", "n4"}, All: true})
	must(t, err)
	if len(got.GetNodes()) != 3 {
		t.Fatalf("the nodes are %v", got.GetNodes())
	}
	one, broken, gone := got.GetNodes()[0], got.GetNodes()[1], got.GetNodes()[2]
	if one.GetNode() != "n1" || len(one.GetPeers()) != 2 || one.GetPeers()[0].GetPeer() != "n2" || one.GetError() != "" {
		t.Errorf("n1 says %v", one)
	}
	if broken.GetNode() != "n3" || broken.GetError() != "there is no /dev/net/tun" {
		t.Errorf("n3 says %v", broken)
	}
	if gone.GetNode() != "n4" || gone.GetError() != "node n4 is not connected" {
		t.Errorf("n4 says %v", gone)
	}
	// Without names, all ready nodes are asked.
	got, err = viewer.GetNetworkStatus(c.ctx, &v1.GetNetworkStatusRequest{})
	must(t, err)
	if names := nodeNames(got); len(names) < 3 || names[0] != "n1" || names[1] != "n2" || len(got.GetNodes()[0].GetPeers()) != 1 {
		t.Errorf("asked %v, the first says %v", names, got.GetNodes()[0])
	}
	_, err = viewer.GetNetworkStatus(c.ctx, &v1.GetNetworkStatusRequest{Nodes: []string{"n-1"}})
	wantCode(t, err, codes.NotFound, "node n-1 does not exist", "did you mean n1?")
}

func nodeNames(s *v1.NetworkStatus) (names []string) {
	for _, n := range s.GetNodes() {
		names = append(names, n.GetNode())
	}
	return names
}
