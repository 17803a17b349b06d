package scheduler

// candidate is a node that would take a replica, as two words that are compared in order:
// first what outranks the score, then the score and the node's rank by name.
type candidate struct{ first, second uint64 }

func (c candidate) better(o candidate) bool {
	return c.first > o.first || c.first == o.first && c.second > o.second
}

const (
	mineBits    = 24
	avoidedBits = 8
	mostMine    = 1<<mineBits - 1
	mostAvoided = 1<<avoidedBits - 1
	// affinityBias makes affinities positive.
	affinityBias = 1 << 30
)

// newCandidate ranks a node: more affinity, then fewer avoided taints, then fewer replicas
// of the same workload, then the higher total, then the name.
func newCandidate(affinity int32, avoided uint8, mine, total, rank int32) candidate {
	return candidateOf(preferencesOf(affinity, avoided), mine, total, rank)
}

// preferencesOf combines what outranks everything else.
func preferencesOf(affinity int32, avoided uint8) uint64 {
	return uint64(affinityBias+clamp(affinity, 1-affinityBias, affinityBias))<<avoidedBits | uint64(mostAvoided-avoided)
}

// candidateOf ranks a node with known preferences.
func candidateOf(preferences uint64, mine, total, rank int32) candidate {
	return candidate{
		first:  preferences<<mineBits | uint64(mostMine-min(mine, mostMine)),
		second: uint64(uint32(total))<<32 | uint64(^uint32(rank)),
	}
}

// rank is the node's place by name.
func (c candidate) rank() int32 { return int32(^uint32(c.second)) }

// preferences is the part of the rank that comes before the levels of the workload.
func (c candidate) preferences() uint64 { return c.first >> mineBits }

// group holds the candidates in the same domains, the best on top. It is a 4-ary heap,
// which is half as deep as a binary one.
type group struct{ heap []candidate }

const children = 4

// order makes the heap.
func (g *group) order() {
	for i := (len(g.heap) - 2) / children; i >= 0 && len(g.heap) > 1; i-- {
		g.sink(i)
	}
}

// replace replaces the best candidate by another.
func (g *group) replace(c candidate) {
	g.heap[0] = c
	g.sink(0)
}

// drop removes the best candidate.
func (g *group) drop() {
	last := len(g.heap) - 1
	g.heap[0] = g.heap[last]
	g.heap = g.heap[:last]
	if last > 1 {
		g.sink(0)
	}
}

func (g *group) sink(i int) {
	heap := g.heap
	down := heap[i]
	for {
		first := i*children + 1
		if first >= len(heap) {
			break
		}
		best := first
		for child := first + 1; child < min(first+children, len(heap)); child++ {
			if heap[child].better(heap[best]) {
				best = child
			}
		}
		if !heap[best].better(down) {
			break
		}
		heap[i] = heap[best]
		i = best
	}
	heap[i] = down
}

// best returns the group with the best candidate that rules allow now, -1 if there is none.
// It compares what all candidates of a group have in common.
func (p *placing) best() int32 {
	best := int32(-1)
	for g := range p.groups {
		if len(p.groups[g].heap) > 0 && (p.free || p.open(int32(g))) && (best < 0 || p.betterGroup(int32(g), best)) {
			best = int32(g)
		}
	}
	return best
}

func (p *placing) betterGroup(a, b int32) bool {
	return p.before(p.groups[a].heap[0], a, p.groups[b].heap[0], b)
}

// place ranks a node among all groups, in the order of before. It does not change with
// placements elsewhere, so it can be stored.
type place struct {
	preferences uint64 // with those of the group
	// sameCounts counts the workload's replicas in the node's domains, the most important level
	// in the highest bits.
	sameCounts uint64
	candidate
}

// sameBits is the width of one level's count. There is room for the first three levels.
const sameBits = 21

func (p *placing) placeOf(i int32, of *verdict) place {
	one := place{candidate: p.candidate(i, of)}
	one.preferences = one.candidate.preferences()
	if len(p.terms) > 0 {
		one.preferences += uint64(affinityBias+p.groupAffinity(of.group)) << avoidedBits
	}
	for k := range min(len(p.levels), 64/sameBits) {
		axis := p.levels[k].axis
		mine := at(p.axes[axis].mine, p.domain(of.group, axis))
		one.sameCounts |= uint64(min(mine, 1<<sameBits-1)) << (sameBits * (64/sameBits - 1 - k))
	}
	return one
}

func (x place) better(y place) bool {
	switch {
	case x.preferences != y.preferences:
		return x.preferences > y.preferences
	case x.sameCounts != y.sameCounts:
		return x.sameCounts < y.sameCounts
	}
	if fewer, more := x.first&mostMine, y.first&mostMine; fewer != more {
		return fewer > more
	}
	return x.second > y.second
}

// before reports whether candidate x of group a is better than y of b.
func (p *placing) before(x candidate, a int32, y candidate, b int32) bool {
	wa, wb := x.preferences(), y.preferences()
	if len(p.terms) > 0 {
		wa += uint64(affinityBias+p.groupAffinity(a)) << avoidedBits
		wb += uint64(affinityBias+p.groupAffinity(b)) << avoidedBits
	}
	if wa != wb {
		return wa > wb
	}
	for k := range p.levels {
		axis := p.levels[k].axis
		na, nb := at(p.axes[axis].mine, p.domain(a, axis)), at(p.axes[axis].mine, p.domain(b, axis))
		if na != nb {
			return na < nb
		}
	}
	// The groups' share of the preferences is counted above.
	if fewer, more := x.first&mostMine, y.first&mostMine; fewer != more {
		return fewer > more
	}
	return x.second > y.second
}
