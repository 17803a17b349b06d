package network

import (
	"context"
	"net/netip"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// GetNetworkUsage counts the addresses of the cluster.
func (s *Service) GetNetworkUsage(ctx context.Context, _ *v1.GetNetworkUsageRequest) (*v1.NetworkUsage, error) {
	return usageOf(s.Store.Snapshot()), ctx.Err()
}

// usageOf counts the addresses that a state uses.
func usageOf(snap *state.Snapshot) *v1.NetworkUsage {
	cluster := snap.Cluster().GetSpec()
	services4, services6 := spec.ServiceRanges(cluster)
	var u v1.NetworkUsage
	subnets := map[netip.Prefix]bool{}
	for n := range snap.Nodes("") {
		u.Nodes = append(u.Nodes, nodeAddresses(snap, n))
		for _, text := range []string{n.GetSpec().GetSubnetV4(), n.GetSpec().GetSubnetV6()} {
			if p, err := netip.ParsePrefix(text); err == nil {
				subnets[p.Masked()] = true
			}
		}
	}
	for _, of := range []struct{ setting, value string }{{"rangeV4", cluster.GetRangeV4()}, {"rangeV6", cluster.GetRangeV6()}} {
		if all, err := netip.ParsePrefix(of.value); err == nil {
			r := nodeRange(all, subnets, services4, services6)
			r.Setting = of.setting
			u.Ranges = append(u.Ranges, r)
		}
	}
	addresses := map[netip.Addr]bool{}
	for s := range snap.Services("", "") {
		for _, text := range []string{s.GetStatus().GetAddressV4(), s.GetStatus().GetAddressV6()} {
			if a, err := netip.ParseAddr(text); err == nil {
				addresses[a] = true
			}
		}
	}
	for _, of := range []struct {
		setting string
		value   netip.Prefix
	}{{"serviceRangeV4", services4}, {"serviceRangeV6", services6}} {
		if of.value.IsValid() {
			r := serviceRange(of.value, addresses)
			r.Setting = of.setting
			u.Ranges = append(u.Ranges, r)
		}
	}
	return &u
}

// nodeRange counts the subnets of a range. Those that overlap the addresses of services are given to no node.
func nodeRange(all netip.Prefix, subnets map[netip.Prefix]bool, services ...netip.Prefix) *v1.RangeUsage {
	r := &v1.RangeUsage{Use: "nodes", Range: all.String(), Unit: "subnets"}
	for p := range subnets {
		if all.Overlaps(p) {
			r.Used++
		}
	}
	r.Free = int64(ipam.Subnets(all)) - r.Used
	for _, s := range services {
		if s.IsValid() && all.Overlaps(s) {
			r.Free -= int64(ipam.Subnets(s))
		}
	}
	r.Free = max(r.Free, 0)
	return r
}

// serviceRange counts the addresses of a range.
func serviceRange(all netip.Prefix, addresses map[netip.Addr]bool) *v1.RangeUsage {
	r := &v1.RangeUsage{Use: "services", Range: all.String(), Unit: "addresses"}
	for a := range addresses {
		if all.Contains(a) {
			r.Used++
		}
	}
	r.Free = max(int64(ipam.Addresses(all))-r.Used, 0)
	return r
}

// nodeAddresses counts the replicas that have addresses on a node. A replica has one of each family.
func nodeAddresses(snap *state.Snapshot, n *v1.Node) *v1.NodeAddresses {
	a := &v1.NodeAddresses{Node: n.GetMetadata().GetName(), SubnetV4: n.GetSpec().GetSubnetV4(), SubnetV6: n.GetSpec().GetSubnetV6()}
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if len(r.GetStatus().GetAddresses()) > 0 && spec.Live(r.GetStatus().GetPhase()) {
			a.Used++
		}
	}
	if p, err := netip.ParsePrefix(a.GetSubnetV4()); err == nil {
		a.Free = max(int64(ipam.Replicas(p))-a.Used, 0)
	}
	return a
}
