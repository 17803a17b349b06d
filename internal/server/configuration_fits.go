package server

import (
	"fmt"
	"net/netip"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// fits refuses a configuration that the current cluster would violate. Settings that stay
// the same are not checked.
func fits(snap *state.Snapshot, where membership.Hosts, before, after *v1.ClusterSpec) error {
	broken := &spec.Error{}
	refuse := func(field, format string, args ...any) {
		broken.Violations = append(broken.Violations, spec.Violation{Field: "spec.cluster." + field, Message: fmt.Sprintf(format, args...)})
	}
	if before.GetRangeV4() != after.GetRangeV4() {
		rangeFits(snap, where, "rangeV4", after.GetRangeV4(), refuse)
	}
	if before.GetRangeV6() != after.GetRangeV6() {
		rangeFits(snap, where, "rangeV6", after.GetRangeV6(), refuse)
	}
	if have := snap.Count(state.KindNode); have > spec.MostNodes(after) {
		refuse("limits.nodes", "must be at least %d, because so many nodes are there: remove nodes first, or allow more", have)
	}
	if have := snap.Count(state.KindWorkload); have > spec.MostWorkloads(after) {
		refuse("limits.workloads", "must be at least %d, because so many workloads are there: delete some first, or allow more", have)
	}
	if most := spec.MostReplicas(after); most < spec.MostReplicas(before) {
		for w := range snap.Workloads("", "") {
			if have := int(spec.Size(w.GetSpec())); have > most {
				refuse("limits.replicasPerWorkload", "must be at least %d, because workload %s has so many replicas: scale it down first, or allow more", have, state.Path(w))
				break
			}
		}
	}
	reservedFits(snap, before, after, refuse)
	if len(broken.Violations) > 0 {
		return broken
	}
	return nil
}

// rangeFits refuses a range that is too small for the existing nodes, or that contains the
// address of one of the cluster's own machines: traffic to it would end at a node's
// containers. The subnets of existing nodes need no check, inside the range or not: new
// subnets avoid them.
func rangeFits(snap *state.Snapshot, where membership.Hosts, field, text string, refuse func(field, format string, args ...any)) {
	all, err := netip.ParsePrefix(text)
	if err != nil {
		refuse(field, "is not a range of addresses: %s", err)
		return
	}
	if have := snap.Count(state.KindNode); spec.NodesIn(all) < have {
		refuse(field, "has room for %d nodes, and %d are there: give a larger range", spec.NodesIn(all), have)
	}
	for server := range snap.Servers("") {
		if a, inside := where.In(all, server.GetSpec().GetAddress()); inside {
			refuse(field, "contains %s, the address of server %s: give a range that none of the cluster's machines has an address in", a, server.GetMetadata().GetName())
			return
		}
	}
	subnets := subnetsOf(snap)
	for node := range snap.Nodes("") {
		for _, i := range node.GetStatus().GetInterfaces() {
			for _, address := range i.GetAddresses() {
				p, err := netip.ParsePrefix(address)
				if err != nil || !p.Overlaps(all) || within(p.Addr(), subnets) {
					continue
				}
				refuse(field, "overlaps %s, the network of %s on node %s: give a range that none of the cluster's machines has an address in",
					p.Masked(), i.GetName(), node.GetMetadata().GetName())
				return
			}
		}
	}
}

// subnetsOf returns the subnets that nodes use for their replicas.
func subnetsOf(snap *state.Snapshot) []netip.Prefix {
	var all []netip.Prefix
	for node := range snap.Nodes("") {
		for _, text := range []string{node.GetSpec().GetSubnetV4(), node.GetSpec().GetSubnetV6()} {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p)
			}
		}
	}
	return all
}

func within(a netip.Addr, subnets []netip.Prefix) bool {
	for _, p := range subnets {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
