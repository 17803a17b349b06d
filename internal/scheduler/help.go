package scheduler

import (
	"fmt"
	"strings"
)

// furtherHelp is what would help beside freeing one resource: what a single filter
// refuses, nodes that are large enough, and several resources at once.
func (p *placing) furtherHelp() []string {
	if len(p.v.order) == 0 {
		return []string{"a first node: the cluster has none yet"}
	}
	alone := map[string]*Group{}
	close, shortage := int32(-1), int64(0)
	large := false // whether some node could hold it, were it empty
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

// addAlone counts a node that one filter alone refuses, other than for what it has
// left.
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

// alone is the sentence about nodes that one filter alone refuses.
func (g *Group) alone() string {
	text := fmt.Sprintf("%s would fit but for %s: %s %s", plural(g.Count, "node"), g.Filter, g.NodeName, g.Example)
	if g.Count == 1 {
		return text
	}
	return text + " (and others for the like)"
}

// shortage is how many resources a node lacks, and their sum as shares of the
// needs.
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

// largerNode says of which resources no node has enough that would do otherwise,
// whatever else is freed.
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
		if most > 0 {
			has = fmt.Sprintf("%s, the largest that would do otherwise, has %s", largest, r.format(most))
		}
		help = append(help, fmt.Sprintf("a larger node, or a smaller request: it needs %s %s, and %s", r.format(need), r, has))
	}
	return help
}

// nearest names the node that the fewest filters refuse, where no single thing
// would help.
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
