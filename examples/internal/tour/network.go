package tour

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
)

// Network is machines and routers, each a network namespace. It is isolated from the networks of this machine.
type Network struct {
	name  string
	undos []func() error
}

const (
	linkName   = "eth0" // how every machine calls its interface
	switchName = "lan"  // how every router calls its own network
)

func newNetwork(demo string) *Network { return &Network{name: fmt.Sprintf("%s-%d", demo, os.Getpid())} }

func (n *Network) space(machine string) string { return n.name + "-" + machine }

func (n *Network) path(machine string) string { return "/run/netns/" + n.space(machine) }

func (n *Network) addSpace(ctx context.Context, machine string) error {
	space := n.space(machine)
	if err := ip(ctx, "netns", "add", space); err != nil {
		return err
	}
	n.undos = append(n.undos, func() error { return ip(context.Background(), "netns", "del", space) })
	return ip(ctx, "-n", space, "link", "set", "lo", "up")
}

// AddSwitch adds a machine that other machines can be plugged into. The address has a prefix length.
func (n *Network) AddSwitch(ctx context.Context, name, address string) error {
	if err := n.addSpace(ctx, name); err != nil {
		return err
	}
	return n.addBridge(ctx, name, address)
}

func (n *Network) addBridge(ctx context.Context, name, address string) error {
	return all(ctx,
		[]string{"-n", n.space(name), "link", "add", switchName, "type", "bridge"},
		[]string{"-n", n.space(name), "addr", "add", address, "dev", switchName},
		[]string{"-n", n.space(name), "link", "set", switchName, "up"})
}

// Plug adds a machine and connects it to a switch. The address has a prefix length.
func (n *Network) Plug(ctx context.Context, machine, into, address string) error {
	if err := n.addSpace(ctx, machine); err != nil {
		return err
	}
	return all(ctx,
		[]string{"-n", n.space(into), "link", "add", machine, "master", switchName, "type", "veth", "peer", "name", linkName, "netns", n.space(machine)},
		[]string{"-n", n.space(into), "link", "set", machine, "up"},
		[]string{"-n", n.space(machine), "addr", "add", address, "dev", linkName},
		[]string{"-n", n.space(machine), "link", "set", linkName, "up"})
}

// AddRouter adds a router with a private network of its own, which it hides from the network that it is plugged into, as
// routers at home do. Both addresses have a prefix length.
func (n *Network) AddRouter(ctx context.Context, router, into, public, private string) error {
	if err := n.Plug(ctx, router, into, public); err != nil {
		return err
	}
	if err := n.addBridge(ctx, router, private); err != nil {
		return err
	}
	if err := n.In(ctx, router, "sysctl", "-qw", "net.ipv4.ip_forward=1"); err != nil {
		return err
	}
	return n.In(ctx, router, "nft", "add table inet nat; "+
		"add chain inet nat out { type nat hook postrouting priority 100; }; add rule inet nat out oifname "+linkName+" masquerade; "+
		"add chain inet nat in { type filter hook input priority 0; }; add rule inet nat in iifname "+linkName+" ct state new drop; "+
		"add chain inet nat through { type filter hook forward priority 0; }; add rule inet nat through iifname "+linkName+" ct state new drop")
}

// PlugBehind adds a machine to the private network of a router.
func (n *Network) PlugBehind(ctx context.Context, machine, router, address, gateway string) error {
	if err := n.Plug(ctx, machine, router, address); err != nil {
		return err
	}
	return ip(ctx, "-n", n.space(machine), "route", "add", "default", "via", gateway)
}

// Cable connects a machine to its switch ("up") or disconnects it ("down").
func (n *Network) Cable(ctx context.Context, machine, upOrDown, from string) error {
	return ip(ctx, "-n", n.space(from), "link", "set", machine, upOrDown)
}

// In runs a program on a machine.
func (n *Network) In(ctx context.Context, machine, name string, args ...string) error {
	return command(ctx, "nsenter", append([]string{"--net=" + n.path(machine), name}, args...)...)
}

// dialer returns a function that connects from a machine.
func (n *Network) dialer(machine string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		runtime.LockOSThread() // stays locked if switching back fails, so that the thread ends with its goroutine
		home, err := netns.Get()
		if err != nil {
			return nil, err
		}
		defer home.Close()
		there, err := netns.GetFromPath(n.path(machine))
		if err != nil {
			return nil, err
		}
		defer there.Close()
		if err := netns.Set(there); err != nil {
			return nil, err
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if back := netns.Set(home); back != nil {
			return nil, errors.Join(err, back)
		}
		runtime.UnlockOSThread()
		return conn, err
	}
}

func (n *Network) close() error {
	var failures []error
	for len(n.undos) > 0 {
		last := len(n.undos) - 1
		failures = append(failures, n.undos[last]())
		n.undos = n.undos[:last]
	}
	return errors.Join(failures...)
}

// all runs ip once for each step, until one fails.
func all(ctx context.Context, steps ...[]string) error {
	for _, step := range steps {
		if err := ip(ctx, step...); err != nil {
			return err
		}
	}
	return nil
}

func ip(ctx context.Context, args ...string) error { return command(ctx, "ip", args...) }

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
