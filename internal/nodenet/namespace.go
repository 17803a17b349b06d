package nodenet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inside is the name of the link that a replica sees.
const inside = "eth0"

// ensureEndpoint creates the endpoint's namespace and link, unless they exist and are
// correct.
func (n *Network) ensureEndpoint(e allocated) error {
	path := n.opts.namespace(e.UID)
	if !isNamespace(path) {
		if err := makeNamespace(path); err != nil {
			return fmt.Errorf("make its network namespace: %w", err)
		}
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open its network namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	if err := n.ensureLink(e, ns); err != nil {
		return fmt.Errorf("link it to the bridge: %w", err)
	}
	if err := n.configureInside(e, ns); err != nil {
		return fmt.Errorf("give it its addresses: %w", err)
	}
	return n.shape(e, ns)
}

// isNamespace reports whether a namespace is bound to the path. A reboot leaves only the
// file.
func isNamespace(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.NSFS_MAGIC
}

// insideSettings are those of every namespace. There can be no duplicate addresses, and
// checking for them takes a second.
var insideSettings = [][2]string{
	{"ipv6/conf/default/accept_dad", "0"},
	{"ipv6/conf/default/accept_ra", "0"},
	{"ipv6/conf/default/autoconf", "0"},
	{"ipv4/conf/default/accept_redirects", "0"},
	{"ipv6/conf/default/accept_redirects", "0"},
	{"ipv4/ip_unprivileged_port_start", "0"},
	{"ipv4/ping_group_range", "0\t2147483647"},
}

// makeNamespace creates a network namespace and binds it to the path.
func makeNamespace(path string) error {
	if err := os.MkdirAll(dirOf(path), 0o711); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	_ = file.Close()
	made := make(chan error, 1)
	// A goroutine of its own: if the thread cannot switch back, it ends with the goroutine.
	go func() { made <- bindNewNamespace(path) }()
	if err := <-made; err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func bindNewNamespace(path string) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() { _ = home.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("unshare: %w", err)
	}
	err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	if err != nil {
		err = fmt.Errorf("bind it to %s: %w", path, err)
	}
	for _, s := range insideSettings {
		if _, settingErr := setSetting(s[0], s[1]); settingErr != nil && !errors.Is(settingErr, fs.ErrNotExist) {
			err = errors.Join(err, settingErr)
		}
	}
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("return from the namespace: %w", back)) // and the locked thread ends
	}
	runtime.UnlockOSThread()
	if err != nil {
		err = errors.Join(err, removeNamespace(path))
	}
	return err
}

// ensureLink creates the veth pair, one end on the bridge and one inside.
func (n *Network) ensureLink(e allocated, ns netns.NsHandle) error {
	bridge, err := n.makeBridge()
	if err != nil {
		return err
	}
	name := n.opts.link(e.Place)
	link, err := netlink.LinkByName(name)
	if err == nil && !insideExists(ns) {
		// It leads to another namespace, which is no longer known.
		if err := netlink.LinkDel(link); err != nil && !notFound(err) {
			return err
		}
		_, err = netlink.LinkByName(name)
	}
	switch {
	case notFound(err):
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.MasterIndex = name, bridge.Attrs().MTU, bridge.Attrs().Index
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: inside, PeerNamespace: netlink.NsFd(int(ns))})
		if err != nil {
			return err
		}
		if link, err = netlink.LinkByName(name); err != nil {
			return err
		}
		if n.ipv6 { // it is a port of the bridge and needs no address
			if _, err := setSetting("ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil {
				return err
			}
		}
	case err != nil:
		return err
	case link.Attrs().MasterIndex != bridge.Attrs().Index:
		if err := netlink.LinkSetMaster(link, bridge); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetIsolated(link, isolatePorts()); err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp != 0 && link.Attrs().MasterIndex == bridge.Attrs().Index {
		return nil
	}
	// If the machine's rules see bridged packets, too, a packet that returns to its sender
	// through a published port must pass.
	if err := netlink.LinkSetHairpin(link, true); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// isolatePorts reports whether the bridge must not pass frames from one replica to another. A replica sends everything
// to the machine, whose rules decide and which forwards it, so that an answer takes the way of the question. Isolation
// holds those to it that do not want to. If the machine's rules see bridged packets, too, they decide in any case, and
// the kernel passes translated packets to the other replica's port by itself.
func isolatePorts() bool {
	for _, name := range []string{"iptables", "ip6tables"} {
		if value, err := readSetting("bridge/bridge-nf-call-" + name); err == nil && value == "1" {
			return false
		}
	}
	return true
}

func insideExists(ns netns.NsHandle) bool {
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return false
	}
	defer h.Close()
	_, err = h.LinkByName(inside)
	return err == nil
}

// configureInside gives the link inside its addresses and default routes.
func (n *Network) configureInside(e allocated, ns netns.NsHandle) error {
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	loopback, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(loopback); err != nil {
		return err
	}
	link, err := h.LinkByName(inside)
	if err != nil {
		return err
	}
	outer, err := netlink.LinkByName(n.opts.link(e.Place))
	if err != nil {
		return err
	}
	if err := bindHardwareAddress(outer, link); err != nil {
		return err
	}
	var want []netip.Prefix
	for _, addr := range e.addresses(n.subnets()) {
		want = append(want, netip.PrefixFrom(addr, addr.BitLen())) // others are reached by the bridge
	}
	if err := setAddresses(h, link, want); err != nil {
		return err
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	for _, g := range n.gateways() {
		g = netip.PrefixFrom(g.Addr(), g.Addr().BitLen())
		direct := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netOf(g), Scope: netlink.SCOPE_LINK}
		other := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: g.Addr().AsSlice()}
		if err := errors.Join(h.RouteReplace(direct), h.RouteReplace(other)); err != nil {
			return fmt.Errorf("route through %v: %w", g.Addr(), err)
		}
	}
	return nil
}

// removeEndpoint removes what ensureEndpoint and writeFiles create.
func (n *Network) removeEndpoint(e allocated) error {
	if err := removeLink(n.opts.link(e.Place)); err != nil {
		return err
	}
	if err := removeNamespace(n.opts.namespace(e.UID)); err != nil {
		return err
	}
	return os.RemoveAll(n.filesOf(e.UID))
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if notFound(err) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !notFound(err) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// removeNamespace unbinds the namespace, which ends with its last process.
func removeNamespace(path string) error {
	for isNamespace(path) { // as often as it was bound
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unbind %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Counters are the bytes that an endpoint has received and sent, and what the limit of its bandwidth has held back.
type Counters struct {
	Received, Sent         uint64
	HeldReceived, HeldSent Held
}

// Counters counts since the endpoint was attached, and since the last reboot.
func (n *Network) Counters(uid string) (Counters, error) {
	e, found := n.store.get(uid)
	if !found {
		return Counters{}, fmt.Errorf("%s is not on the network", uid)
	}
	link, err := netlink.LinkByName(n.opts.link(e.Place))
	if err != nil {
		return Counters{}, fmt.Errorf("count the bytes of %s: %w", uid, err)
	}
	stats := link.Attrs().Statistics
	if stats == nil {
		return Counters{}, fmt.Errorf("count the bytes of %s: the kernel does not tell", uid)
	}
	c := Counters{Received: stats.TxBytes, Sent: stats.RxBytes} // as seen from our end
	if err := n.held(e, &c, link); err != nil {
		return Counters{}, fmt.Errorf("count what the limit of %s has held back: %w", uid, err)
	}
	return c, nil
}
