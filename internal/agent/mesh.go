package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/netd"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/resolver"
)

// Mesh connects the replicas of this node with those of others, and answers their lookups of names. Package netd
// implements it.
type Mesh interface {
	// Run works until ctx ends.
	Run(ctx context.Context, e netd.Events)
	// Configure says what the mesh is like. Nothing happens before.
	Configure(s mesh.Setup, k mesh.PrivateKey)
	SetPeers(all []mesh.Peer)
	UpdatePeers(changed []mesh.Peer, removed []string)
	SetRelays(list []mesh.Relay)
	// SetWill says what the servers hear if this agent ends without stopping its replicas.
	SetWill(w netd.Will)
	// SetNames says where the resolver listens. SetClients names the replicas that it serves, and returns when it does.
	SetNames(n netd.Names)
	SetClients(ctx context.Context, all map[netip.Addr]resolver.Client, rules map[string][]resolver.NameRule)
	// Relearn says that the rules may have lost addresses that replicas have looked up.
	Relearn()
	SetServices(all []resolver.Service)
	UpdateServices(changed []resolver.Service, removed []resolver.Name)
	// Fetched says that all services of some namespaces are known.
	Fetched(namespaces []string)
	// Status is the state of the mesh, with all peers or without those that are idle.
	Status(ctx context.Context, all bool) (mesh.Status, error)
	// Probe looks for the path to a peer.
	Probe(ctx context.Context, id string) (mesh.PeerStatus, error)
}

// meshState is what the agent knows of the mesh.
type meshState struct {
	// remote are the addresses of replicas of other nodes, by uid. Only the session uses it.
	remote map[string][]netip.Addr

	services services
	follows  follows
	// configuring is held while the mesh is configured, so that an old key never replaces a new one.
	configuring sync.Mutex
	// attaching is held while the resolver learns the replicas, so that an older list never replaces a newer one.
	attaching sync.Mutex

	mu   sync.Mutex
	node *v1.NodeSpec
	// ranges are those of all nodes, and serviceRanges those of virtual addresses.
	ranges, serviceRanges []string
	// announced is how this node can be reached; nil until it is in the mesh.
	announced *v1.NodeMesh
	// resolverProblem is why replicas cannot look up names, as last reported.
	resolverProblem string
}

func (a *Agent) runMesh(ctx context.Context) {
	if a.mesh != nil {
		a.mesh.Run(ctx, netd.Events{
			Announced: a.announcedMesh,
			Failed:    a.meshProblem,
			Resolver:  a.resolverProblem,
			Wanted:    a.followNamespace,
		})
	}
}

// keepWill tells the network process which processes are replicas, whenever that changes. If the agent dies, the
// servers hear from it whether replicas still run.
func (a *Agent) keepWill(ctx context.Context) {
	for a.mesh != nil {
		select {
		case <-ctx.Done():
			return
		case <-a.pids:
		}
		a.mesh.SetWill(a.will())
	}
}

func (a *Agent) will() netd.Will {
	w := netd.Will{
		Path:    "/v1/agent-losses",
		Running: fmt.Sprintf(`{"instance":%q,"running":true}`, a.instance),
		Ended:   fmt.Sprintf(`{"instance":%q,"running":false}`, a.instance),
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.replicas {
		if _, status := r.running(); status.GetPid() > 0 {
			w.Processes = append(w.Processes, int(status.GetPid()))
		}
	}
	slices.Sort(w.Processes)
	return w
}

// meshProblem reports that this node is not in the mesh, or that it is again.
func (a *Agent) meshProblem(why string) {
	if why == "" {
		a.reportEvent("info", "MeshMended", "", "Replicas of this node can reach those of other nodes again.")
		return
	}
	a.reportEvent("warning", "MeshFailed", "", sentence("Replicas of this node do not reach those of other nodes: "+why+"."))
}

// announcedMesh reports how this node can be reached.
func (a *Agent) announcedMesh(now mesh.Announcement) {
	m := &v1.NodeMesh{Key: now.Key.String(), Relay: now.Relay}
	for _, c := range now.Candidates {
		m.Candidates = append(m.Candidates, c.String())
	}
	a.meshState.mu.Lock()
	a.meshState.announced = m
	a.meshState.mu.Unlock()
	a.noteChange()
}

func (s *meshState) status() *v1.NodeMesh {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.announced
}

// applyNetwork passes on what a server says of the mesh. Peers that make no sense are left out, so that one bad entry
// does not cut off the others.
func (a *Agent) applyNetwork(n *v1.Network) {
	a.cache.merge(n)
	if err := a.applyReplicas(n); err != nil {
		a.log.Error("some replicas of other nodes cannot be reached", "error", err)
	}
	if a.mesh == nil {
		return
	}
	// Services come before the ranges: these write the rules, which never lack a service that way.
	a.applyServices(n)
	if n.GetRanges() != nil {
		if err := a.closeRanges(n.GetRanges(), n.GetServiceRanges()); err != nil {
			a.log.Error("packets for other nodes could leave this machine without the mesh", "error", err)
		}
	}
	if n.GetRelays() != nil {
		var relays []mesh.Relay
		for _, r := range n.GetRelays() {
			relays = append(relays, mesh.Relay{ID: r.GetId(), Address: r.GetAddress()})
		}
		a.meshState.mu.Lock()
		a.meshState.ranges, a.meshState.serviceRanges = n.GetRanges(), n.GetServiceRanges()
		a.meshState.mu.Unlock()
		a.configureMesh()
		a.mesh.SetRelays(relays)
	}
	var peers []mesh.Peer
	for _, given := range n.GetPeers() {
		p, err := peerFrom(given)
		if err != nil {
			a.log.Error("a peer of the mesh is left out", "peer", given.GetName(), "error", err)
			continue
		}
		peers = append(peers, p)
	}
	if n.GetFull() {
		a.mesh.SetPeers(peers)
	} else if len(peers)+len(n.GetRemoved()) > 0 {
		a.mesh.UpdatePeers(peers, n.GetRemoved())
	}
}

// closeRanges keeps packets for other nodes from leaving the machine in the clear.
func (a *Agent) closeRanges(replicas, services []string) (err error) {
	var ranges nodenet.Ranges
	if ranges.Replicas, err = prefixesFrom(replicas); err != nil {
		return err
	}
	if ranges.Services, err = prefixesFrom(services); err != nil {
		return err
	}
	return a.network.SetRanges(ranges)
}

// applyReplicas tells the node's network which namespaces the replicas of other nodes are in.
func (a *Agent) applyReplicas(n *v1.Network) error {
	if n.GetFull() {
		a.meshState.remote = map[string][]netip.Addr{}
	}
	known := a.meshState.remote
	changed := map[netip.Addr]string{}
	var removed []netip.Addr
	for _, uid := range n.GetRemovedReplicas() {
		removed = append(removed, known[uid]...)
		delete(known, uid)
	}
	for _, r := range n.GetReplicas() {
		removed = append(removed, known[r.GetUid()]...)
		known[r.GetUid()] = nil
		for _, text := range r.GetAddresses() {
			addr, err := netip.ParseAddr(text)
			if err != nil { // one bad entry must not cut off the others
				a.log.Error("a replica of another node is left out", "replica", r.GetUid(), "error", err)
				continue
			}
			known[r.GetUid()], changed[addr] = append(known[r.GetUid()], addr), r.GetNamespace()
		}
	}
	removed = slices.DeleteFunc(removed, func(a netip.Addr) bool { _, stays := changed[a]; return stays })
	if n.GetFull() {
		return a.network.ReplaceReplicas(changed)
	}
	if len(changed)+len(removed) == 0 {
		return nil
	}
	return a.network.UpdateReplicas(changed, removed)
}

func peerFrom(given *v1.NetworkPeer) (p mesh.Peer, err error) {
	p = mesh.Peer{ID: given.GetId(), Name: given.GetName(), Relay: given.GetRelay()}
	if p.Key, err = mesh.ParseKey(given.GetKey()); err != nil {
		return p, err
	}
	if p.Prefixes, err = prefixesFrom(given.GetPrefixes()); err != nil {
		return p, err
	}
	for _, text := range given.GetCandidates() {
		c, err := netip.ParseAddrPort(text)
		if err != nil {
			return p, err
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p, nil
}

func prefixesFrom(texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// configureMesh joins the mesh once the node's own ranges and those of the cluster are known.
func (a *Agent) configureMesh() {
	if a.mesh == nil {
		return
	}
	a.meshState.configuring.Lock()
	defer a.meshState.configuring.Unlock()
	a.meshState.mu.Lock()
	node, texts, virtual := a.meshState.node, slices.Clone(a.meshState.ranges), slices.Clone(a.meshState.serviceRanges)
	a.meshState.mu.Unlock()
	if node.GetSubnetV4() == "" || len(texts) == 0 {
		return
	}
	setup, err := a.meshSetup(node, texts)
	if err != nil {
		a.log.Error("this node cannot join the mesh", "error", err)
		return
	}
	if err := a.configureNames(setup, virtual); err != nil {
		a.log.Error("replicas of this node cannot look up names", "error", err)
	}
	key, err := a.store.meshKey()
	if err != nil {
		a.log.Error("this node cannot join the mesh", "error", err)
		return
	}
	a.mesh.Configure(setup, key)
	if a.inMesh != nil {
		var addresses []netip.Addr
		for _, own := range setup.Addresses {
			addresses = append(addresses, own.Addr())
		}
		a.inMesh(addresses)
	}
}

// ReplaceMeshKey gives this node another key in the mesh. Its peers learn the key from a server; packets that arrive
// earlier are lost, and TCP sends them again.
func (a *Agent) ReplaceMeshKey() {
	if _, err := a.store.newMeshKey(); err != nil {
		a.log.Error("this node keeps its key in the mesh", "error", err)
		return
	}
	a.configureMesh()
}

func (a *Agent) meshSetup(node *v1.NodeSpec, ranges []string) (mesh.Setup, error) {
	setup := a.meshBase
	var err error
	if setup.Ranges, err = prefixesFrom(ranges); err != nil {
		return setup, fmt.Errorf("the ranges of the cluster: %w", err)
	}
	for _, text := range []string{node.GetSubnetV4(), node.GetSubnetV6()} {
		if text == "" {
			continue
		}
		subnet, err := netip.ParsePrefix(text)
		if err != nil {
			return setup, fmt.Errorf("the node's subnet: %w", err)
		}
		// The address of the bridge is also that of the node in the mesh.
		own := subnet.Masked().Addr().Next()
		setup.Addresses = append(setup.Addresses, netip.PrefixFrom(own, own.BitLen()))
	}
	return setup, nil
}
