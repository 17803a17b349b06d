package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/internal/spec"
)

// A filter decides whether a node may take a replica. Whether it passes is
// asked for every node and must be cheap; why not only for what stays unplaced.
type filter interface {
	name() string
	passes(n *view, r *Requirements) bool
	// explain continues the node's name in words for a user. It is asked only
	// about a node that does not pass.
	explain(n *view, r *Requirements) string
}

// filters are asked in this order: what a user can change least comes first.
var filters = []filter{ready{}, driver{}, labels{}, fit{}, ports{}}

func passesAll(n *view, r *Requirements) bool {
	for _, f := range filters {
		if !f.passes(n, r) {
			return false
		}
	}
	return true
}

// refusals are the explanations of all filters that refuse a node.
func refusals(n *view, r *Requirements) []Refusal {
	var all []Refusal
	for _, f := range filters {
		if !f.passes(n, r) {
			all = append(all, Refusal{Filter: f.name(), Reason: f.explain(n, r)})
		}
	}
	return all
}

// ready refuses nodes that take nothing at all.
type ready struct{}

func (ready) name() string                            { return "ready" }
func (ready) passes(n *view, _ *Requirements) bool    { return n.Unschedulable == "" }
func (ready) explain(n *view, _ *Requirements) string { return n.Unschedulable }

// driver refuses nodes that cannot run this sort of workload.
type driver struct{}

func (driver) name() string { return "driver" }

func (driver) passes(n *view, r *Requirements) bool {
	return r.Driver == "" || slices.Contains(n.Drivers, r.Driver)
}

func (driver) explain(n *view, r *Requirements) string {
	if len(n.Drivers) == 0 {
		return fmt.Sprintf("driver %s is not there; it has none", r.Driver)
	}
	return fmt.Sprintf("driver %s is not there; it has %s", r.Driver, strings.Join(slices.Sorted(slices.Values(n.Drivers)), ", "))
}

// labels refuses nodes without the labels that the placement asks for.
type labels struct{}

func (labels) name() string { return "labels" }

func (labels) passes(n *view, r *Requirements) bool {
	for key, want := range r.Labels {
		if got, ok := n.Labels[key]; !ok || got != want {
			return false
		}
	}
	return true
}

func (labels) explain(n *view, r *Requirements) string {
	var reasons []string
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		got, ok := n.Labels[key]
		switch {
		case !ok:
			reasons = append(reasons, fmt.Sprintf("label %s=%s is missing", key, r.Labels[key]))
		case got != r.Labels[key]:
			reasons = append(reasons, fmt.Sprintf("label %s is %s, not %s", key, got, r.Labels[key]))
		}
	}
	return strings.Join(reasons, ", ")
}

// fit refuses nodes without enough CPU or memory left. What needs none fits
// anywhere, also where too much has been promised already.
type fit struct{}

func (fit) name() string { return "fit" }

func (fit) passes(n *view, r *Requirements) bool {
	free := n.free()
	return (r.Resources.CPU <= 0 || r.Resources.CPU <= free.CPU) &&
		(r.Resources.Memory <= 0 || r.Resources.Memory <= free.Memory)
}

func (fit) explain(n *view, r *Requirements) string {
	free := n.free()
	var reasons []string
	if r.Resources.CPU > 0 && r.Resources.CPU > free.CPU {
		reasons = append(reasons, fmt.Sprintf("needs %s CPU, %s of %s free",
			spec.FormatCPU(r.Resources.CPU), spec.FormatCPU(max(0, free.CPU)), spec.FormatCPU(n.Capacity.CPU)))
	}
	if r.Resources.Memory > 0 && r.Resources.Memory > free.Memory {
		reasons = append(reasons, fmt.Sprintf("needs %s memory, %s of %s free",
			spec.FormatBytes(r.Resources.Memory), spec.FormatBytes(max(0, free.Memory)), spec.FormatBytes(n.Capacity.Memory)))
	}
	return strings.Join(reasons, ", ")
}

// ports refuses nodes on which something else has a needed port.
type ports struct{}

func (ports) name() string { return "ports" }

func (ports) passes(n *view, r *Requirements) bool {
	for _, p := range r.Ports {
		if n.portOwner(p, r) != nil {
			return false
		}
	}
	return true
}

func (ports) explain(n *view, r *Requirements) string {
	var reasons []string
	for _, p := range r.Ports {
		if use := n.portOwner(p, r); use != nil {
			reasons = append(reasons, use.text())
		}
	}
	return strings.Join(reasons, ", ") + "; choose another with --publish"
}
