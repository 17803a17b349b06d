package portmap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// findRouter returns the default gateway of a machine in a private IPv4 network. A machine with a public address asks
// nobody: there is no NAT before it.
func findRouter() (router, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return router{}, fmt.Errorf("list routes: %w", err)
	}
	var best *netlink.Route
	for i, r := range routes {
		if isDefault(r) && r.Gw != nil && (best == nil || r.Priority < best.Priority) {
			best = &routes[i]
		}
	}
	if best == nil {
		return router{}, errors.New("there is no default gateway")
	}
	gateway, _ := netip.AddrFromSlice(best.Gw)
	way, err := netlink.RouteGet(best.Gw)
	if err != nil || len(way) == 0 {
		return router{}, fmt.Errorf("find the way to the default gateway %v: %w", gateway, err)
	}
	local, _ := netip.AddrFromSlice(way[0].Src)
	r := router{gateway.Unmap(), local.Unmap()}
	if !behindNAT(r.local) {
		return router{}, fmt.Errorf("the address %v is not private", r.local)
	}
	return r, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}
