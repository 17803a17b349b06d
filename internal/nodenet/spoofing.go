package nodenet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// Who a replica is, is told by its address: the rules decide by it, and so does the resolver. So no replica may use the
// address of another. Behind the bridge, packets no longer show which replica they are from; only rules of family bridge
// see the link. They let in what a replica sends with its own addresses:
//
//	own_addresses     IPv4 and IPv6 by their source, ARP by its sender, nothing else
//	neighbours        IPv6 neighbour discovery tells only of the sender's own addresses, and no replica is a router
//	spoofed           count the frame by its link, and drop it
//
// A kernel without such rules only sees that an address is one of this node.
const (
	chainOwn        = "own_addresses"
	chainNeighbours = "neighbours"
	chainSpoofed    = "spoofed"

	setOwn     = "own"     // link of a replica . its address; has a twin for each family
	setSpoofed = "spoofed" // link of a replica, with a counter
)

// Types of ICMPv6 messages.
const (
	routerAdvertisement    = 134
	neighbourAdvertisement = 136
)

func bridgeSets() []nft.Set {
	sets := []nft.Set{{Name: setSpoofed, Key: nftables.TypeIFName, Dynamic: true, Size: maxDrops, Bridge: true}}
	for _, f := range families {
		sets = append(sets, nft.Set{Name: setOwn + f.suffix, Key: nftables.MustConcatSetType(nftables.TypeIFName, f.addressType()), Bridge: true})
	}
	return sets
}

// ownElements bind an address to a link.
func ownElements(link string, addresses []netip.Addr) (list []nft.Element) {
	for _, a := range addresses {
		list = append(list, nft.Element{Set: setOwn + familyOfAddr(a).suffix, Key: string(interfaceName(link)) + string(a.AsSlice())})
	}
	return list
}

// ownAddresses are the chains of family bridge. What comes in by other links is none of our business.
func ownAddresses(linkPrefix string) []nft.Chain {
	spoofed := goTo(chainSpoofed)
	unspecified := netip.MustParsePrefix("::/128")
	isIPv6 := ethernet(unix.ETH_P_IPV6)
	own := nft.Chain{
		Name: chainOwn, Bridge: true,
		Hook: &nft.Hook{Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw},
		Rules: [][]expr.Any{
			join(nameDiffers(expr.MetaKeyIIFNAME, linkPrefix), accept),
			join(ethernet(unix.ETH_P_IP), ownAt(ipv4, ipv4.loadSource(afterLink)), accept),
			join(isIPv6, protocolIs(ipv6.icmp), []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chainNeighbours}}),
			join(isIPv6, ownAt(ipv6, ipv6.loadSource(afterLink)), accept),
			// Neighbours find each other with these.
			join(isIPv6, []expr.Any{ipv6.loadSource(1)}, ipv6.within(ipv6.linkLocal, expr.CmpOpEq), accept),
			join(isIPv6, []expr.Any{ipv6.loadSource(1)}, ipv6.within(unspecified, expr.CmpOpEq), accept),
			join(ethernet(unix.ETH_P_ARP), arpOfEthernet(), ownAt(ipv4, arpSender(afterLink)), accept),
			spoofed,
		},
	}
	target := func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: ipv6.size}
	}
	advertises := icmpv6Is(neighbourAdvertisement)
	neighbours := nft.Chain{Name: chainNeighbours, Bridge: true, Rules: [][]expr.Any{
		join(advertises, ownAt(ipv6, target(afterLink)), leave),
		join(advertises, []expr.Any{target(1)}, ipv6.within(ipv6.linkLocal, expr.CmpOpEq), leave),
		join(advertises, spoofed),
		join(icmpv6Is(routerAdvertisement), spoofed),
		join(icmpv6Is(ipv6.redirect), spoofed),
	}}
	count := nft.Chain{Name: chainSpoofed, Bridge: true, Rules: [][]expr.Any{
		{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Dynset{SrcRegKey: 1, SetName: setSpoofed, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
		drop, // counting fails when the set is full
	}}
	return []nft.Chain{own, neighbours, count}
}

// afterLink is the register behind the name of a link that begins in the first one.
const afterLink = register1 + unix.IFNAMSIZ/4

// ownAt matches if the address that load puts behind the link's name belongs to the link.
func ownAt(f ipFamily, load expr.Any) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, load, lookUp(setOwn+f.suffix, 1)}
}

// ethernet matches frames by what they carry.
func ethernet(protocol uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(protocol >> 8), byte(protocol)}},
	}
}

// arpOfEthernet matches ARP about IPv4 on Ethernet, in which addresses have their place.
func arpOfEthernet() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 1, 8, 0, 6, 4}},
	}
}

func arpSender(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 14, Len: ipv4.size}
}

func icmpv6Is(kind byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{kind}},
	}
}

// bindHardwareAddress makes the bridge send what is for an address of Ethernet to one link, whatever other replicas
// send. It is called before the replica can send anything.
func bindHardwareAddress(link, inside netlink.Link) error {
	const sticky = 1 << 6 // NTF_STICKY: another port that uses the address does not get it
	err := netlink.NeighAdd(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER | sticky,
		HardwareAddr: inside.Attrs().HardwareAddr,
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("bind its Ethernet address to its link: %w", err)
	}
	return nil
}

// Unguarded says what a kernel without rules for bridges means.
const Unguarded = "The kernel has no nftables rules for bridges (CONFIG_NF_TABLES_BRIDGE), so a replica can pretend to be another one of this node."
