package nodenet

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// The chains of our table:
//
//	guard         first of all: replicas use only addresses of this node, and never 127.0.0.0/8 of the machine. That they
//	              use only their own is up to rules of family bridge; see spoofing.go
//	prerouting    looks up the port of packets from replicas to virtual addresses, and from anywhere to the machine,
//	              except those of the resolver and of the chunks
//	output        the same for the machine itself, but not for ::1
//	sent          what the machine itself sends to virtual addresses without backends is refused
//	forward       what comes from or goes to a replica or the mesh; see below
//	input         what replicas, other nodes and neighbours send to the machine: nothing of it is open but the resolver
//	              and the ingress, to replicas, and the chunks of the object store, to nodes
//	postrouting   masquerade what leaves the cluster, what enters it, and what returns to its sender
//	leaving       nothing for a replica leaves the machine unencrypted
//	tcp_8080      a published port: choose one of its backends
//	service_*     a port of a service: the same. With affinity, a chain for each backend remembers its clients
//
// forward passes a new connection on to one of these:
//
//	from_replica  anywhere but to link-local addresses; inside the cluster as in_cluster says. Virtual addresses
//	              without backends refuse
//	from_mesh     only to replicas: from nodes, and as in_cluster says
//	to_cluster    from outside: only what a published port has translated
//	in_cluster    through published ports, to exported services, and within the sender's namespace. For a virtual
//	              address, the backend counts
//	namespace_*   what the replicas of a namespace may reach
//	egress_*      what the replicas of a workload may reach outside of the cluster; see egress.go
//	inside_*      the same inside of it
//	to_ingress    what replicas ask of the ingress, which is outside of the cluster to egress rules
//	drop_*        count the packet by workload, and drop it
//
// An accepted packet still passes the chains of other programs. Packets that have nothing to do with replicas and the
// mesh are none of our business, except on interfaces that forward only because of us: see forwarding.go.
const (
	chainFromReplica = "from_replica"
	chainFromMesh    = "from_mesh"
	chainToCluster   = "to_cluster"
	chainInCluster   = "in_cluster"
	chainFromInside  = "input_from_replica"
	chainFromNodes   = "input_from_mesh"
	chainToIngress   = "to_ingress"
)

// The sets of our table. Those with a 4 have a twin with a 6.
const (
	setPublished = "published" // protocol . port : verdict
	setBound     = "bound"     // address . protocol . port : verdict
	setServices  = "services"  // virtual address . protocol . port : verdict
	setExported  = "exported"  // address . protocol . port of exported services' backends
	setNamespace = "namespace" // address of a replica : verdict
	setMembers   = "members"   // number of a namespace . address of a replica
	setSelf      = "self"      // address . address of every replica here
	setOpened    = "opened"    // interfaces that forward only because of us
	setIngress   = "ingress"   // protocol . port that the ingress of this node has open
	setDrops     = "drops"     // address of a replica here, or zero . rule, with a counter
)

// maxDrops limits the counters of dropped packets. Only addresses of this node's replicas have some.
const maxDrops = 16384

// tableSets are the sets of our table. guarded is whether the kernel has rules for bridges.
func tableSets(guarded bool) []nft.Set {
	concat := nftables.MustConcatSetType
	sets := []nft.Set{
		{Name: setPublished, Key: concat(nftables.TypeInetProto, nftables.TypeInetService), IsMap: true, Value: nftables.TypeVerdict},
		{Name: setIngress, Key: concat(nftables.TypeInetProto, nftables.TypeInetService)},
	}
	if guarded {
		sets = append(sets, bridgeSets()...)
	}
	for _, f := range families {
		addr := f.addressType()
		socket := concat(addr, nftables.TypeInetProto, nftables.TypeInetService)
		sets = append(sets,
			nft.Set{Name: setServices + f.suffix, Key: socket, IsMap: true, Value: nftables.TypeVerdict},
			nft.Set{Name: setExported + f.suffix, Key: socket},
			nft.Set{Name: setBound + f.suffix, Key: socket, IsMap: true, Value: nftables.TypeVerdict},
			nft.Set{Name: setNamespace + f.suffix, Key: addr, IsMap: true, Value: nftables.TypeVerdict},
			nft.Set{Name: setMembers + f.suffix, Key: concat(nftables.TypeMark, addr)},
			nft.Set{Name: setSelf + f.suffix, Key: concat(addr, addr)},
			nft.Set{Name: setOpened + f.suffix, Key: nftables.TypeIFName},
			nft.Set{Name: setDrops + f.suffix, Key: concat(addr, nftables.TypeMark), Dynamic: true, Size: maxDrops},
		)
	}
	return append(sets, egressSets()...)
}

// base is the part of the table that depends only on the node's own settings.
type base struct {
	bridge, mesh string // mesh may be empty
	links        string // beginning of the names of replicas' links; empty if the kernel has no rules for bridges
	subnets      Subnets
	ranges       Ranges
	opened       map[string]opened // by the suffix of a family
}

// inside are the interfaces that lead to replicas.
func (b base) inside() []string {
	if b.mesh == "" {
		return []string{b.bridge}
	}
	return []string{b.bridge, b.mesh}
}

// own is the node's subnet of a family; it may be invalid.
func (b base) own(f ipFamily) netip.Prefix {
	if f == ipv6 {
		return b.subnets.V6
	}
	return b.subnets.V4
}

func (b base) part() *nft.Part {
	p := &nft.Part{Chains: slices.Concat(
		[]nft.Chain{b.guard(), b.prerouting(), b.output(), b.postrouting(), b.leaving()},
		b.forward(), b.input(), dropChains(), b.egress(),
	)}
	if b.links != "" {
		p.Chains = append(p.Chains, ownAddresses(b.links)...)
	}
	for _, f := range families {
		for _, name := range b.opened[f.suffix].links {
			p.Elements = append(p.Elements, nft.Element{Set: setOpened + f.suffix, Key: string(interfaceName(name))})
		}
	}
	return p
}

// guard keeps replicas and other nodes from programs on the machine's loopback, to which the setting route_localnet would let them
// through. Where the kernel has no rules for bridges, it also keeps replicas from using addresses of other nodes.
func (b base) guard() nft.Chain {
	c := nft.Chain{Name: "guard", Hook: &nft.Hook{Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}}
	for _, name := range b.inside() {
		c.Rules = append(c.Rules, join(comesIn(name), ipv4.to(ipv4.loopback), goTo(dropHost.chain())))
	}
	for _, f := range families {
		if b.links != "" || !b.own(f).IsValid() {
			continue
		}
		if f == ipv6 { // neighbours find each other with link-local addresses
			c.Rules = append(c.Rules, join(comesIn(b.bridge), f.from(f.linkLocal), accept),
				join(comesIn(b.bridge), f.from(netip.MustParsePrefix("::/128")), accept))
		}
		c.Rules = append(c.Rules, join(comesIn(b.bridge), f.notFrom(b.own(f)), goTo(dropSpoofed.chain())))
	}
	return c
}

// published matches connections that came by a published port, not by a virtual address.
func (b base) published(f ipFamily) []expr.Any {
	match := join(f.is(), translated())
	for _, r := range b.ranges.Services {
		if familyOfAddr(r.Addr()) == f {
			match = join(match, f.notAskedFor(r))
		}
	}
	return match
}

// lookUpService goes to the chain of a service.
func lookUpService(from []expr.Any) [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		rules = append(rules, join(from, f.is(), []expr.Any{f.loadDestination(1)}, loadPort(register1+f.words()),
			[]expr.Any{lookUpInto(setServices+f.suffix, 1, 0)}))
	}
	return rules
}

// askedOfServices keeps services from being translated that a replica may not reach.
func (b base) askedOfServices() [][]expr.Any {
	var rules [][]expr.Any
	for _, r := range b.ranges.Services {
		f := familyOfAddr(r.Addr())
		rules = append(rules, f.lookUpSender(join(comesIn(b.bridge), f.to(r)), setEgressAsked))
	}
	return rules
}

// egress are the chains that all egress rules share.
func (b base) egress() []nft.Chain {
	return []nft.Chain{
		refuseEgress(),
		{Name: chainAllowedInside, Rules: append(b.refuseUnserved(), goTo(chainInCluster))},
		{Name: chainTranslate, Rules: lookUpService(nil)},
	}
}

// lookUpPort goes to the chain of a published port: first one of that address alone, then one of all addresses.
func lookUpPort() [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		rules = append(rules, join(local(), f.is(), []expr.Any{f.loadDestination(1)}, loadPort(register1+f.words()),
			[]expr.Any{lookUpInto(setBound+f.suffix, 1, 0)}))
	}
	return append(rules, join(local(), loadPort(register1), []expr.Any{lookUpInto(setPublished, 1, 0)}))
}

func (b base) prerouting() nft.Chain {
	return nft.Chain{
		Name:  "prerouting",
		Hook:  &nft.Hook{Type: nftables.ChainTypeNAT, Hook: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest},
		Rules: slices.Concat(b.askedOfServices(), lookUpService(comesIn(b.bridge)), b.toResolver(leave), b.toChunks(nil, leave), lookUpPort()),
	}
}

func (b base) output() nft.Chain {
	return nft.Chain{
		Name: "output",
		Hook: &nft.Hook{Type: nftables.ChainTypeNAT, Hook: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest},
		// The kernel cannot translate ::1.
		Rules: slices.Concat([][]expr.Any{join(ipv6.to(ipv6.loopback), leave)}, lookUpService(nil), b.toResolver(leave), b.toChunks(nil, leave), lookUpPort()),
	}
}

func (b base) postrouting() nft.Chain {
	c := nft.Chain{Name: "postrouting", Hook: &nft.Hook{Type: nftables.ChainTypeNAT, Hook: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource}}
	c.Rules = append(c.Rules, join(goesOut(b.bridge), ipv4.from(ipv4.loopback), masquerade))
	for _, f := range families {
		own := b.own(f)
		if !own.IsValid() {
			continue
		}
		// A replica that reached itself by another address would not accept its own as the caller's.
		c.Rules = append(c.Rules, join(goesOut(b.bridge), f.is(),
			[]expr.Any{f.loadSource(1), f.loadDestination(register1 + f.words()), lookUp(setSelf+f.suffix, 1)}, masquerade))
		outside := join(notOutBy(b.bridge), notOutBy("lo"))
		if b.mesh != "" {
			// Other nodes know the way back only to addresses of the cluster.
			c.Rules = append(c.Rules, join(goesOut(b.mesh), f.notFrom(own), masquerade))
			// They let a node use a published port's backend, but not a replica of another namespace.
			c.Rules = append(c.Rules, join(goesOut(b.mesh), b.published(f), masquerade))
			outside = join(outside, notOutBy(b.mesh))
		}
		c.Rules = append(c.Rules, join(outside, f.from(own), masquerade))
	}
	return c
}

// leaving drops what was meant for a replica of another node and would leave by an uplink, because the mesh has no
// route to it now. Packets of the machine itself count only if they were translated: the network of a machine that
// moves may overlap with ours.
func (b base) leaving() nft.Chain {
	c := nft.Chain{Name: "leaving", Hook: &nft.Hook{Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter}}
	for _, prefix := range []string{bridgePrefix, meshPrefix} {
		c.Rules = append(c.Rules, join(goesOutLike(prefix), accept))
	}
	c.Rules = append(c.Rules, join(goesOut("lo"), accept))
	for _, r := range b.ranges.Replicas {
		c.Rules = append(c.Rules, join(familyOfAddr(r.Addr()).to(r), translated(), goTo(dropNoPath.chain())))
	}
	return c
}

func (b base) forward() []nft.Chain {
	forward := nft.Chain{Name: "forward", Hook: &nft.Hook{Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter}}
	forward.Rules = append(forward.Rules, join(comesIn(b.bridge), goTo(chainFromReplica)))
	chains := []nft.Chain{b.fromReplica(), b.inCluster(), b.toCluster()}
	if b.mesh != "" {
		forward.Rules = append(forward.Rules, join(comesIn(b.mesh), goTo(chainFromMesh)))
		chains = append(chains, b.fromMesh())
	}
	for _, name := range b.inside() {
		forward.Rules = append(forward.Rules, join(goesOut(name), goTo(chainToCluster)))
	}
	for _, prefix := range []string{bridgePrefix, meshPrefix} { // of other clouds, which have their own rules
		forward.Rules = append(forward.Rules, join(comesInLike(prefix), accept), join(goesOutLike(prefix), accept))
	}
	for _, f := range families {
		if b.opened[f.suffix].all {
			forward.Rules = append(forward.Rules, join(f.is(), goTo(dropTransit.chain())))
			continue
		}
		forward.Rules = append(forward.Rules, join(f.is(),
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, lookUp(setOpened+f.suffix, 1)}, goTo(dropTransit.chain())))
	}
	return append(chains, forward)
}

func (b base) fromReplica() nft.Chain {
	c := nft.Chain{Name: chainFromReplica}
	// A connection to a node whose route is gone, because it was removed, must not continue on an uplink in the clear.
	for _, name := range b.inside() {
		c.Rules = append(c.Rules, join(goesOut(name), established(), accept))
	}
	for _, r := range b.ranges.Replicas {
		c.Rules = append(c.Rules, join(familyOfAddr(r.Addr()).to(r), established(), goTo(dropNoPath.chain())))
	}
	c.Rules = append(c.Rules, join(established(), accept))
	// Every kernel sends these by itself to find neighbours, and a bridge passes them to all ports. They are no attempt of
	// a program to reach anything, so they do not count.
	for _, f := range families {
		c.Rules = append(c.Rules, join(f.to(f.multicast), drop))
	}
	c.Rules = append(c.Rules, join(goesOut(b.bridge), ipv6.from(ipv6.linkLocal), drop), join(goesOut(b.bridge), ipv6.to(ipv6.linkLocal), drop))
	for _, f := range families {
		c.Rules = append(c.Rules, join(f.to(f.linkLocal), goTo(dropLinkLocal.chain())))
	}
	for _, r := range b.ranges.Services {
		f := familyOfAddr(r.Addr())
		c.Rules = append(c.Rules, f.lookUpSender(f.to(r), setEgressInside))
	}
	c.Rules = append(c.Rules, b.refuseUnserved()...)
	for _, name := range b.inside() {
		for _, r := range b.ranges.Services { // only what may reach a service is translated
			c.Rules = append(c.Rules, join(goesOut(name), translated(), familyOfAddr(r.Addr()).askedFor(r), goTo(chainInCluster)))
		}
		c.Rules = append(c.Rules, lookUpSender(goesOut(name), setEgressInside)...)
		c.Rules = append(c.Rules, join(goesOut(name), goTo(chainInCluster)))
	}
	for _, r := range b.ranges.Replicas {
		c.Rules = append(c.Rules, join(familyOfAddr(r.Addr()).to(r), goTo(dropNoPath.chain())))
	}
	c.Rules = append(c.Rules, lookUpSender(nil, setEgress)...)
	c.Rules = append(c.Rules, accept)
	return c
}

func (b base) fromMesh() nft.Chain {
	c := nft.Chain{Name: chainFromMesh, Rules: [][]expr.Any{join(established(), accept)}}
	for _, f := range families {
		if own := b.own(f); own.IsValid() {
			// Processes of that machine, and connections that it accepted at a published port.
			c.Rules = append(c.Rules, join(goesOut(b.bridge), f.fromNode(own), accept))
		}
	}
	c.Rules = append(c.Rules, join(goesOut(b.bridge), goTo(chainInCluster)), goTo(dropTransit.chain()))
	return c
}

// toCluster is for what comes from neither replicas nor the mesh.
func (b base) toCluster() nft.Chain {
	return nft.Chain{Name: chainToCluster, Rules: [][]expr.Any{
		join(established(), accept), join(translated(), accept), goTo(dropUnpublished.chain()),
	}}
}

// inCluster goes to the chain of the sender's namespace.
func (b base) inCluster() nft.Chain {
	c := nft.Chain{Name: chainInCluster}
	for _, f := range families {
		c.Rules = append(c.Rules, join(b.published(f), accept))
	}
	for _, f := range families {
		c.Rules = append(c.Rules, join(f.is(), []expr.Any{f.loadDestination(1)}, loadPort(register1+f.words()),
			[]expr.Any{lookUp(setExported+f.suffix, 1)}, accept))
	}
	for _, f := range families {
		c.Rules = append(c.Rules, join(f.is(), []expr.Any{f.loadSource(1), lookUpInto(setNamespace+f.suffix, 1, 0)}))
	}
	c.Rules = append(c.Rules, goTo(dropNamespace.chain()))
	return c
}

// namespacePart is the chain for what replicas of one namespace send to others: the receiver must be in it, too. So a
// connection costs two lookups, however many namespaces and replicas there are.
func namespacePart(name string, id uint32) *nft.Part {
	c := nft.Chain{Name: namespaceChain(name)}
	for _, f := range families {
		c.Rules = append(c.Rules, join(f.is(), []expr.Any{
			&expr.Immediate{Register: register1, Data: binaryutil.NativeEndian.PutUint32(id)},
			f.loadDestination(register1 + 1), lookUp(setMembers+f.suffix, 1),
		}, accept))
	}
	c.Rules = append(c.Rules, goTo(dropNamespace.chain()))
	return &nft.Part{Chains: []nft.Chain{c}}
}

func namespaceChain(name string) string { return "namespace_" + name }

// DNSPort is where the node's resolver listens, on the addresses of the bridge.
const DNSPort = 53

func (b base) input() []nft.Chain {
	input := nft.Chain{Name: "input", Hook: &nft.Hook{Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter}}
	input.Rules = append(input.Rules, join(comesIn("lo"), accept), join(comesIn(b.bridge), goTo(chainFromInside)))
	chains := []nft.Chain{b.fromInside(), toIngress(), b.sent()}
	if b.mesh != "" {
		input.Rules = append(input.Rules, join(comesIn(b.mesh), goTo(chainFromNodes)))
		chains = append(chains, b.fromNodes())
	}
	for _, f := range families {
		if own := b.own(f); own.IsValid() { // the machine would answer on any interface for the bridge's address
			input.Rules = append(input.Rules, join(f.to(own), established(), accept), join(f.to(own), goTo(dropUnpublished.chain())))
		}
	}
	return append(chains, input)
}

// answered are rules for what any input accepts: answers, errors and ICMP, which also finds neighbours.
func answered() [][]expr.Any {
	rules := [][]expr.Any{join(established(), accept)}
	for _, f := range families {
		rules = append(rules, join(f.is(), protocolIs(f.icmp), accept))
	}
	return rules
}

func (b base) fromInside() nft.Chain {
	c := nft.Chain{Name: chainFromInside, Rules: answered()}
	c.Rules = append(c.Rules, b.toResolver(accept)...)
	for _, f := range families { // the bridge's address is for the resolver
		if own := b.own(f); own.IsValid() {
			c.Rules = append(c.Rules, join(f.to(own), goTo(dropHost.chain())))
		}
	}
	for _, f := range families {
		c.Rules = append(c.Rules, join(f.to(f.linkLocal), goTo(dropHost.chain())))
	}
	c.Rules = append(c.Rules, join(loadPort(register1), []expr.Any{lookUp(setIngress, register1)}, goTo(chainToIngress)))
	c.Rules = append(c.Rules, goTo(dropHost.chain()))
	return c
}

// toResolver are rules for what is sent to the node's resolver.
func (b base) toResolver(then []expr.Any) [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		own := b.own(f)
		if !own.IsValid() {
			continue
		}
		resolver := netip.PrefixFrom(at(own, gateway), own.Addr().BitLen())
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			rules = append(rules, join(f.to(resolver), portIs(protocol, DNSPort), then))
		}
	}
	return rules
}

// ChunkPort is where a node gives chunks of the object store to other nodes, at its addresses inside of the mesh.
const ChunkPort = 7702

// toChunks are rules for what is sent to the node's chunks.
func (b base) toChunks(from func(f ipFamily, own netip.Prefix) []expr.Any, then []expr.Any) [][]expr.Any {
	var rules [][]expr.Any
	for _, f := range families {
		own := b.own(f)
		if !own.IsValid() {
			continue
		}
		var sender []expr.Any
		if from != nil {
			sender = from(f, own)
		}
		here := netip.PrefixFrom(at(own, gateway), own.Addr().BitLen())
		rules = append(rules, join(f.to(here), sender, portIs(unix.IPPROTO_TCP, ChunkPort), then))
	}
	return rules
}

// fromNodes closes the machine to all others but nodes that get chunks: published ports lead to replicas.
func (b base) fromNodes() nft.Chain {
	chunks := b.toChunks(ipFamily.fromNode, accept)
	return nft.Chain{Name: chainFromNodes, Rules: slices.Concat(answered(), chunks, [][]expr.Any{goTo(dropHost.chain())})}
}

// sent refuses virtual addresses without backends to the machine itself. It also drops the kernel's advice to replicas
// to talk to each other without the machine: they cannot.
func (b base) sent() nft.Chain {
	c := nft.Chain{Name: "sent", Hook: &nft.Hook{Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter}}
	for _, f := range families {
		c.Rules = append(c.Rules, join(goesOut(b.bridge), f.icmpTypeIs(f.redirect), drop))
	}
	// A network of the machine may overlap the range: its packets leave by another interface.
	for _, rule := range b.refuseUnserved() {
		c.Rules = append(c.Rules, join(goesOut(b.bridge), rule))
	}
	return c
}

// refuseUnserved refuses connections to virtual addresses that no service has translated.
func (b base) refuseUnserved() [][]expr.Any {
	var rules [][]expr.Any
	for _, r := range b.ranges.Services {
		for _, answer := range refuse() {
			rules = append(rules, join(familyOfAddr(r.Addr()).to(r), answer))
		}
	}
	return rules
}

// number is a key of 4 bytes in a set.
func number(n uint32) string { return string(binaryutil.NativeEndian.PutUint32(n)) }

// portElement is the key of a port: each part fills a register.
func portElement(k portKey) string {
	return string([]byte{k.number4(), 0, 0, 0, byte(k.number >> 8), byte(k.number), 0, 0})
}

// endpointPart has the addresses of a replica on this node. link is empty if the kernel has no rules for bridges.
func endpointPart(link string, addresses []netip.Addr, namespace string, id uint32) *nft.Part {
	p := &nft.Part{}
	if link != "" {
		p.Elements = ownElements(link, addresses)
	}
	for _, a := range addresses {
		address := string(a.AsSlice())
		p.Elements = append(p.Elements, nft.Element{Set: setSelf + familyOfAddr(a).suffix, Key: address + address})
		p.Elements = append(p.Elements, memberElements(a, namespace, id)...)
	}
	return p
}

// memberElements put an address into a namespace.
func memberElements(a netip.Addr, namespace string, id uint32) []nft.Element {
	address, suffix := string(a.AsSlice()), familyOfAddr(a).suffix
	return []nft.Element{
		{Set: setNamespace + suffix, Key: address, Goto: namespaceChain(namespace)},
		{Set: setMembers + suffix, Key: number(id) + address},
	}
}
