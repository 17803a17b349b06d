package scheduler

// Weights say how much each component of the score counts. Only their ratio matters: they
// are normalized to thousandths.
type Weights struct {
	Locality, Reliability, Cost, Utilization, Network int32
}

// DefaultWeights are those of a cluster without its own.
var DefaultWeights = Weights{Locality: 250, Reliability: 300, Cost: 150, Utilization: 200, Network: 100}

// Weighing is what a workload or the configuration of a cluster says about the weights. A
// nil weight comes from the level below, so that setting one weight does not change the
// others.
type Weighing struct {
	Locality, Reliability, Cost, Utilization, Network *int32
}

// over returns the set weights, and the ones below where unset. They are not normalized, so
// that a level above can override them. If all add up to zero, which no level may set
// alone, the ones below count.
func (w Weighing) over(below Weights) Weights {
	all, sum := below, int64(0)
	set := [5]*int32{w.Locality, w.Reliability, w.Cost, w.Utilization, w.Network}
	for i, one := range all.list() {
		if set[i] != nil {
			*one = max(0, *set[i])
		}
		sum += int64(*one)
	}
	if sum == 0 {
		return below
	}
	return all
}

// normal scales the weights to a sum of a thousand.
func (w Weights) normal() Weights {
	sum := int64(0)
	for _, one := range w.list() {
		sum += int64(*one)
	}
	// Each gets its share rounded down; the remainder goes to the first ones that are not
	// 0.
	left := int64(thousandth)
	for _, one := range w.list() {
		*one = int32(int64(*one) * thousandth / sum)
		left -= int64(*one)
	}
	for _, one := range w.list() {
		if left > 0 && *one > 0 {
			*one++
			left--
		}
	}
	return w
}

func (w *Weights) list() [5]*int32 {
	return [5]*int32{&w.Locality, &w.Reliability, &w.Cost, &w.Utilization, &w.Network}
}

// Score is why a node was preferred to other suitable ones. Components are in thousandths,
// 1000 being best.
type Score struct {
	// Locality is how near the node is to where the workload wants to be.
	Locality int32
	// Reliability is the node's own.
	Reliability int32
	// Cost is 1000 for a free node, 0 for the most expensive one.
	Cost int32
	// Utilization is how well the node is used with the replica on it, by the strategy of
	// the workload.
	Utilization int32
	// Network is lower across regions and on slow links.
	Network int32
	// Total is the weighted sum in millionths.
	Total int32

	// What outranks the total, in this order. Affinity is the sum of the weights of
	// preferences that hold, Avoided counts taints that should be avoided, and Same counts
	// the replicas of the workload in the same domains (of the first spread) and on the
	// same node.
	Affinity   int32
	Avoided    int32
	SameDomain int32
	SameNode   int32
}

const (
	// goodLink is a fast enough link: 1 Gbit a second.
	goodLink = 1_000_000_000
	// batteryShare is the factor for the reliability of a node on battery.
	batteryShare = 500
	// otherRegion is the network's score across regions, otherZone the locality in the same
	// region.
	otherRegion = 500
	otherZone   = 500
)

func newTrait(n *Node, room Resources) trait {
	reliability := clamp(n.Reliability, 0, thousandth)
	if n.Battery {
		reliability = reliability * batteryShare / thousandth
	}
	t := trait{reliability: int16(reliability), link: thousandth, cost: thousandth}
	if n.Link > 0 && n.Link < goodLink {
		t.link = int16(n.Link * thousandth / goodLink)
	}
	if room[CPU] > 0 {
		t.perCPU, t.fullCPU = thousandth/float32(room[CPU]), thousandth
	}
	if room[Memory] > 0 {
		t.perMemory, t.fullMemory = thousandth/float32(room[Memory]), thousandth
	}
	return t
}

// costOf is the score of a price relative to the highest one.
func costOf(price, dearest int64) int16 {
	if price <= 0 || dearest <= 0 {
		return thousandth
	}
	return thousandth - int16(float64(price)/float64(dearest)*thousandth)
}

// sizeOf is how large a node is relative to the largest.
func sizeOf(room, largest *Resources) int16 {
	share := int16(0)
	for _, r := range [2]Resource{CPU, Memory} {
		if largest[r] > 0 {
			share += int16(float64(room[r]) / float64(largest[r]) * thousandth / 2)
		}
	}
	return share
}

// filled is how full a node is with the replica on it. A product of floats is the same on
// every machine; only sums of products are not.
func (t *trait) filled(free, need *Resources) int32 {
	cpu := int32(t.fullCPU) - int32(float32(max(0, free[CPU]-need[CPU]))*t.perCPU)
	memory := int32(t.fullMemory) - int32(float32(max(0, free[Memory]-need[Memory]))*t.perMemory)
	return max(0, cpu+memory) / 2
}

// used is the utilization of a node that is already in use.
func (t *trait) used(free, need *Resources) int32 { return (thousandth + t.filled(free, need)) / 2 }

// use is a strategy as the score needs it.
type use uint8

const (
	full use = iota
	tight
	even
)

func (s Strategy) use() use {
	switch s {
	case BestFit:
		return tight
	case Even:
		return even
	default:
		return full
	}
}

// utilization is how well a node is used with the replica on it.
func (p *placing) utilization(i int32) int32 {
	t, free := &p.v.traits[i], &p.v.free[i]
	if p.use == tight {
		return p.tightness(free)
	}
	if p.use == even {
		return thousandth - t.filled(free, &p.need)
	}
	// A node in use is filled before an idle one, and the largest idle node comes first:
	// that takes the fewest nodes.
	if t.idle {
		return int32(t.size) / 2
	}
	return t.used(free, &p.need)
}

// tightness is 1000 if nothing is left over, 0 for the largest node when empty.
func (p *placing) tightness(free *Resources) int32 {
	left := int32(0)
	for _, r := range [2]Resource{CPU, Memory} {
		if most := p.v.largest[r]; most > 0 {
			left += int32(float64(max(0, free[r]-p.need[r])) / float64(most) * thousandth)
		}
	}
	return clamp(thousandth-left/2, 0, thousandth)
}

// near is the locality of a class, and whether it is across regions.
func (w *Preferences) near(c *class) (locality int32, across bool) {
	across = w.NearRegion != "" && w.NearRegion != c.region
	switch {
	case w.NearZone != "" && w.NearZone == c.zone && !across:
		return thousandth, false
	case across:
		return 0, true
	case w.NearZone != "" && w.NearRegion == "":
		return 0, false
	case w.NearZone != "":
		return otherZone, false
	default:
		return thousandth, false
	}
}

// total is the weighted sum for a node.
func (p *placing) total(i int32, of *verdict) int32 {
	return p.weights.sum(of, &p.v.traits[i], p.utilization(i))
}

// sum is the total of a node with a given utilization.
func (w *Weights) sum(of *verdict, t *trait, utilization int32) int32 {
	return of.base + w.Reliability*int32(t.reliability) + w.Cost*int32(t.cost) +
		w.Utilization*utilization + w.Network*(of.network*int32(t.link)/thousandth)
}

// score is the total with its components.
func (p *placing) score(i int32) Score {
	of := &p.verdicts[p.v.class[i]]
	t := &p.v.traits[i]
	return Score{
		Locality: of.locality, Reliability: int32(t.reliability), Cost: int32(t.cost), Utilization: p.utilization(i),
		Network: of.network * int32(t.link) / thousandth, Total: p.total(i, of),
		Affinity: of.affinity + p.nodeAffinity(i) + p.groupAffinity(of.group), Avoided: int32(of.avoided),
		SameDomain: p.sameDomain(of.group), SameNode: p.mine[i],
	}
}
