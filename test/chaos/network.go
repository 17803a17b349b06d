package chaos

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// clientsAddress is where the clients of the test are: on the bridge itself.
const clientsAddress = "10.77.0.254"

// network is a bridge with the machines on it. While a pair is cut, the bridge silently
// drops what one address sends to the other.
type network struct {
	bridge *netlink.Bridge
	wires  []netlink.Link

	mu   sync.Mutex
	cuts map[pair]int // how many faults want the pair to be cut
}

// pair is one direction between two addresses.
type pair struct{ from, to string }

func newNetwork() (*network, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "chaos"
	n := &network{bridge: &netlink.Bridge{LinkAttrs: attrs}, cuts: map[pair]int{}}
	if err := netlink.LinkAdd(n.bridge); err != nil {
		return nil, fmt.Errorf("make a bridge: %w", err)
	}
	if err := bringUp(&netlink.Handle{}, "chaos", clientsAddress); err != nil {
		return nil, err
	}
	return n, nft(`
		table bridge chaos {
			set cut { type ipv4_addr . ipv4_addr; }
			chain through { type filter hook forward priority 0; ip saddr . ip daddr @cut drop; }
			chain in { type filter hook input priority 0; ip saddr . ip daddr @cut drop; }
			chain out { type filter hook output priority 0; ip saddr . ip daddr @cut drop; }
		}`)
}

// close removes the bridge and what is attached to it.
func (n *network) close() {
	for _, wire := range n.wires {
		_ = netlink.LinkDel(wire) // it may have gone with its namespace
	}
	_ = netlink.LinkDel(n.bridge)
	_ = nft("delete table bridge chaos")
}

// attach creates a namespace with an address on the bridge.
func (n *network) attach(name, address string) (netns.NsHandle, error) {
	space, err := newNamespace()
	if err != nil {
		return netns.None(), fmt.Errorf("make a namespace for %s: %w", name, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = name, n.bridge.Attrs().Index
	wire := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(space)}
	if err := netlink.LinkAdd(wire); err != nil {
		return space, fmt.Errorf("connect %s: %w", name, err)
	}
	n.wires = append(n.wires, wire)
	if err := netlink.LinkSetUp(wire); err != nil {
		return space, err
	}
	in, err := netlink.NewHandleAt(space)
	if err != nil {
		return space, err
	}
	defer in.Close()
	return space, errors.Join(bringUp(in, "lo", ""), bringUp(in, "eth0", address))
}

// newNamespace leaves the calling thread where it was.
func newNamespace() (netns.NsHandle, error) {
	var made netns.NsHandle
	err := onThread(func() (err error) {
		made, err = netns.New() // and moves this thread there
		return err
	})
	return made, err
}

// within runs f on a thread that is in a namespace.
func within(space netns.NsHandle, f func() error) error {
	return onThread(func() error {
		if err := netns.Set(space); err != nil {
			return err
		}
		return f()
	})
}

// onThread runs f, which may change the namespace of its thread.
func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	err = f()
	return errors.Join(err, netns.Set(home))
}

func bringUp(in *netlink.Handle, name, address string) error {
	link, err := in.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if address != "" {
		whole := &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(24, 32)}
		if err := in.AddrAdd(link, &netlink.Addr{IPNet: whole}); err != nil {
			return fmt.Errorf("give %s the address %s: %w", name, address, err)
		}
	}
	return in.LinkSetUp(link)
}

// cut drops packets of the pairs until heal is called as often.
func (n *network) cut(pairs []pair) error { return n.change("add", pairs, +1) }

func (n *network) heal(pairs []pair) error { return n.change("delete", pairs, -1) }

func (n *network) change(verb string, pairs []pair, by int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var changed []string
	for _, p := range pairs {
		before := n.cuts[p]
		n.cuts[p] = before + by
		if before == 0 || before+by == 0 {
			changed = append(changed, p.from+" . "+p.to)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return nft(verb + " element bridge chaos cut { " + strings.Join(changed, ", ") + " }")
}

func nft(commands string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s", err, out)
	}
	return nil
}

// both are the two directions between each of some addresses and each of others.
func both(some, others []string) []pair { return append(oneWay(some, others), oneWay(others, some)...) }

func oneWay(from, to []string) (pairs []pair) {
	for _, f := range from {
		for _, t := range to {
			if f != t {
				pairs = append(pairs, pair{f, t})
			}
		}
	}
	return pairs
}
