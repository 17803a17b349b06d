package nodenet

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Establish gives the node its ranges and puts them on its bridge at once, so that others
// that look for free ranges see them as taken.
func Establish(opts Options, s Subnets) error {
	n, err := Open(opts)
	if err != nil {
		return err
	}
	defer n.Close()
	if err := n.Configure(s); err != nil {
		return err
	}
	return n.ensureBase()
}

// ensureBase creates the bridge, the settings and the rules, unless they were intact at the
// last check.
func (n *Network) ensureBase() error {
	if n.intact.Load() {
		return nil
	}
	n.base.Lock()
	defer n.base.Unlock()
	if n.intact.Load() {
		return nil
	}
	if err := n.mendBase(); err != nil {
		return err
	}
	n.intact.Store(true)
	return nil
}

// mendBase creates what is missing and leaves the rest alone.
func (n *Network) mendBase() error {
	if err := n.ensureBridge(); err != nil {
		return fmt.Errorf("bridge %s: %w", n.opts.bridge(), err)
	}
	opened, err := n.forwardPackets()
	if err != nil {
		return err
	}
	n.rules.setOpened(opened)
	if err := n.followHost(); err != nil {
		return err
	}
	if err := n.apply(); err != nil {
		return err
	}
	return n.verifyRules()
}

func (n *Network) ensureBridge() error {
	bridge, err := n.makeBridge()
	if err != nil {
		return err
	}
	if _, err := setSetting("ipv4/conf/"+n.opts.bridge()+"/send_redirects", "0"); err != nil {
		return err
	}
	if n.ipv6 {
		for _, name := range []string{"accept_ra", "accept_dad", "autoconf"} {
			if _, err := setSetting("ipv6/conf/"+n.opts.bridge()+"/"+name, "0"); err != nil {
				return err
			}
		}
	}
	if !isolatePorts() { // then rules must see packets of both families
		for _, name := range []string{"nf_call_iptables", "nf_call_ip6tables"} {
			err := os.WriteFile(filepath.Join("/sys/class/net", n.opts.bridge(), "bridge", name), []byte("1"), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := setAddresses(&netlink.Handle{}, bridge, n.gateways()); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return err
	}
	return n.routeServices(bridge)
}

// routeProtocol marks our routes.
const routeProtocol = 0x63

// routeMetric is the least metric of our routes. Each interface adds its number.
const routeMetric = 7000

// routeServices routes the virtual addresses to the bridge. No packet takes that route: rules translate or refuse it.
// But without one, programs of the machine could not even try, and would not have an address of the cluster. Every
// other route to the same range wins, so that no route of the machine or of another cloud is replaced.
func (n *Network) routeServices(bridge netlink.Link) error {
	want := n.store.ranges().Services
	routes, err := retry(func() ([]netlink.Route, error) { return netlink.RouteList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && r.Protocol == routeProtocol && !slices.Contains(want, p) {
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove route to %v: %w", p, err)
			}
		}
	}
	for _, p := range want {
		if p.Addr().Is6() && !n.ipv6 {
			continue
		}
		index := bridge.Attrs().Index
		route := &netlink.Route{LinkIndex: index, Dst: netOf(p), Scope: netlink.SCOPE_LINK, Protocol: routeProtocol, Priority: routeMetric + index}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("route to %v: %w", p, err)
		}
	}
	return nil
}

func (n *Network) makeBridge() (netlink.Link, error) {
	link, err := netlink.LinkByName(n.opts.bridge())
	if notFound(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = n.opts.bridge(), UplinkMTU(), hardwareAddr(n.opts.ID)
		snooping := false // it would keep neighbours from finding each other
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		link, err = netlink.LinkByName(n.opts.bridge())
	}
	if err != nil {
		return nil, err
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("an interface of that name is a %s: remove it with: ip link del %s", link.Type(), n.opts.bridge())
	}
	return link, nil
}

// gateways are the bridge's own addresses.
func (n *Network) gateways() []netip.Prefix {
	s := n.subnets()
	list := []netip.Prefix{netip.PrefixFrom(at(s.V4, gateway), s.V4.Bits())}
	if s.V6.IsValid() {
		list = append(list, netip.PrefixFrom(at(s.V6, gateway), s.V6.Bits()))
	}
	return list
}

// gatewayAddresses are the same without the sizes of their networks.
func (n *Network) gatewayAddresses() []netip.Addr {
	var list []netip.Addr
	for _, p := range n.gateways() {
		list = append(list, p.Addr())
	}
	return list
}

// hardwareAddr is fixed, so that neighbours recognize a recreated bridge, and so that it
// does not change with the replicas.
func hardwareAddr(id string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("cloudless bridge " + id))
	addr := net.HardwareAddr(sum[:6])
	addr[0] = addr[0]&^1 | 2 // unicast, locally administered
	return addr
}

// defaultMTU is that of Ethernet.
const defaultMTU = 1500

// UplinkMTU is that of the machine's uplink, if it is smaller than usual.
func UplinkMTU() int {
	mtu := defaultMTU
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil {
		return mtu
	}
	for _, r := range routes {
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil && link.Attrs().MTU > 0 {
			mtu = min(mtu, link.Attrs().MTU)
		}
	}
	return max(mtu, 1280) // the minimum of IPv6
}

// setAddresses gives a link exactly these global addresses.
func setAddresses(h *netlink.Handle, link netlink.Link, want []netip.Prefix) error {
	have, err := retry(func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var present []netip.Prefix
	for _, a := range have {
		p, ok := prefixOf(a.IPNet)
		if !ok || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if slices.Contains(want, p) {
			present = append(present, p)
			continue
		}
		if err := h.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %v: %w", p, err)
		}
	}
	for _, p := range want {
		if slices.Contains(present, p) {
			continue
		}
		addr := &netlink.Addr{IPNet: netOf(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // no other machine can have it, so it may be used at once
		}
		if err := h.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %v: %w", p, err)
		}
	}
	return nil
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	addr = addr.Unmap()
	if bits != addr.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, ones), true
}

func notFound(err error) bool {
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	return missing
}

// retry asks again when a concurrent change disturbed the answer.
func retry[T any](ask func() (T, error)) (T, error) {
	answer, err := ask()
	for range 10 {
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		answer, err = ask()
	}
	return answer, err
}
