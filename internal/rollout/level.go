package rollout

import (
	"container/heap"
	"math"
	"slices"
)

// level moves the surplus to the front of replicas that are sorted by usefulness, least
// useful first. Among equally useful replicas it takes from the fullest place, so that the
// rest is level: over the first kind of place, then over the next. Otherwise it takes the
// newest.
func (in Input) level(sorted []Replica, surplus int) {
	rank := in.usefulness(sorted[surplus-1])
	first := slices.IndexFunc(sorted, func(r Replica) bool { return in.usefulness(r) == rank })
	end := surplus
	for end < len(sorted) && in.usefulness(sorted[end]) == rank {
		end++
	}
	if end == surplus {
		return // all of them go
	}
	c := nodeGroups{there: map[string]int{}}
	byNode := map[string]*nodeGroup{}
	for i, r := range sorted[first:] {
		one := byNode[r.Node]
		if one == nil {
			one = &nodeGroup{places: in.Places(r.Node)}
			byNode[r.Node] = one
		}
		for _, place := range one.places {
			c.there[place]++
		}
		if first+i < end {
			one.replicas = append(one.replicas, r)
		}
	}
	for _, one := range byNode {
		if len(one.replicas) > 0 {
			one.size = c.size(one)
			c.all = append(c.all, one)
		}
	}
	heap.Init(&c)
	gone := map[string]bool{}
	for len(gone) < surplus-first {
		gone[c.take().UID] = true
	}
	slices.SortStableFunc(sorted[first:end], func(a, b Replica) int {
		switch {
		case gone[a.UID] == gone[b.UID]:
			return 0
		case gone[a.UID]:
			return -1
		}
		return 1
	})
}

// nodeGroup is the replicas of one node, the newest first.
type nodeGroup struct {
	replicas []Replica
	places   []string
	// size is how many replicas there are in each of the places, when last computed. It
	// only shrinks.
	size []int
}

// nodeGroups are ordered by size, the largest first.
type nodeGroups struct {
	all   []*nodeGroup
	there map[string]int // replicas by place
}

// size of a replica without a node is larger than any.
func (c *nodeGroups) size(of *nodeGroup) []int {
	if len(of.places) == 0 {
		return []int{math.MaxInt}
	}
	size := make([]int, len(of.places))
	for i, place := range of.places {
		size[i] = c.there[place]
	}
	return size
}

// take removes the newest replica from the largest group.
func (c *nodeGroups) take() Replica {
	for {
		top := c.all[0]
		if now := c.size(top); slices.Compare(now, top.size) < 0 { // others of its places have gone since
			top.size = now
			heap.Fix(c, 0)
			continue
		}
		r := top.replicas[0]
		top.replicas = top.replicas[1:]
		for _, place := range top.places {
			c.there[place]--
		}
		if top.size = c.size(top); len(top.replicas) == 0 {
			heap.Pop(c)
		} else {
			heap.Fix(c, 0)
		}
		return r
	}
}

func (c *nodeGroups) Len() int { return len(c.all) }

func (c *nodeGroups) Less(i, j int) bool {
	a, b := c.all[i], c.all[j]
	if by := slices.Compare(a.size, b.size); by != 0 {
		return by > 0
	}
	return len(a.replicas) > 0 && (len(b.replicas) == 0 || byAge(a.replicas[0], b.replicas[0]) > 0)
}

func (c *nodeGroups) Swap(i, j int) { c.all[i], c.all[j] = c.all[j], c.all[i] }

func (c *nodeGroups) Push(x any) { c.all = append(c.all, x.(*nodeGroup)) }

func (c *nodeGroups) Pop() any {
	last := c.all[len(c.all)-1]
	c.all = c.all[:len(c.all)-1]
	return last
}
