package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/internal/spec"
)

// help says what would make room: the nodes that lack the least, and the quota.
func (p *placing) help(quota string) []string {
	var help []string
	if quota != "" {
		help = append(help, "a higher quota of namespace "+p.rev.Namespace)
		if slices.ContainsFunc(p.v.order, func(i int32) bool { return p.firstRefusal(i) == "" }) {
			return help // there is room
		}
	}
	var lacks [resourceCount]lack
	for _, i := range p.v.order {
		if p.fitAlone(i) {
			p.addLack(&lacks, i)
		}
	}
	for k, l := range lacks {
		if l.nodes > 0 {
			help = append(help, l.sentence(p, Resource(k)))
		}
	}
	return append(help, p.keptAvailable()...)
}

// keptAvailable names the services that cannot be preempted because of their minAvailable,
// if only that is in the way.
func (p *placing) keptAvailable() []string {
	if !p.mayPreempt() {
		return nil
	}
	nodes, services := 0, map[string]int{} // with their minAvailable
	heeding, regardless := victims{}, victims{regardless: true}
	for _, i := range p.v.order {
		if _, possible := p.estimate(i, &heeding); possible {
			return nil // preemption works already
		}
		if _, possible := p.estimate(i, &regardless); possible {
			nodes++
			for _, s := range regardless.spared {
				if regardless.takes(p, s) {
					services[p.nameOf(s)] = s.MinAvailable
				}
			}
		}
	}
	if nodes == 0 {
		return nil
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(services)) {
		names = append(names, fmt.Sprintf("%s, which keeps %d", name, services[name]))
	}
	return []string{fmt.Sprintf("%s could be made free but for the minAvailable of %s", spec.Count(nodes, "node"), strings.Join(names, " and of "))}
}

// takes reports whether a replica of a shape is among the victims.
func (t *victims) takes(p *placing, s *shape) bool {
	return slices.ContainsFunc(t.taken, func(at int32) bool { return p.v.work.at(at).shape == s })
}

// nameOf is the name of a workload, qualified if it is in another namespace than the ask.
func (p *placing) nameOf(s *shape) string {
	if s.Namespace != p.rev.Namespace {
		return s.Name + " in namespace " + s.Namespace
	}
	return s.Name
}

// fitAlone reports whether only a lack of resources keeps a replica from a node.
func (p *placing) fitAlone(i int32) bool {
	of := &p.verdicts[p.v.class[i]]
	return of.passes && p.open(of.group) && p.passesSingly(i)
}

// lack is how much of one resource is missing on the nodes that would otherwise do.
type lack struct {
	least  int64
	nodes  int    // that lack no more than the least
	freest string // the first of them
}

// addLack considers a node that lacks only one resource, if enough of it could be freed.
func (p *placing) addLack(lacks *[resourceCount]lack, i int32) {
	missing, of := 0, 0
	for k, need := range p.need {
		if need > 0 && need > p.v.free[i][k] {
			missing, of = missing+1, k
		}
	}
	if missing != 1 || p.need[of] > p.v.nodes[i].room[of] {
		return
	}
	l := &lacks[of]
	switch short := p.need[of] - p.v.free[i][of]; {
	case l.nodes == 0 || short < l.least:
		l.least, l.nodes, l.freest = short, 1, p.v.nodes[i].Name
	case short == l.least:
		l.nodes++
	}
}

func (l lack) sentence(p *placing, r Resource) string {
	return fmt.Sprintf("%s would fit after %s %s is freed; the largest free is %s on %s",
		spec.Count(l.nodes, "node"), r.format(l.least), r, r.format(max(0, p.need[r]-l.least)), l.freest)
}

// furtherHelp is what would help beside freeing one resource: a single refusing filter,
// larger nodes, or several resources at once.
func (p *placing) furtherHelp() []string {
	if len(p.v.order) == 0 {
		return []string{"a first node: the cluster has none yet"}
	}
	alone := map[string]*Group{}
	close, shortage := int32(-1), int64(0)
	large := false // whether some node could hold it if empty
	for _, i := range p.v.order {
		p.addAlone(alone, i)
		if !p.fitAlone(i) || !p.v.nodes[i].room.holds(&p.least) {
			continue
		}
		large = true
		if missing, sum := p.shortage(i); missing > 1 && (close < 0 || sum < shortage) {
			close, shortage = i, sum
		}
	}
	var help []string
	if close >= 0 {
		help = append(help, p.v.nodes[close].Name+" lacks the least: "+p.lacking(close))
	}
	for _, name := range filterNames {
		if g := alone[name]; g != nil {
			help = append(help, g.alone())
		}
	}
	if !large {
		help = append(help, p.largerNode()...)
	}
	return help
}

// addAlone counts a node that only one filter refuses, other than for its free resources.
func (p *placing) addAlone(groups map[string]*Group, i int32) {
	name, others := "", false
	for f := range p.refusing(i) {
		others = others || name != "" && name != f.name
		name = f.name
	}
	switch {
	case name == "" || name == fit.name || others:
	case groups[name] == nil:
		groups[name] = &Group{Filter: name, Count: 1, NodeName: p.v.nodes[i].Name, Example: p.refusals(i)[0].Reason}
	default:
		groups[name].Count++
	}
}

// alone is the sentence about nodes that only one filter refuses.
func (g *Group) alone() string {
	text := fmt.Sprintf("%s would fit but for %s: %s %s", spec.Count(g.Count, "node"), g.Filter, g.NodeName, g.Example)
	if g.Count == 1 {
		return text
	}
	return text + " (and others for the like)"
}

// shortage is how many resources a node lacks, and their sum as shares of the needs.
func (p *placing) shortage(i int32) (missing int, sum int64) {
	for k, need := range p.need {
		if short := need - p.v.free[i][k]; need > 0 && short > 0 {
			missing++
			sum += int64(float64(short) / float64(need) * thousandth)
		}
	}
	return missing, sum
}

// lacking is what would have to be freed on a node.
func (p *placing) lacking(i int32) string {
	var parts []string
	for k, need := range p.need {
		if short := need - p.v.free[i][k]; need > 0 && short > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", Resource(k).format(short), Resource(k)))
		}
	}
	return strings.Join(parts, " and ") + " would have to be freed"
}

// largerNode lists the resources that every otherwise suitable node has too little of, even if it were empty.
func (p *placing) largerNode() (help []string) {
	for k, need := range p.need {
		most, largest, enough := int64(-1), "", need <= 0
		for _, i := range p.v.order {
			if room := p.v.nodes[i].room[k]; p.fitAlone(i) {
				enough = enough || room >= need
				if room > most {
					most, largest = room, p.v.nodes[i].Name
				}
			}
		}
		if enough || largest == "" {
			continue
		}
		r := Resource(k)
		has := "no node that would do otherwise has any"
		switch {
		case most > 0:
			has = fmt.Sprintf("%s, the largest that would do otherwise, has %s", largest, r.format(most))
		case r == Bandwidth: // not every machine knows its link
			has = "no node that would do otherwise is known to have any: say what a link carries with cloudless node set NODE --bandwidth"
		}
		help = append(help, fmt.Sprintf("a larger node, or a smaller request: it needs %s %s, and %s", r.format(need), r, has))
	}
	return help
}

// nearest names the node that the fewest filters refuse, if no single change would help.
func (p *placing) nearest() []string {
	near, fewest := int32(-1), 0
	for _, i := range p.v.order {
		count := 0
		for range p.refusing(i) {
			count++
		}
		if near < 0 || count < fewest {
			near, fewest = i, count
		}
	}
	return []string{fmt.Sprintf("several things at once: %s comes nearest, but %s",
		p.v.nodes[near].Name, NodeReason{Refusals: p.refusals(near)})}
}
