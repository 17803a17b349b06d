package server

import (
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

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
