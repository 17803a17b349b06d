package scheduler

import (
	"cmp"
	"math"
	"slices"
)

// searchSteps bounds the search for the smallest set of victims on one node. It is enough
// to try all sets if there are few candidates. Beyond it, the best found so far counts: the
// largest are tried first.
const searchSteps = 256

// evictable is a replica that would help if it left.
type evictable struct {
	at    int32
	shape *shape
	// gain is the share of the shortage that it frees, in thousandths and rounded up,
	// capped at all of it. size is the same without the cap.
	gain, size int64
}

// search finds, among the sets of a given size, the one with the smallest sum of priorities
// and then with the least freed.
type search struct {
	all    []evictable
	picked []int32
	best   []int32
	// sum and size are those of the best.
	sum    int
	size   int64
	lowest int   // priority
	goal   int64 // what the gains must add up to
	// enough is a sum that ends the search.
	enough int
	steps  int

	amounts []int64
}

// fewest replaces the chosen victims by the smallest set, among all whose priority is not
// higher than theirs.
func (t *victims) fewest(p *placing, i int32) {
	s := &t.search
	highest := p.v.work.at(t.taken[len(t.taken)-1]).shape.Priority
	free := t.force(p, p.v.free[i].plus(p.v.nodes[i].leaving))
	short := shortOf(&free, &p.least)
	s.list(p, i, highest, &short)
	if len(s.all) == 0 {
		return
	}
	s.best, s.sum, s.size, s.goal = append(s.best[:0], t.taken...), 0, 0, 0
	for _, n := range short {
		if n > 0 {
			s.goal += thousandth
		}
	}
	for _, at := range t.taken {
		if shape := p.v.work.at(at).shape; !p.blocks(shape) {
			s.sum, s.size = s.sum+shape.Priority, s.size+helps(at, shape, &short).size
		}
	}
	forced, most := len(s.picked), len(t.taken)-len(s.picked)
	for count, found := s.startCount(&short), false; count <= most && !found; count++ {
		sum, size := s.sum, s.size
		if count < most {
			s.sum, s.size = math.MaxInt, math.MaxInt64
		}
		s.steps, s.enough = searchSteps, s.leastSum(count, forced, highest)
		if found = t.try(p, free, 0, count, 0, 0, 0); !found {
			s.sum, s.size = sum, size
		}
	}
	t.taken = append(t.taken[:0], s.best...)
	slices.SortFunc(t.taken, p.v.leavesBefore)
}

// force picks the chosen victims that hold a needed port: they leave in any case. It
// returns what is free then.
func (t *victims) force(p *placing, free Resources) Resources {
	t.lost, t.search.picked = t.lost[:0], t.search.picked[:0]
	for _, at := range t.taken {
		if r := p.v.work.at(at); p.blocks(r.shape) {
			t.lose(p, r)
			t.search.picked = append(t.search.picked, at)
			free = free.plus(r.shape.Needs.Resources)
		}
	}
	return free
}

// list collects the other candidates up to a priority that help.
func (s *search) list(p *placing, i int32, highest int, short *Resources) {
	s.all = s.all[:0]
	for _, at := range p.v.nodes[i].replicas {
		r := p.v.work.at(at)
		if r.shape.Priority > highest {
			break
		}
		if r.standing == Leaving || p.needed(r.shape.work) || p.guarded(r) || p.blocks(r.shape) {
			continue
		}
		if one := helps(at, r.shape, short); one.gain > 0 {
			s.all = append(s.all, one)
		}
	}
	if len(s.all) == 0 {
		return
	}
	s.lowest = s.all[0].shape.Priority // sorted by priority
	slices.SortStableFunc(s.all, func(a, b evictable) int {
		return cmp.Or(-cmp.Compare(a.gain, b.gain), cmp.Compare(a.shape.Priority, b.shape.Priority), cmp.Compare(a.size, b.size))
	})
}

// leastSum is the smallest possible sum of so many priorities. For a single one it is
// unreachable, so that the search continues to the smallest replica.
func (s *search) leastSum(count, forced, highest int) int {
	switch {
	case count == 1:
		return -1
	case forced > 0:
		return count * s.lowest
	default: // one of them has the highest
		return (count-1)*s.lowest + highest
	}
}

// leastCount is a lower bound for the number of victims, judged by the largest candidates,
// and the lowest priority among them.
func (t *victims) leastCount(p *placing, i int32, highest int) (lowest, count int) {
	if len(t.taken) == 1 {
		return highest, 1
	}
	var largest Resources
	lowest = highest
	for _, at := range p.v.nodes[i].replicas {
		r := p.v.work.at(at)
		if r.shape.Priority > highest {
			break
		}
		if r.standing != Leaving {
			lowest = min(lowest, r.shape.Priority)
			for k, n := range r.shape.Needs.Resources {
				largest[k] = max(largest[k], n)
			}
		}
	}
	free := p.v.free[i].plus(p.v.nodes[i].leaving)
	count = 1
	for k, n := range shortOf(&free, &p.least) {
		if n > 0 {
			count = max(count, int((n+largest[k]-1)/largest[k]))
		}
	}
	return lowest, count
}

// startCount is a lower bound for the number of victims: for each resource, as many of the
// largest as cover the shortage.
func (s *search) startCount(short *Resources) (count int) {
	for k, n := range short {
		if n == 0 {
			continue
		}
		s.amounts = s.amounts[:0]
		for j := range s.all {
			s.amounts = append(s.amounts, s.all[j].shape.Needs.Resources[k])
		}
		slices.Sort(s.amounts)
		for j := len(s.amounts) - 1; j >= 0 && n > 0; j-- {
			n -= s.amounts[j]
			count = max(count, len(s.amounts)-j)
		}
	}
	return count
}

// try picks count more from the candidates at index from on. It reports whether it found a
// better set.
func (t *victims) try(p *placing, free Resources, from, count, sum int, gain, size int64) (found bool) {
	s := &t.search
	if count == 0 {
		if !free.holds(&p.least) || sum > s.sum || sum == s.sum && size >= s.size {
			return false
		}
		s.best, s.sum, s.size = append(s.best[:0], s.picked...), sum, size
		return true
	}
	for k := from; k+count <= len(s.all) && s.steps > 0 && s.sum > s.enough; k++ {
		s.steps--
		one := &s.all[k]
		if gain+int64(count)*one.gain < s.goal {
			break // the others help no more than this one
		}
		r := p.v.work.at(one.at)
		least := sum + one.shape.Priority + (count-1)*s.lowest
		alike := k > from && s.all[k-1].shape == one.shape && p.v.work.at(s.all[k-1].at).standing == r.standing
		if alike || least > s.sum || least == s.sum && size+one.size >= s.size || !t.lose(p, r) {
			continue
		}
		s.picked = append(s.picked, one.at)
		if t.try(p, free.plus(one.shape.Needs.Resources), k+1, count-1, sum+one.shape.Priority, gain+one.gain, size+one.size) {
			found = true
		}
		s.picked = s.picked[:len(s.picked)-1]
		t.keep(r)
	}
	return found
}

// shortOf is what must be freed of each resource.
func shortOf(free, least *Resources) (short Resources) {
	for k := range short {
		if least[k] != math.MinInt64 {
			short[k] = max(0, least[k]-free[k])
		}
	}
	return short
}

// helps measures how much of the shortage one replica frees.
func helps(at int32, s *shape, short *Resources) evictable {
	one := evictable{at: at, shape: s}
	for k, n := range short {
		if has := s.Needs.Resources[k]; n > 0 && has > 0 {
			share := int64(math.Ceil(float64(has) / float64(n) * thousandth))
			one.gain += min(thousandth, share)
			one.size += min(math.MaxInt32, share)
		}
	}
	return one
}
