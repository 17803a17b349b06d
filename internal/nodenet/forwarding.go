package nodenet

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What the kernel forwards:
//
// IPv4 forwards a packet if conf/IFACE/forwarding is set for the interface on which it came in. The setting ip_forward
// only writes that of all interfaces. We set it for our bridge, for the mesh and for uplinks, because clients of
// published ports and answers to replicas come in there.
//
// IPv6 forwards if conf/all/forwarding is set. conf/IFACE/forwarding only makes the machine behave as a router there,
// such as that it does not listen to routers. Since Linux 6.17 conf/IFACE/force_forwarding forwards what comes in on one
// interface and changes nothing else. Older kernels have only the setting for all: there, every interface forwards.
//
// An uplink that forwards would also carry packets between networks that have nothing to do with us. So the rules drop
// what comes in on an interface that forwards only because of us, unless it concerns a cloud. Once somebody has turned
// forwarding on for the whole machine, as Docker and libvirt do, that is not our business. On older kernels we see that
// only if it happened before us, or at the next check if the setting for all has another value than ours, such as 2.

const (
	forceForwarding = "force_forwarding"
	forwardingIPv6  = "ipv6/conf/all/forwarding"
)

// opened are interfaces that forward only because of us.
type opened struct {
	all   bool // every interface, also one that appears later
	links []string
}

// forwardPackets lets packets pass between replicas and the world, and returns the interfaces that forward only
// because of us, by the suffix of the family.
func (n *Network) forwardPackets() (map[string]opened, error) {
	uplinks, err := uplinks()
	if err != nil {
		return nil, err
	}
	// The kernel sends redirects if an interface or "all" says so. Ours must not: replicas that talk to each other could not
	// follow them, and they use up the limit of other ICMP messages. Other interfaces keep their own setting.
	if err := n.change("ipv4/conf/all/send_redirects", "0"); err != nil {
		return nil, err
	}
	found := map[string]opened{}
	for _, name := range n.insideLinks() {
		// With the second one, 127.0.0.1 of the machine leads to replicas, and their answers back.
		for _, setting := range []string{"forwarding", "route_localnet"} {
			if _, err := setSetting("ipv4/conf/"+name+"/"+setting, "1"); err != nil {
				return nil, err
			}
		}
	}
	if found[ipv4.suffix], err = n.openUplinks("ipv4", "forwarding", uplinks[ipv4.suffix]); err != nil || !n.ipv6 {
		return found, err
	}
	if _, err := readSetting("ipv6/conf/all/" + forceForwarding); err != nil || n.opts.noForceForwarding {
		found[ipv6.suffix], err = n.forwardAllIPv6()
		return found, err
	}
	for _, name := range n.insideLinks() {
		if _, err := setSetting("ipv6/conf/"+name+"/"+forceForwarding, "1"); err != nil {
			return nil, err
		}
	}
	found[ipv6.suffix], err = n.openUplinks("ipv6", forceForwarding, uplinks[ipv6.suffix])
	return found, err
}

// insideLinks are our interfaces that exist.
func (n *Network) insideLinks() []string {
	names := []string{n.opts.bridge()}
	if n.opts.Mesh != "" {
		if _, err := netlink.LinkByName(n.opts.Mesh); err == nil {
			names = append(names, n.opts.Mesh)
		}
	}
	return names
}

// openUplinks makes uplinks forward, and returns those that do so only because of us.
func (n *Network) openUplinks(family, name string, links []string) (opened, error) {
	var found opened
	for _, link := range links {
		setting := family + "/conf/" + link + "/" + name
		if err := n.change(setting, "1"); errors.Is(err, fs.ErrNotExist) {
			continue // the interface has gone
		} else if err != nil {
			return opened{}, err
		}
		if n.opts.changedSetting(setting) {
			found.links = append(found.links, link)
		}
	}
	if all, err := readSetting(family + "/conf/all/forwarding"); err == nil && all != "0" {
		return opened{}, nil
	}
	return found, nil
}

// changedSetting reports whether we have changed a setting.
func (o *Options) changedSetting(name string) bool {
	dir, err := o.settingsDir()
	if err != nil {
		return false
	}
	data, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(name, "/", ",")))
	var s setting
	return err == nil && json.Unmarshal(data, &s) == nil && s.Before == "0"
}

// uplinks are the interfaces with global addresses or a default route that no cloud owns, by the suffix of the family.
func uplinks() (map[string][]string, error) {
	links, err := retry(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		if a := l.Attrs(); !Own(a.Name) && a.Flags&unix.IFF_LOOPBACK == 0 {
			names[a.Index] = a.Name
		}
	}
	found := map[string][]string{}
	add := func(family, index int) {
		suffix := ipv4.suffix
		if family == netlink.FAMILY_V6 {
			suffix = ipv6.suffix
		}
		if name := names[index]; name != "" && !slices.Contains(found[suffix], name) {
			found[suffix] = append(found[suffix], name)
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addrs, err := retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family) })
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if p, ok := prefixOf(a.IPNet); ok && !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsLoopback() {
				add(family, a.LinkIndex)
			}
		}
		routes, err := retry(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if p, ok := prefixOf(r.Dst); r.Dst == nil || ok && p.Bits() == 0 {
				add(family, r.LinkIndex)
			}
		}
	}
	for _, list := range found {
		slices.Sort(list)
	}
	return found, nil
}

// forwardAllIPv6 makes the machine a router. A machine that learns its own addresses from routers must keep doing so,
// which routers do not by default.
func (n *Network) forwardAllIPv6() (opened, error) {
	now, err := readSetting(forwardingIPv6)
	if err != nil {
		return opened{}, err
	}
	if now == "0" {
		if err := n.keepListeningToRouters(); err != nil {
			return opened{}, err
		}
		now = "1"
		if err := n.change(forwardingIPv6, now); err != nil {
			return opened{}, err
		}
	}
	return opened{all: now == "1" && n.opts.changedSetting(forwardingIPv6)}, nil
}

func (n *Network) keepListeningToRouters() error {
	listening, err := filepath.Glob(settingsRoot + "ipv6/conf/*/accept_ra")
	if err != nil {
		return err
	}
	for _, path := range listening {
		name := strings.TrimPrefix(path, settingsRoot)
		if value, err := readSetting(name); err != nil || value != "1" || strings.Contains(name, "/all/") {
			continue
		}
		if err := n.change(name, "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
