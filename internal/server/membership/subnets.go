package membership

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// subnets are the address ranges of the cluster and the parts that are in use, in order:
// the subnets of nodes, the addresses of servers and the ranges of services. A node whose
// subnet contained the address of a server could not reach that server.
type subnets struct {
	range4, range6 netip.Prefix
	used4, used6   []netip.Prefix
}

func newSubnets(snap *state.Snapshot) (*subnets, error) {
	var s subnets
	var err error
	ranges := snap.Cluster().GetSpec()
	if s.range4, err = netip.ParsePrefix(ranges.GetRangeV4()); err != nil {
		return nil, fmt.Errorf("range of the cluster: %w", err)
	}
	if s.range6, err = netip.ParsePrefix(ranges.GetRangeV6()); err != nil {
		return nil, fmt.Errorf("range of the cluster: %w", err)
	}
	for n := range snap.Nodes("") {
		if p, err := netip.ParsePrefix(n.GetSpec().GetSubnetV4()); err == nil {
			s.used4 = append(s.used4, p)
		}
		if p, err := netip.ParsePrefix(n.GetSpec().GetSubnetV6()); err == nil {
			s.used6 = append(s.used6, p)
		}
	}
	for server := range snap.Servers("") {
		switch a, ok := hostAddress(server.GetSpec().GetAddress()); {
		case !ok:
		case a.Is4():
			s.used4 = append(s.used4, netip.PrefixFrom(a, a.BitLen()))
		default:
			s.used6 = append(s.used6, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if v4, v6 := spec.ServiceRanges(ranges); v4.IsValid() && v6.IsValid() {
		s.used4, s.used6 = append(s.used4, v4), append(s.used6, v6)
	}
	slices.SortFunc(s.used4, netip.Prefix.Compare)
	slices.SortFunc(s.used6, netip.Prefix.Compare)
	return &s, nil
}

// next allocates subnets that the machine does not use, if there are any. If the machine
// uses all of them, the new subnets are smaller than its networks, and routes to smaller
// networks win.
func (s *subnets) next(used []string) (v4, v6 netip.Prefix, err error) {
	foreign4, foreign6 := s.used4, s.used6
	for _, text := range used {
		switch p, err := netip.ParsePrefix(text); {
		case err != nil: // a malformed network cannot be avoided
		case p.Addr().Is4():
			foreign4 = append(slices.Clip(foreign4), p)
		default:
			foreign6 = append(slices.Clip(foreign6), p)
		}
	}
	for _, taken := range [][2][]netip.Prefix{{foreign4, foreign6}, {foreign4, s.used6}, {s.used4, foreign6}, {s.used4, s.used6}} {
		if v4, v6, err = ipam.NextSubnets(s.range4, s.range6, taken[0], taken[1]); !errors.Is(err, ipam.ErrExhausted) {
			break
		}
	}
	if err == nil {
		s.used4, s.used6 = insert(s.used4, v4), insert(s.used6, v6)
	}
	return v4, v6, err
}

func insert(all []netip.Prefix, one netip.Prefix) []netip.Prefix {
	at, _ := slices.BinarySearchFunc(all, one, netip.Prefix.Compare)
	return slices.Insert(all, at, one)
}
