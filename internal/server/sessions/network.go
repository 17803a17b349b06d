package sessions

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// networkPause collects changes, so that many nodes that join at once cost few messages.
	networkPause = 20 * time.Millisecond
	// maxNetworkNews is how many messages may wait for a slow agent. It gets the full set instead of more.
	maxNetworkNews = 32
)

// network collects the changes that concern the networks of nodes.
type network struct {
	wake chan struct{}

	mu       sync.Mutex
	nodes    map[string]bool            // uids of nodes that have changed
	relays   bool                       // servers or ranges have changed
	replicas map[string]string          // namespaces of replicas that have changed, by uid
	placed   map[string]map[string]bool // namespaces of replicas that are new on a node, by its uid
	zones    map[string]bool            // uids of nodes that have another zone
	services []state.Change             // those that may affect services
}

func newNetwork() *network {
	n := &network{wake: make(chan struct{}, 1)}
	n.clear()
	return n
}

func (n *network) clear() {
	n.nodes, n.replicas, n.placed, n.relays = map[string]bool{}, map[string]string{}, map[string]map[string]bool{}, false
	n.zones, n.services = map[string]bool{}, nil
}

// forget drops what was noted: agents that connect later get the full set.
func (n *network) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear()
}

// route notes a change of the state, if it concerns networks.
func (n *network) route(c state.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	noted := n.note(c)
	if services.Matters(c) {
		n.services = append(n.services, c)
		noted = true
	}
	if !noted {
		return
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *network) note(c state.Change) bool {
	switch c.Kind {
	case state.KindServer:
		before, _ := c.Old.(*v1.Server)
		after, _ := c.New.(*v1.Server)
		if before != nil && after != nil && before.GetSpec().GetAddress() == after.GetSpec().GetAddress() {
			return false
		}
		n.relays = true
	case state.KindCluster:
		before, _ := c.Old.(*v1.Cluster)
		after, _ := c.New.(*v1.Cluster)
		if sameRanges(before.GetSpec(), after.GetSpec()) {
			return false
		}
		n.relays = true
	case state.KindNode:
		before, _ := c.Old.(*v1.Node)
		after, _ := c.New.(*v1.Node)
		uid := max(before.GetMetadata().GetUid(), after.GetMetadata().GetUid())
		moved := zoneOf(before) != zoneOf(after)
		if moved {
			n.zones[uid] = true
		}
		if samePeer(before, after) {
			return moved
		}
		n.nodes[uid] = true
	case state.KindReplica:
		before, _ := c.Old.(*v1.Replica)
		after, _ := c.New.(*v1.Replica)
		return n.noteReplica(before, after)
	default:
		return false
	}
	return true
}

func (n *network) noteReplica(before, after *v1.Replica) (noted bool) {
	either := after
	if either == nil {
		either = before
	}
	namespace := either.GetMetadata().GetNamespace()
	if !slices.Equal(addressesOf(before), addressesOf(after)) {
		n.replicas[either.GetMetadata().GetUid()] = namespace
		noted = true
	}
	if node := after.GetSpec().GetNodeUid(); node != "" && node != before.GetSpec().GetNodeUid() {
		if n.placed[node] == nil {
			n.placed[node] = map[string]bool{}
		}
		n.placed[node][namespace] = true
		noted = true
	}
	return noted
}

// addressesOf are the addresses at which a replica is reached, none if it has ended.
func addressesOf(r *v1.Replica) []string {
	if r == nil || !spec.Live(r.GetStatus().GetPhase()) {
		return nil
	}
	return r.GetStatus().GetAddresses()
}

func sameRanges(a, b *v1.ClusterSpec) bool {
	a4, a6 := spec.ServiceRanges(a)
	b4, b6 := spec.ServiceRanges(b)
	return a.GetRangeV4() == b.GetRangeV4() && a.GetRangeV6() == b.GetRangeV6() && a4 == b4 && a6 == b6
}

func zoneOf(n *v1.Node) string { return n.GetMetadata().GetLabels()[spec.LabelZone] }

// samePeer reports whether two versions of a node are the same to its peers. Either may be nil.
func samePeer(a, b *v1.Node) bool {
	x, y := a.GetStatus().GetMesh(), b.GetStatus().GetMesh()
	if x.GetKey() == "" && y.GetKey() == "" {
		return true // it is not in the mesh
	}
	return a.GetMetadata().GetName() == b.GetMetadata().GetName() &&
		a.GetSpec().GetSubnetV4() == b.GetSpec().GetSubnetV4() && a.GetSpec().GetSubnetV6() == b.GetSpec().GetSubnetV6() &&
		x.GetKey() == y.GetKey() && x.GetRelay() == y.GetRelay() && slices.Equal(x.GetCandidates(), y.GetCandidates())
}

// networkNews are changes, ready to be sent.
type networkNews struct {
	snap *state.Snapshot
	// shared is for every agent.
	shared *v1.Network
	// replicas are the changed ones of a namespace, for agents that have replicas of it.
	replicas map[string]*v1.Network
	placed   map[string]map[string]bool
	zones    map[string]bool
	services []serviceNews
}

// take returns what was noted, as it is in a snapshot that has it all: what is noted later waits for the next time.
func (n *network) take(snapshot func() *state.Snapshot) networkNews {
	n.mu.Lock()
	defer n.mu.Unlock()
	snap := snapshot()
	news := networkNews{snap: snap, shared: &v1.Network{}, replicas: map[string]*v1.Network{}, placed: n.placed, zones: n.zones}
	for _, uid := range slices.Sorted(maps.Keys(n.nodes)) {
		if peer := peerOf(snap.Node(uid)); peer != nil {
			news.shared.Peers = append(news.shared.Peers, peer)
		} else {
			news.shared.Removed = append(news.shared.Removed, peerID(uid))
		}
	}
	if n.relays {
		addRelays(news.shared, snap)
	}
	for uid, namespace := range n.replicas {
		if news.replicas[namespace] == nil {
			news.replicas[namespace] = &v1.Network{}
		}
		addReplica(news.replicas[namespace], uid, snap.Replica(uid))
	}
	news.services = changedServices(snap, n.services)
	n.clear()
	return news
}

// spreadNetwork passes changes on to all sessions until ctx ends.
func (s *Sessions) spreadNetwork(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.network.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(networkPause):
		}
		if s.connected.count() == 0 {
			s.network.forget()
			continue
		}
		news := s.network.take(s.Store.Snapshot)
		s.connected.each(func(one *session) { one.addNetwork(news) })
	}
}

// peerID is the identity of a node to its peers.
func peerID(uid string) string { return "node/" + uid }

// peerOf is a node as its peers know it; nil if it is not in the mesh.
func peerOf(n *v1.Node) *v1.NetworkPeer {
	mesh := n.GetStatus().GetMesh()
	if mesh.GetKey() == "" {
		return nil
	}
	peer := &v1.NetworkPeer{
		Id: peerID(n.GetMetadata().GetUid()), Name: n.GetMetadata().GetName(), Key: mesh.GetKey(), Candidates: mesh.GetCandidates(), Relay: mesh.GetRelay(),
	}
	for _, subnet := range []string{n.GetSpec().GetSubnetV4(), n.GetSpec().GetSubnetV6()} {
		if subnet != "" {
			peer.Prefixes = append(peer.Prefixes, subnet)
		}
	}
	return peer
}

// addRelays adds the servers and the ranges of all nodes: those of the cluster, and those of nodes that are older than
// the cluster's ranges.
func addRelays(message *v1.Network, snap *state.Snapshot) {
	for server := range snap.Servers("") {
		message.Relays = append(message.Relays, &v1.NetworkRelay{Id: server.GetMetadata().GetUid(), Address: server.GetSpec().GetAddress()})
	}
	var ranges []netip.Prefix
	add := func(text string) {
		p, err := netip.ParsePrefix(text)
		if err != nil || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) }) {
			return
		}
		ranges = append(ranges, p)
	}
	add(snap.Cluster().GetSpec().GetRangeV4())
	add(snap.Cluster().GetSpec().GetRangeV6())
	for node := range snap.Nodes("") {
		add(node.GetSpec().GetSubnetV4())
		add(node.GetSpec().GetSubnetV6())
	}
	for _, p := range ranges {
		message.Ranges = append(message.Ranges, p.String())
	}
	v4, v6 := spec.ServiceRanges(snap.Cluster().GetSpec())
	message.ServiceRanges = []string{v4.String(), v6.String()}
}

// addReplica adds a replica, which may be nil if it is gone.
func addReplica(message *v1.Network, uid string, r *v1.Replica) {
	if addresses := addressesOf(r); len(addresses) > 0 {
		message.Replicas = append(message.Replicas, &v1.NetworkReplica{Uid: uid, Namespace: r.GetMetadata().GetNamespace(), Addresses: addresses})
	} else {
		message.RemovedReplicas = append(message.RemovedReplicas, uid)
	}
}

// addNamespace adds all replicas and services of a namespace. Those that are needed everywhere are known already.
func addNamespace(message *v1.Network, snap *state.Snapshot, namespace string) {
	for r := range state.ListByName[*v1.Replica](snap, state.KindReplica, namespace, "") {
		if len(addressesOf(r)) > 0 {
			addReplica(message, r.GetMetadata().GetUid(), r)
		}
	}
	for one := range snap.Services(namespace, "") {
		if !neededEverywhere(snap, one) {
			message.Services = append(message.Services, networkService(snap, one))
		}
	}
}

// addNetwork queues changes for the agent. One that does not have the full set yet needs none.
func (s *session) addNetwork(news networkNews) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.networkFull {
		return
	}
	if message := news.messageFor(s.node, s.namespaces); message != nil {
		s.queueNetwork(message)
	}
}

// queueNetwork queues a message, or the full set if too many wait. The caller holds the lock.
func (s *session) queueNetwork(message *v1.Network) {
	if len(s.network) == maxNetworkNews {
		s.networkFull, s.network = true, nil
	} else {
		s.network = append(s.network, message)
	}
	s.signal()
}

// messageFor is what one agent must know, nil if nothing has changed for it. It adds namespaces that are new on the
// node to those that the agent follows. They stay until the next session: a namespace too many does no harm.
func (n networkNews) messageFor(node string, follows map[string]bool) *v1.Network {
	message := &v1.Network{
		Peers: n.shared.GetPeers(), Removed: n.shared.GetRemoved(), Relays: n.shared.GetRelays(), Ranges: n.shared.GetRanges(),
		ServiceRanges: n.shared.GetServiceRanges(),
	}
	news := len(message.GetPeers())+len(message.GetRemoved())+len(message.GetRelays()) > 0
	for namespace, changed := range n.replicas {
		if follows[namespace] {
			message.Replicas = append(message.Replicas, changed.GetReplicas()...)
			message.RemovedReplicas = append(message.RemovedReplicas, changed.GetRemovedReplicas()...)
			news = true
		}
	}
	for _, one := range n.services {
		news = one.addTo(message, follows) || news
	}
	for namespace := range n.placed[node] {
		if !follows[namespace] {
			follows[namespace] = true
			addNamespace(message, n.snap, namespace)
			news = true
		}
	}
	if n.zones[node] {
		message.Zone = new(zoneOf(n.snap.Node(node)))
		news = true
	}
	if !news {
		return nil
	}
	return message
}

// fullNetwork is everything that an agent must know, and the namespaces that it follows from now on. asked are those that
// it has asked for.
func fullNetwork(snap *state.Snapshot, node string, asked map[string]bool) (*v1.Network, map[string]bool) {
	message := &v1.Network{Full: true, Zone: new(zoneOf(snap.Node(node))), Followed: slices.Sorted(maps.Keys(asked))}
	follows := maps.Clone(asked)
	for one := range snap.Nodes("") {
		if peer := peerOf(one); peer != nil {
			message.Peers = append(message.Peers, peer)
		}
	}
	addRelays(message, snap)
	for r := range snap.ReplicasOn(node) {
		follows[r.GetMetadata().GetNamespace()] = true
	}
	for namespace := range follows {
		addNamespace(message, snap, namespace)
	}
	for one := range snap.Services("", "") {
		if neededEverywhere(snap, one) {
			message.Services = append(message.Services, networkService(snap, one))
		}
	}
	return message, follows
}

// takeNetwork returns what waits for the agent. What changes after the snapshot of the full set waits for the next time.
func (s *session) takeNetwork(snapshot func() *state.Snapshot) []*v1.Network {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.network
	if s.networkFull {
		snap := snapshot()
		full, follows := fullNetwork(snap, s.node, s.asked)
		s.namespaces, news = follows, []*v1.Network{full}
		s.unfollowEmpty(snap)
	}
	s.networkFull, s.network = false, nil
	return news
}

// sendNetwork sends what the agent does not know yet of its network.
func (s *Sessions) sendNetwork(stream sessionStream, current *session) error {
	for _, one := range current.takeNetwork(s.Store.Snapshot) {
		if err := stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Network{Network: one}}); err != nil {
			return err
		}
	}
	return nil
}
