package server

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ipam"
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
	was4, was6 := spec.ServiceRanges(before)
	if was4.String() != after.GetServiceRangeV4() {
		serviceRangeFits(snap, where, "serviceRangeV4", after.GetServiceRangeV4(), refuse)
	}
	if was6.String() != after.GetServiceRangeV6() {
		serviceRangeFits(snap, where, "serviceRangeV6", after.GetServiceRangeV6(), refuse)
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
	ingressFits(snap, before, after, refuse)
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
	outsideMachines(snap, where, field, all, refuse)
}

// serviceRangeFits refuses a range for services that is too small for the existing ones, or that overlaps the subnet of
// a node or the address of a machine. Existing services keep their addresses, inside the range or not.
func serviceRangeFits(snap *state.Snapshot, where membership.Hosts, field, text string, refuse func(field, format string, args ...any)) {
	all, err := netip.ParsePrefix(text)
	if err != nil {
		refuse(field, "is not a range of addresses: %s", err)
		return
	}
	if have := uint64(snap.Count(state.KindService)); ipam.Addresses(all) < have {
		refuse(field, "has room for %d services, and %d are there: give a larger range", ipam.Addresses(all), have)
	}
	for node := range snap.Nodes("") {
		for _, text := range []string{node.GetSpec().GetSubnetV4(), node.GetSpec().GetSubnetV6()} {
			if p, err := netip.ParsePrefix(text); err == nil && p.Overlaps(all) {
				refuse(field, "overlaps %s, the subnet of node %s: give a range outside of the nodes' subnets", p, node.GetMetadata().GetName())
				return
			}
		}
	}
	outsideMachines(snap, where, field, all, refuse)
}

// outsideMachines refuses a range that contains the address of one of the cluster's own machines.
func outsideMachines(snap *state.Snapshot, where membership.Hosts, field string, all netip.Prefix, refuse func(field, format string, args ...any)) {
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

// reservable are the resources that nodes reserve for the system.
var reservable = []struct {
	name     string
	capacity func(*v1.Node) string
	percent  func(*v1.Overcommit) int32
	reserved func(*v1.ResourceAmounts) string
	parse    func(string) (int64, error)
	format   func(int64) string
}{
	{"cpu", func(n *v1.Node) string { return n.GetStatus().GetCapacity().GetCpu() }, (*v1.Overcommit).GetCpu, (*v1.ResourceAmounts).GetCpu, spec.ParseCPU, spec.FormatCPU},
	{"memory", func(n *v1.Node) string { return n.GetStatus().GetCapacity().GetMemory() }, (*v1.Overcommit).GetMemory, (*v1.ResourceAmounts).GetMemory, spec.ParseBytes, spec.HumanBytes},
	{"disk", func(n *v1.Node) string { return n.GetStatus().GetCapacity().GetDisk() }, (*v1.Overcommit).GetDisk, (*v1.ResourceAmounts).GetDisk, spec.ParseBytes, spec.HumanBytes},
	{"bandwidth", spec.LinkOf, (*v1.Overcommit).GetBandwidth, (*v1.ResourceAmounts).GetBandwidth, spec.ParseBandwidth, spec.FormatBandwidth},
}

// reservedFits refuses a configuration that would leave a ready node nothing to promise of
// a resource, if the node can promise some of it now. It names one such node for each
// resource.
func reservedFits(snap *state.Snapshot, before, after *v1.ClusterSpec, refuse func(field, format string, args ...any)) {
	blamed := map[string]bool{}
	for n := range snap.Nodes("") {
		if n.GetStatus().GetState() != spec.NodeReady {
			continue
		}
		was, is := spec.NodePolicyOf(before, n), spec.NodePolicyOf(after, n)
		for _, r := range reservable {
			capacity, err := r.parse(r.capacity(n))
			if err != nil || blamed[r.name] {
				continue // unknown, or already refused
			}
			left := func(p spec.NodePolicy) int64 {
				kept, _ := r.parse(r.reserved(p.Reserved)) // empty or valid
				return promised(capacity, r.percent(p.Overcommit)) - kept
			}
			if left(was) <= 0 || left(is) > 0 {
				continue
			}
			blamed[r.name] = true
			field, class := "reserved."+r.name, spec.NodeClassOf(after, n)
			if r.reserved(class.GetReserved()) != "" {
				field = fmt.Sprintf("nodeClasses[%d].%s", slices.Index(after.GetNodeClasses(), class), field)
			}
			refuse(field, "would leave nothing to promise on node %s, which has %s of which the system would keep %s; keep less, or put the node into a class with a reserved.%s of its own",
				n.GetMetadata().GetName(), r.format(promised(capacity, r.percent(is.Overcommit))), r.reserved(is.Reserved), r.name)
		}
	}
}

// promised is how much of a capacity may be promised, before the reservation for the
// system.
func promised(capacity int64, percent int32) int64 {
	if percent == 0 {
		return capacity
	}
	return capacity/100*int64(percent) + capacity%100*int64(percent)/100
}
