package spec

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// DefaultPriority is used if a workload sets none. A workload with a higher one may preempt
// others.
const DefaultPriority = 100

// PriorityOf is the priority of a workload, explicit or default.
func PriorityOf(s *v1.WorkloadSpec) int32 {
	if s == nil || s.Priority == nil {
		return DefaultPriority
	}
	return s.GetPriority()
}

// The topology keys that replicas can be levelled over or kept together in, beside those of
// labels.
const (
	keyNode = "node"
	keyZone = "zone"
)

// defaultStrategy is normalized to empty, so that an otherwise empty placement can be
// removed, too.
const defaultStrategy = "pack"

// normalPlacement brings a placement to its canonical form, which is nil if it is empty.
func normalPlacement(p *v1.Placement) *v1.Placement {
	if p == nil {
		return nil
	}
	if p.Strategy == defaultStrategy {
		p.Strategy = ""
	}
	for _, one := range p.Prefer {
		if one != nil && one.Weight == 0 {
			one.Weight = 1
		}
	}
	for _, s := range p.Spread {
		if s != nil {
			fill(&s.Key, keyZone)
		}
	}
	for _, a := range p.Affinity {
		if a != nil {
			fill(&a.Key, keyNode)
		}
	}
	if proto.Equal(p.Weights, &v1.ScoreWeights{}) {
		p.Weights = nil
	}
	if proto.Equal(p, &v1.Placement{}) {
		return nil
	}
	return p
}

// checkPlacement checks what the API's rules cannot express.
func checkPlacement(p *v1.Placement, found *violations) {
	const path = "spec.placement"
	for i, r := range p.GetRequire() {
		checkLabelRule(indexPath(path+".require", i), r, found)
	}
	for i, one := range p.GetPrefer() {
		if one.GetRule() != nil {
			checkLabelRule(indexPath(path+".prefer", i)+".rule", one.GetRule(), found)
		}
	}
	checkPlaces(path+".regions", "region", p.GetRegions(), found)
	checkPlaces(path+".zones", "zone", p.GetZones(), found)
	for i, t := range p.GetTolerations() {
		if e := t.GetEffect(); t.GetSeconds() != 0 && (e == "NoSchedule" || e == "PreferNoSchedule") {
			found.add(indexPath(path+".tolerations", i)+".seconds", "is not for effect %s, which evicts nothing; leave it out, or tolerate NoExecute", e)
		}
	}
	keys := map[string]int{}
	for i, s := range p.GetSpread() {
		at := indexPath(path+".spread", i)
		checkTopologyKey(at+".key", s.GetKey(), found)
		key := s.GetKey()
		if key == LabelName {
			key = "node"
		}
		if first, taken := keys[key]; taken {
			found.add(at+".key", "%s is the key of %s too", s.GetKey(), indexPath(path+".spread", first))
		} else {
			keys[key] = i
		}
	}
	for i, a := range p.GetAffinity() {
		checkAffinity(indexPath(path+".affinity", i), a, found)
	}
	checkWeights(path+".weights", p.GetWeights(), found)
}

// checkPlaces refuses places without a name: a node without a place is in none.
func checkPlaces(at, what string, names []string, found *violations) {
	for i, name := range names {
		if name == "" {
			found.add(indexPath(at, i), "is empty: name a %s, or leave the list out for all", what)
		}
	}
}

func checkAffinity(at string, a *v1.Affinity, found *violations) {
	checkTopologyKey(at+".key", a.GetKey(), found)
	if (a.GetWorkload() == "") == (a.GetLabels() == "") {
		found.add(at, "must name either a workload or labels")
		return
	}
	if selector, err := ParseSelector(a.GetLabels()); err != nil {
		found.add(at+".labels", "is not a label selector such as app=db")
	} else if a.GetLabels() != "" && !selector.Names() {
		found.add(at+".labels", "must ask for a label that is there, such as app=db")
	}
}

func checkTopologyKey(at, key string, found *violations) {
	switch {
	case !labelKey().MatchString(key):
		found.add(at, "must be node, zone, region or the key of a label")
	case key == LabelHostname:
		found.add(at, "%s may be the same on several machines: use node", key)
	}
}

// checkWeights refuses weights that are all 0.
func checkWeights(at string, w *v1.ScoreWeights, found *violations) {
	if w == nil {
		return
	}
	for _, one := range []*float64{w.Locality, w.Reliability, w.Cost, w.Utilization, w.Network} {
		if one == nil || Thousandths(*one) > 0 {
			return
		}
	}
	found.add(at, "must not all be 0, because nothing would be left to choose a node by: make one at least 0.001, or leave one out for its default")
}

// checkLabelRule checks the values of a rule against its operator.
func checkLabelRule(at string, r *v1.LabelRule, found *violations) {
	values := r.GetValues()
	fits, want := len(values) == 1, "one value"
	switch r.GetOperator() {
	case "in", "notIn":
		fits, want = len(values) > 0, "at least one value"
	case "exists", "notExists":
		fits, want = len(values) == 0, "no value"
	}
	if !fits {
		found.add(at+".values", "must have %s with operator %s", want, r.GetOperator())
		return
	}
	switch r.GetOperator() {
	case "gt", "lt":
		if _, err := strconv.ParseInt(values[0], 10, 64); err != nil {
			found.add(at+".values", "%q must be a whole number", values[0])
		}
	case "version":
		if _, err := ParseVersionRange(values[0]); err != nil {
			found.add(at+".values", "%v", err)
		}
	case "matches":
		if _, err := regexp.Compile(values[0]); err != nil {
			found.add(at+".values", "%q must be a regular expression", values[0])
		}
	}
}

// NodePolicy is the configured use of a node's capacity.
type NodePolicy struct {
	// Overcommit is in percent; unset means 100.
	Overcommit *v1.Overcommit
	// Reserved is kept for the system: what is configured, and otherwise the memory that the node itself keeps.
	Reserved *v1.ResourceAmounts
}

// NodePolicyOf returns the policy for a node: from the first class that matches, and from
// the cluster for the rest.
func NodePolicyOf(c *v1.ClusterSpec, n *v1.Node) NodePolicy {
	class := NodeClassOf(c, n)
	own, all := cmp.Or(class.GetOvercommit(), &v1.Overcommit{}), cmp.Or(c.GetOvercommit(), &v1.Overcommit{})
	kept, kepts := class.GetReserved(), c.GetReserved()
	return NodePolicy{
		Overcommit: &v1.Overcommit{
			Cpu: cmp.Or(own.Cpu, all.Cpu), Memory: cmp.Or(own.Memory, all.Memory),
			Disk: cmp.Or(own.Disk, all.Disk), Bandwidth: cmp.Or(own.Bandwidth, all.Bandwidth),
		},
		Reserved: &v1.ResourceAmounts{
			Cpu: cmp.Or(kept.GetCpu(), kepts.GetCpu()), Memory: cmp.Or(kept.GetMemory(), kepts.GetMemory(), n.GetStatus().GetReserved().GetMemory()),
			Disk: cmp.Or(kept.GetDisk(), kepts.GetDisk()), Bandwidth: cmp.Or(kept.GetBandwidth(), kepts.GetBandwidth()),
		},
	}
}

// NodeClassOf is the first class that matches a node, nil if there is none. It matches all
// labels that rules of workloads can use.
func NodeClassOf(c *v1.ClusterSpec, n *v1.Node) *v1.NodeClass {
	if len(c.GetNodeClasses()) == 0 {
		return nil // nearly always
	}
	labels := NodeLabels(n)
	at := slices.IndexFunc(c.GetNodeClasses(), func(class *v1.NodeClass) bool {
		selector, err := ParseSelector(class.GetLabels())
		return err == nil && selector.Matches(labels)
	})
	if at < 0 {
		return nil
	}
	return c.GetNodeClasses()[at]
}

// Thousandths of a weight such as 0.25.
func Thousandths(weight float64) int32 {
	return int32(math.Round(min(max(weight, 0), 1e6) * 1000))
}
