package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/nodenet"
)

// readInterfaces returns every network interface but loopback and those of the node's own
// network, which come and go with replicas. The order is stable, so that two lists can be
// compared.
func readInterfaces() ([]*v1.Interface, error) {
	found, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var list []*v1.Interface
	for _, i := range found {
		if i.Flags&net.FlagLoopback != 0 || nodenet.Own(i.Name) {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			continue // it was removed since we listed it
		}
		described := &v1.Interface{
			Name: i.Name,
			Mac:  i.HardwareAddr.String(),
			Mtu:  int32(i.MTU),
			Up:   i.Flags&net.FlagUp != 0,
		}
		for _, address := range addresses {
			described.Addresses = append(described.Addresses, address.String())
		}
		slices.Sort(described.Addresses)
		list = append(list, described)
	}
	slices.SortFunc(list, func(a, b *v1.Interface) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Addresses are those of the interfaces that are connected.
func (m *Machine) Addresses() ([]netip.Addr, error) {
	found, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var list []netip.Addr
	for _, i := range found {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagRunning == 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			continue // it was removed since we listed it
		}
		for _, address := range addresses {
			if p, err := netip.ParsePrefix(address.String()); err == nil {
				list = append(list, p.Addr().Unmap())
			}
		}
	}
	return list, nil
}

// settle is how long a burst of changes is collected: a new interface gets its flags and
// addresses one by one.
const settle = 20 * time.Millisecond

// Watch calls changed once it is watching, and then shortly after an interface, an
// address or a default route has changed, until ctx ends. It fails when the kernel stops sending events, for
// example because there were too many. The first call of the next Watch covers what was
// missed.
func (m *Machine) Watch(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	links := make(chan netlink.LinkUpdate, 16)
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return fmt.Errorf("watch network interfaces: %w", err)
	}
	addresses := make(chan netlink.AddrUpdate, 16)
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		close(done)
		drain(links)
		return fmt.Errorf("watch network addresses: %w", err)
	}
	routes := make(chan netlink.RouteUpdate, 16)
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		close(done)
		drain(links)
		drain(addresses)
		return fmt.Errorf("watch routes: %w", err)
	}
	changed()
	err := forward(ctx, links, addresses, routes, changed)
	close(done)
	drain(links)
	drain(addresses)
	drain(routes)
	return err
}

// isDefault reports whether a route is for all addresses.
func isDefault(to *net.IPNet) bool {
	if to == nil {
		return true
	}
	bits, _ := to.Mask.Size()
	return bits == 0
}

// drain returns when the sender has ended, which may be in the middle of a send.
func drain[T any](ch <-chan T) {
	for range ch {
	}
}

func forward(ctx context.Context, links <-chan netlink.LinkUpdate, addresses <-chan netlink.AddrUpdate, routes <-chan netlink.RouteUpdate, changed func()) error {
	var settled <-chan time.Time // nil while there is nothing to report
	for {
		open := true
		select {
		case <-ctx.Done():
			return nil
		case <-settled:
			settled = nil
			changed()
			continue
		case update, received := <-links:
			if open = received; open && nodenet.Own(update.Attrs().Name) {
				continue
			}
		case _, open = <-addresses:
		case update, received := <-routes:
			if open = received; open && !isDefault(update.Dst) {
				continue
			}
		}
		if !open {
			return errors.New("watch network interfaces: the kernel closed the subscription")
		}
		if settled == nil { // continuous changes must not postpone it forever
			settled = time.After(settle)
		}
	}
}
