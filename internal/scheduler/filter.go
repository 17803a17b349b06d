package scheduler

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/internal/spec"
)

// Filters decide whether a node may take a replica. passes is evaluated for every class or
// node and must be cheap; explain only for unplaced replicas. Each explanation continues
// the node's name in words for a user.

// filter is a name, for metrics and for grouping, and a sentence about a node that does not
// pass.
type filter struct {
	name    string
	explain func(p *placing, i int32) string
}

// classFilter is about what all nodes of a class have in common. It is evaluated only where
// it applies to the ask.
type classFilter struct {
	filter
	passes  func(*placing, *class) bool
	applies func(*placing) bool
}

// nodeFilter is about a node itself and what is on it.
type nodeFilter struct {
	filter
	passes  func(p *placing, i int32) bool
	applies func(*placing) bool
}

// Filters are evaluated in this order: what a user can change least comes first.
var (
	classFilters = []classFilter{
		{filter{"ready", explainReady}, func(_ *placing, c *class) bool { return c.ready }, always},
		{filter{"driver", explainDriver}, passesDriver, func(p *placing) bool { return p.rev.Needs.Driver != "" }},
		{filter{"sandbox", explainSandbox}, passesSandbox, func(p *placing) bool { return p.rev.Needs.Sandbox != "" || p.rev.Needs.UserNamespace }},
		{filter{"platform", explainPlatform}, passesPlatform, func(p *placing) bool { return len(p.rev.Needs.Platforms) > 0 }},
		{filter{"place", explainPlace}, passesPlace, func(p *placing) bool { return len(p.rev.Needs.Regions)+len(p.rev.Needs.Zones) > 0 }},
		{filter{"labels", explainLabels}, passesLabels, func(p *placing) bool { return len(p.rev.Needs.Rules) > 0 }},
		{filter{"taints", explainTaints}, passesTaints, always},
		{filter{"gpu", explainGPU}, passesGPU, func(p *placing) bool { return p.need[GPU] > 0 && p.rev.Needs.GPUModel != "" }},
		{filter{"topology", explainTopology}, passesTopology, func(p *placing) bool {
			return slices.ContainsFunc(p.axes, func(a axis) bool { return a.hard })
		}},
	}
	// passesNode evaluates fit inline, because it is needed most.
	fit         = filter{"fit", explainFit}
	nodeFilters = []nodeFilter{
		{filter{"name", explainName}, passesName, func(p *placing) bool { return len(p.otherwise) > 0 }},
		{filter{"volumes", explainOnly}, passesOnly, func(p *placing) bool { return p.only != nil }},
		{filter{portsFilter, explainPorts}, passesPorts, func(p *placing) bool { return len(p.rev.Needs.Ports) > 0 }},
		{filter{"affinity", explainAffinity}, passesAffinity, hasNodeTerm},
		{filter{"spread", explainNodeSkew}, passesNodeSkew, func(p *placing) bool { return p.nodeSkew > 0 }},
		{filter{"policy", explainPolicy}, passesPolicy, func(p *placing) bool { return p.rev.Needs.Policy != nil }},
	}
	// These two are about all nodes of a group.
	affinity = filter{"affinity", explainClosed}
	spread   = filter{"spread", explainSkew}
)

// portsFilter is the filter whose refusal preemption can lift.
const portsFilter = "ports"

func always(*placing) bool { return true }

// filterNames are all filters in order of evaluation.
var filterNames = func() (names []string) {
	for _, f := range classFilters {
		names = append(names, f.name)
	}
	names = append(names, fit.name)
	for _, f := range nodeFilters {
		names = append(names, f.name)
	}
	return names
}()

// refusing yields the filters that refuse a node now, in order.
func (p *placing) refusing(i int32) iter.Seq[filter] {
	return func(yield func(filter) bool) {
		of, c := &p.verdicts[p.v.class[i]], p.classOf(i)
		for _, f := range p.askedOfClass {
			if !of.passes && !f.passes(p, c) && !yield(f.filter) {
				return
			}
		}
		if !p.v.free[i].holds(&p.least) && !yield(fit) {
			return
		}
		for _, f := range p.asked {
			if !f.passes(p, i) && !yield(f.filter) {
				return
			}
		}
		if !of.passes || p.closedBy(of.group) != nil && !yield(affinity) {
			return
		}
		if p.skewed(of.group) != nil {
			yield(spread)
		}
	}
}

// refusals are the explanations of all filters that refuse a node now.
func (p *placing) refusals(i int32) (all []Refusal) {
	for f := range p.refusing(i) {
		all = append(all, Refusal{Filter: f.name, Reason: f.explain(p, i)})
	}
	return all
}

// firstRefusal is the name of the first filter that refuses a node, empty if none does.
func (p *placing) firstRefusal(i int32) string {
	for f := range p.refusing(i) {
		return f.name
	}
	return ""
}

func (p *placing) classOf(i int32) *class { return p.v.classes.list[p.v.class[i]] }

func explainReady(p *placing, i int32) string { return p.v.nodes[i].Unschedulable }

func passesDriver(p *placing, c *class) bool {
	return slices.Contains(c.drivers, p.rev.Needs.Driver)
}

func explainDriver(p *placing, i int32) string {
	has := "none"
	if drivers := p.v.nodes[i].Drivers; len(drivers) > 0 {
		has = strings.Join(slices.Sorted(slices.Values(drivers)), ", ")
	}
	return fmt.Sprintf("driver %s is not there; it has %s", p.rev.Needs.Driver, has)
}

func passesSandbox(p *placing, c *class) bool { return lacksForSandbox(&p.rev.Needs, c.labels) == "" }

func explainSandbox(p *placing, i int32) string {
	return lacksForSandbox(&p.rev.Needs, p.v.nodes[i].Labels)
}

// lacksForSandbox continues the name of a node with the given labels.
func lacksForSandbox(needs *Needs, labels map[string]string) string {
	var lacks []string
	if needs.Sandbox == spec.SandboxGVisor && labels[spec.LabelGVisor] != "true" {
		lacks = append(lacks, "has no runsc, which the sandbox gvisor needs (cloudless doctor --security on it shows how to install it)")
	}
	if needs.UserNamespace && labels[spec.LabelUserNamespaces] != "true" {
		lacks = append(lacks, "has no user namespaces with the right owners of files (cloudless doctor --security on it shows why)")
	}
	return joined(lacks...)
}

func passesPlatform(p *placing, c *class) bool {
	return c.platform == "" || slices.Contains(p.rev.Needs.Platforms, c.platform)
}

func explainPlatform(p *placing, i int32) string {
	return fmt.Sprintf("is %s; the image is for %s", p.v.nodes[i].Platform, strings.Join(p.rev.Needs.Platforms, ", "))
}

func passesPlace(p *placing, c *class) bool {
	n := &p.rev.Needs
	return (len(n.Regions) == 0 || slices.Contains(n.Regions, c.region)) && (len(n.Zones) == 0 || slices.Contains(n.Zones, c.zone))
}

func explainPlace(p *placing, i int32) string {
	n, needs := &p.v.nodes[i], &p.rev.Needs
	explain := func(noun, is string, may []string) string {
		switch {
		case len(may) == 0 || slices.Contains(may, is):
			return ""
		case is == "":
			return fmt.Sprintf("has no %s, and it must be %s", noun, strings.Join(may, " or "))
		default:
			return fmt.Sprintf("is in %s %s, not %s", noun, is, strings.Join(may, " or "))
		}
	}
	return joined(explain("region", n.Region, needs.Regions), explain("zone", n.Zone, needs.Zones))
}

func passesLabels(p *placing, c *class) bool {
	for i := range p.rev.Needs.Rules {
		if r := &p.rev.Needs.Rules[i]; !r.identifiesNode() && !r.holds(c.labels) {
			return false
		}
	}
	return true
}

func explainLabels(p *placing, i int32) string {
	var reasons []string
	for k := range p.rev.Needs.Rules {
		if r := &p.rev.Needs.Rules[k]; !r.identifiesNode() && !r.holds(p.v.nodes[i].Labels) {
			value, has := p.v.nodes[i].Labels[r.Key]
			reasons = append(reasons, r.explain(value, has))
		}
	}
	return joined(reasons...)
}

func passesTaints(p *placing, c *class) bool {
	return !slices.ContainsFunc(c.taints, p.refusesTaint)
}

// refusesTaint reports whether a taint keeps the ask away.
func (p *placing) refusesTaint(t Taint) bool {
	if t.Effect == PreferNoSchedule {
		return false
	}
	_, tolerated := Tolerates(p.rev.Needs.Tolerations, t)
	return !tolerated
}

func explainTaints(p *placing, i int32) string {
	var reasons []string
	for _, t := range p.v.nodes[i].Taints {
		if !p.refusesTaint(t) {
			continue
		}
		why := "which is not tolerated"
		if seconds, _ := Tolerates(p.rev.Needs.Tolerations, t); seconds > 0 {
			why = fmt.Sprintf("which is tolerated for %d seconds only, by those that are there already", seconds)
		}
		reasons = append(reasons, fmt.Sprintf("has the taint %s, %s", t, why))
	}
	return joined(reasons...)
}

func passesGPU(p *placing, c *class) bool {
	return spec.ModelMatches(c.gpuModel, p.rev.Needs.GPUModel)
}

func explainGPU(p *placing, i int32) string {
	if model := p.v.nodes[i].GPUModel; model != "" {
		return fmt.Sprintf("has GPUs of model %s, not %s", model, p.rev.Needs.GPUModel)
	}
	return fmt.Sprintf("has no GPU of model %s", p.rev.Needs.GPUModel)
}

// passesTopology refuses classes without a domain on a required axis.
func passesTopology(p *placing, c *class) bool {
	for k := range p.axes {
		if p.axes[k].hard && p.v.classes.domain(c, p.axes[k].key) == 0 {
			return false
		}
	}
	return true
}

func explainTopology(p *placing, i int32) string {
	var reasons []string
	for k := range p.axes {
		if a := &p.axes[k]; a.hard && p.v.classes.domain(p.classOf(i), a.key) == 0 {
			reasons = append(reasons, fmt.Sprintf("has no %s, by which replicas are placed", topologyNoun(a.key)))
		}
	}
	return joined(reasons...)
}

func topologyNoun(key string) string {
	if key == KeyZone || key == KeyRegion || key == KeyNode {
		return key
	}
	return "label " + key
}

func explainFit(p *placing, i int32) string {
	var reasons []string
	for k, need := range p.need {
		if free := p.v.free[i][k]; need > 0 && need > free {
			r := Resource(k)
			reasons = append(reasons, fmt.Sprintf("needs %s %s, %s of %s free",
				r.format(need), r, r.format(max(0, free)), r.format(p.v.nodes[i].room[k])))
		}
	}
	return joined(reasons...)
}

func passesOnly(p *placing, i int32) bool { return p.only[i] }

func explainOnly(p *placing, _ int32) string {
	var names []string
	for i := range p.only {
		names = append(names, p.v.nodes[i].Name)
	}
	if len(names) == 0 {
		return "is none of the nodes that must be used, and those are not there"
	}
	slices.Sort(names)
	return "is not " + strings.Join(names, " or ") + ", which must be used"
}

func passesPorts(p *placing, i int32) bool {
	if p.v.portBits[i]&p.shape.bits == 0 {
		return true
	}
	for _, port := range p.rev.Needs.Ports {
		if p.v.nodes[i].portOwner(port, p.rev) != nil {
			return false
		}
	}
	return true
}

// explainPorts considers that a replica on the host network publishes nothing, and that a
// node then has room for one replica of a workload.
func explainPorts(p *placing, i int32) string {
	var reasons []string
	advice := ""
	for _, port := range p.rev.Needs.Ports {
		switch use := p.v.nodes[i].portOwner(port, p.rev); {
		case use == nil:
		case use.shape.Workload == p.rev.Workload:
			reasons = append(reasons, fmt.Sprintf("port %d is used by another of its own replicas: one fits on each node", port.Number))
		default:
			reasons = append(reasons, use.String())
			if advice = "; choose another port"; p.rev.Needs.SharePorts {
				advice = "; choose another with --publish"
			}
		}
	}
	return joined(reasons...) + advice
}

// String is a port with the name of its user.
func (u *portUse) String() string {
	text := fmt.Sprintf("port %d", u.Number)
	if u.Protocol == "udp" {
		text += "/udp"
	}
	text += " is used by " + u.shape.Name
	if u.shape.Namespace != "" {
		text += " in namespace " + u.shape.Namespace
	}
	return text
}

func passesAffinity(p *placing, i int32) bool { return p.nodeClosedBy(i, anyTerm) == nil }

func hasNodeTerm(p *placing) bool {
	return slices.ContainsFunc(p.terms, func(t term) bool { return t.axis < 0 && t.required() })
}

func explainAffinity(p *placing, i int32) string {
	return p.nodeClosedBy(i, anyTerm).explain("on it", func(k int32) bool { return k == i })
}

func explainClosed(p *placing, i int32) string {
	t := p.closedBy(p.verdicts[p.v.class[i]].group)
	domain := func(i int32) int32 { return p.v.classes.domain(p.classOf(i), t.Key) }
	return t.explain(fmt.Sprintf("in its %s", topologyNoun(t.Key)), func(k int32) bool { return domain(k) == domain(i) })
}

// explain says why a term does not hold at a place.
func (t *term) explain(place string, here func(i int32) bool) string {
	about := "replica of " + t.Workload
	if t.Workload == "" {
		about = "replica with " + t.Selector.String()
	}
	switch {
	case t.others:
		owner := t.workAt(here).newest().Name
		return fmt.Sprintf("is refused because a replica of %s is %s, and %s stays away from others like this", owner, place, owner)
	case t.Anti:
		return fmt.Sprintf("is refused because a %s is %s", about, place)
	case t.total == 0:
		return fmt.Sprintf("is refused because no %s is %s, nor anywhere else", about, place)
	default:
		return fmt.Sprintf("is refused because no %s is %s", about, place)
	}
}

func passesNodeSkew(p *placing, i int32) bool {
	return p.mine[i]+1-p.nodeFloor <= p.nodeSkew
}

func explainNodeSkew(p *placing, i int32) string {
	return fmt.Sprintf("has %s already, and another node has %d: at most %d more are allowed",
		spec.Count(int(p.mine[i]), "replica"), p.nodeFloor, p.nodeSkew)
}

func explainSkew(p *placing, i int32) string {
	g := p.verdicts[p.v.class[i]].group
	l := p.skewed(g)
	return fmt.Sprintf("is in a %s with %s already, and another one has %d: at most %d more are allowed",
		topologyNoun(p.axes[l.axis].key), spec.Count(int(at(p.axes[l.axis].mine, p.domain(g, l.axis))), "replica"), l.floor, l.maxSkew)
}

func passesPolicy(p *placing, i int32) bool { return p.rev.Needs.Policy(&p.v.nodes[i].Node) == "" }

func explainPolicy(p *placing, i int32) string { return p.rev.Needs.Policy(&p.v.nodes[i].Node) }

// joined joins the non-empty sentences without duplicates: two rules about one label may
// say the same.
func joined(reasons ...string) string {
	var all []string
	for _, one := range reasons {
		if one != "" && !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return strings.Join(all, ", ")
}
