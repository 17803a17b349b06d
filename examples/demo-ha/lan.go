package main

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

// lan is a bridge in a network namespace of its own, with machines connected to it. It
// is isolated from the networks of this machine.
type lan struct {
	name  string
	undos []func() error
}

const (
	hub      = "desk" // the machine of the person
	hubIP    = "10.77.0.100"
	netBits  = "/24"
	linkName = "eth0"
)

func newLAN(ctx context.Context) (*lan, error) {
	l := &lan{name: fmt.Sprintf("demo-ha-%d", os.Getpid())}
	err := l.addSpace(ctx, hub)
	for _, step := range [][]string{
		{"link", "add", "lan", "type", "bridge"},
		{"addr", "add", hubIP + netBits, "dev", "lan"},
		{"link", "set", "lan", "up"},
	} {
		if err == nil {
			err = ip(ctx, append([]string{"-n", l.space(hub)}, step...)...)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lan) space(machine string) string { return l.name + "-" + machine }

func (l *lan) path(machine string) string { return "/run/netns/" + l.space(machine) }

func (l *lan) addSpace(ctx context.Context, machine string) error {
	space := l.space(machine)
	if err := ip(ctx, "netns", "add", space); err != nil {
		return err
	}
	l.undos = append(l.undos, func() error { return ip(context.Background(), "netns", "del", space) })
	return ip(ctx, "-n", space, "link", "set", "lo", "up")
}

// plug connects a machine with an address.
func (l *lan) plug(ctx context.Context, machine, address string) error {
	if err := l.addSpace(ctx, machine); err != nil {
		return err
	}
	for _, step := range [][]string{
		{"-n", l.space(hub), "link", "add", machine, "master", "lan", "type", "veth", "peer", "name", linkName, "netns", l.space(machine)},
		{"-n", l.space(hub), "link", "set", machine, "up"},
		{"-n", l.space(machine), "addr", "add", address + netBits, "dev", linkName},
		{"-n", l.space(machine), "link", "set", linkName, "up"},
	} {
		if err := ip(ctx, step...); err != nil {
			return err
		}
	}
	return nil
}

// cable disconnects a machine or connects it again.
func (l *lan) cable(ctx context.Context, machine, upOrDown string) error {
	return ip(ctx, "-n", l.space(hub), "link", "set", machine, upOrDown)
}

// dial connects from the person's machine.
func (l *lan) dial(ctx context.Context, network, address string) (net.Conn, error) {
	runtime.LockOSThread() // stays locked if switching back fails, so that the thread ends with its goroutine
	home, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer home.Close()
	there, err := netns.GetFromPath(l.path(hub))
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

func (l *lan) close() error {
	var failures []error
	for len(l.undos) > 0 {
		last := len(l.undos) - 1
		failures = append(failures, l.undos[last]())
		l.undos = l.undos[:last]
	}
	return errors.Join(failures...)
}

func ip(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "ip", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
