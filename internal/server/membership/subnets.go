package membership

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/server/core"
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

// clusterRange is a range of the cluster, and the setting that it comes from.
type clusterRange struct {
	netip.Prefix
	use, setting string
}

// checkNetworks refuses a machine with a network inside of the cluster's ranges: it could not reach services or replicas
// with these addresses. A larger network is no obstacle, because routes to smaller ones win.
func checkNetworks(snap *state.Snapshot, networks []*v1.UsedNetwork) error {
	ranges := rangesOf(snap)
	for _, network := range networks {
		p, err := netip.ParsePrefix(network.GetRange())
		if err != nil {
			continue
		}
		for _, r := range ranges {
			if p.Overlaps(r.Prefix) && p.Bits() >= r.Bits() {
				return core.Refuse(codes.FailedPrecondition, "interface %s of this machine leads to %s, inside of %s, the range of the cluster's %s: give the interface other addresses, or choose another range with: cloudless cluster config set %s=RANGE, and try again",
					network.GetInterface(), p, r.Prefix, r.use, r.setting)
			}
		}
	}
	return nil
}

// rangesOf are the ranges of services, which may be inside of that of the nodes, and then those of the nodes.
func rangesOf(snap *state.Snapshot) (all []clusterRange) {
	add := func(text, use, setting string) {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, clusterRange{p, use, setting})
		}
	}
	c := snap.Cluster().GetSpec()
	services4, services6 := spec.ServiceRanges(c)
	add(services4.String(), "services", "serviceRangeV4")
	add(services6.String(), "services", "serviceRangeV6")
	add(c.GetRangeV4(), "nodes", "rangeV4")
	add(c.GetRangeV6(), "nodes", "rangeV6")
	return all
}
