package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// yard is a network namespace in which machines can vanish: each simulated one has its own
// address there, and packets from and to those that are gone are dropped, as after a power
// loss. It ends with its handle and the processes in it.
type yard struct{ space netns.NsHandle }

// yardRules silently drop packets of machines that are gone.
const yardRules = `table inet yard {
	set gone { type ipv4_addr; }
	chain in { type filter hook input priority 0; ip saddr @gone drop; ip daddr @gone drop; }
	chain out { type filter hook output priority 0; ip saddr @gone drop; ip daddr @gone drop; }
}
`

func newYard(ctx context.Context) (_ *yard, err error) {
	y := &yard{}
	if y.space, err = newNamespace(); err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, y.close())
		}
	}()
	in, err := netlink.NewHandleAt(y.space)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	lo, err := in.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := in.LinkSetUp(lo); err != nil {
		return nil, err
	}
	return y, y.nft(ctx, yardRules)
}

func (y *yard) close() error { return y.space.Close() }

func newNamespace() (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return netns.None(), err
	}
	defer home.Close()
	space, err := netns.New() // and moves this thread there
	if err != nil {
		return netns.None(), err
	}
	if err := netns.Set(home); err != nil {
		return netns.None(), errors.Join(err, space.Close())
	}
	return space, nil
}

// inside calls f on a thread in the namespace: what f starts or opens is there.
func (y *yard) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(y.space); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// dial connects to an address in the namespace.
func (y *yard) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = y.inside(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

func (y *yard) nft(ctx context.Context, rules string) error {
	return y.inside(func() error {
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w\n%s", err, out)
		}
		return nil
	})
}

// vanish makes machines unreachable: they neither send nor receive.
func (y *yard) vanish(ctx context.Context, addresses []string) error {
	return y.nft(ctx, "add element inet yard gone { "+strings.Join(addresses, ", ")+" }\n")
}
