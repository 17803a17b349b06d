package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// bareBridge does the network work of a replica by hand: a namespace bound to a file, a
// veth pair into it, one address of each family, default routes.
type bareBridge struct {
	dir  string
	link *netlink.Bridge
}

var (
	bare4 = netip.MustParsePrefix("198.18.0.1/24")
	bare6 = netip.MustParsePrefix("2001:2::1/64") // reserved for benchmarks, too
)

func newBareBridge(dir string) (*bareBridge, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "clbench-br"
	b := &bareBridge{dir: dir, link: &netlink.Bridge{LinkAttrs: attrs}}
	if err := netlink.LinkAdd(b.link); err != nil {
		return nil, fmt.Errorf("make a bridge: %w", err)
	}
	for _, address := range []netip.Prefix{bare4, bare6} {
		if err := bringUp(nil, attrs.Name, address); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	return b, nil
}

func (b *bareBridge) close() error { return netlink.LinkDel(b.link) }

func (b *bareBridge) path(i int) string { return filepath.Join(b.dir, strconv.Itoa(i)) }

// join creates a namespace on the bridge and returns its path.
func (b *bareBridge) join(i int) (string, error) {
	space, err := bindNamespace(b.path(i))
	if err != nil {
		return "", err
	}
	defer space.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = fmt.Sprintf("clbench%d", 100+i), b.link.Attrs().Index
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(space)}
	if err := netlink.LinkAdd(pair); err != nil {
		return "", err
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return "", err
	}
	in, err := netlink.NewHandleAt(space)
	if err != nil {
		return "", err
	}
	defer in.Close()
	return b.path(i), b.configure(in, i)
}

func (b *bareBridge) configure(in *netlink.Handle, i int) error {
	lo, err := in.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := in.LinkSetUp(lo); err != nil {
		return err
	}
	eth, err := in.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := in.LinkSetUp(eth); err != nil {
		return err
	}
	for _, gateway := range []netip.Prefix{bare4, bare6} {
		address := gateway.Addr()
		for range i + 1 {
			address = address.Next()
		}
		own := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(address, gateway.Bits())), Flags: unix.IFA_F_NODAD}
		if err := in.AddrAdd(eth, own); err != nil {
			return err
		}
		if err := in.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway.Addr().AsSlice()}); err != nil {
			return err
		}
	}
	return nil
}

// leave removes a namespace, and the pair with it.
func (b *bareBridge) leave(i int) error {
	return errors.Join(unix.Unmount(b.path(i), unix.MNT_DETACH), os.Remove(b.path(i)))
}

// bindNamespace creates a network namespace that lasts as long as its file.
func bindNamespace(path string) (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return netns.None(), err
	}
	defer home.Close()
	file, err := os.Create(path)
	if err != nil {
		return netns.None(), err
	}
	_ = file.Close()
	space, err := netns.New() // and moves this thread there
	if err != nil {
		return netns.None(), err
	}
	err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	if err := errors.Join(err, netns.Set(home)); err != nil {
		return netns.None(), errors.Join(err, space.Close())
	}
	return space, nil
}

func withNetwork(path string) oci.SpecOpts {
	return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: path})
}

// bringUp gives an interface an address and brings it up; in is the namespace, nil for this
// one.
func bringUp(in *netlink.Handle, name string, address netip.Prefix) error {
	if in == nil {
		in = &netlink.Handle{}
	}
	link, err := in.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := in.AddrAdd(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		return fmt.Errorf("give %s its address: %w", name, err)
	}
	return in.LinkSetUp(link)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
