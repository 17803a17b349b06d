package mesh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/tailscale/wireguard-go/tun"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tunnel is the TUN device. It stays when the process ends, with its addresses and routes: packets wait for the next
// process instead of being refused.
type tunnel struct {
	tun.Device
	link   netlink.Link
	source map[bool]net.IP // our own address, by whether it is IPv6
}

func openTunnel(name string, mtu int) (*tunnel, error) {
	device, err := tun.CreateTUN(name, mtu)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the mesh needs /dev/net/tun, which this machine does not have: load it with: modprobe tun: %w", err)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("interface %s is used by another process: %w", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("create interface %s: %w", name, err)
	}
	t := &tunnel{Device: device, source: map[bool]net.IP{}}
	if t.link, err = netlink.LinkByName(name); err == nil {
		err = t.persist()
	}
	if err == nil {
		err = netlink.LinkSetMTU(t.link, mtu) // one that was there before has its old MTU
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("interface %s: %w", name, err), device.Close())
	}
	return t, nil
}

func (t *tunnel) persist() error {
	raw, err := t.File().SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, 1) })
	return errors.Join(err, failed)
}

// RemoveInterface removes what Open made, after Close.
func RemoveInterface(name string) error {
	link, err := netlink.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// configure gives the interface its addresses.
func (t *tunnel) configure(addresses []netip.Prefix) error {
	if err := netlink.LinkSetUp(t.link); err != nil {
		return fmt.Errorf("interface %s: %w", t.link.Attrs().Name, err)
	}
	for _, a := range addresses {
		t.source[a.Addr().Is6()] = a.Addr().AsSlice()
		address := &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}, Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_UNIVERSE}
		if err := netlink.AddrReplace(t.link, address); err != nil {
			return fmt.Errorf("address %v of interface %s: %w", a, t.link.Attrs().Name, err)
		}
	}
	return nil
}

// metric makes every other route to a prefix win: a subnet on a bridge of this machine is not reached through the mesh.
// It differs between interfaces, so that two clouds on one machine do not replace each other's routes.
func (t *tunnel) metric() int { return 7000 + t.link.Attrs().Index }

// addRoutes leads prefixes through the mesh, in packets of an MTU. 0 stands for that of the interface.
func (t *tunnel) addRoutes(to []netip.Prefix, mtu int) error {
	var errs []error
	for _, p := range to {
		r := &netlink.Route{LinkIndex: t.link.Attrs().Index, Dst: netOf(p), MTU: mtu, Src: t.source[p.Addr().Is6()], Priority: t.metric()}
		if err := netlink.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("route to %v through interface %s: %w", p, t.link.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// removeRoutes removes what addRoutes made. A route that is gone already does not matter.
func (t *tunnel) removeRoutes(to []netip.Prefix) {
	for _, p := range to {
		_ = netlink.RouteDel(&netlink.Route{LinkIndex: t.link.Attrs().Index, Dst: netOf(p), Priority: t.metric()})
	}
}

// keepRoutes removes the routes to all other prefixes: an earlier process may have left them.
func (t *tunnel) keepRoutes(keep func(netip.Prefix) bool) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: t.link.Attrs().Index}, netlink.RT_FILTER_OIF)
	if err != nil {
		return
	}
	for _, r := range routes {
		if r.Dst == nil || r.Priority != t.metric() {
			continue
		}
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		if p := netip.PrefixFrom(a.Unmap(), ones); !keep(p) {
			t.removeRoutes([]netip.Prefix{p})
		}
	}
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
