package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cloudless/cloudless/internal/spec"
)

// Rebalancing asks whether replicas that run would be placed elsewhere today, and how much is
// gained by it. Both nodes are judged as if the replica were on neither. So the answer is the
// same after the move, and while nothing else changes, no replica goes back.

// Rebalancing asks for the best move of a replica that runs.
type Rebalancing struct {
	// Replicas are the uids of those that may be moved.
	Replicas []string
	// Leaving are the uids of those that are being moved already.
	Leaving []string
	// MinGain is by how much the score of the other node must be higher, in millionths.
	MinGain int32
	// May reports whether replicas may be moved to a node now. If the best node of a replica may
	// not be used, the replica waits for it. It may be nil.
	May func(node string) bool
}

// Move is a better node for a replica that runs. Own is its node and Other the better one.
type Move struct {
	Review
	// Replica is the uid.
	Replica string
	// Placement is its place on the other node.
	Placement Placement
	Gain      Gain
	// OwnUse and OtherUse are how much of the two nodes is promised before the move.
	OwnUse, OtherUse Use
}

// Gain is by how much a node is better than another. The zero value is nothing.
type Gain struct {
	// Criterion is the first one in which they differ, in ranking order. By is the difference: in
	// millionths if it is the score.
	Criterion Criterion
	By        int32
}

// Criterion is one by which nodes are ranked.
type Criterion int

// The criteria that are not levels, and the first level.
const (
	ByAffinity Criterion = iota
	ByTaints
	byFirstLevel
	ByNode  Criterion = 1000
	ByScore Criterion = 1001
)

// Use is how much of a node is promised, in percent.
type Use struct{ CPU, Memory int }

// Reaches reports whether a gain is large enough. What outranks the score always is.
func (g Gain) Reaches(least int32) bool {
	if g.Criterion < ByScore {
		least = 1
	}
	return g.By >= max(least, 1)
}

// compare is positive for the larger gain.
func (g Gain) compare(o Gain) int {
	return cmp.Or(cmp.Compare(o.Criterion, g.Criterion), cmp.Compare(g.By, o.By))
}

// Gain is what a replica would gain on the other node. It is nothing if its own node is the
// best, or would refuse it today: nothing can be compared with that.
func (s *Review) Gain() Gain {
	if s.Own.Rank <= 1 || s.Other.Rank != 1 {
		return Gain{}
	}
	a, b := &s.Other.Score, &s.Own.Score
	switch {
	case a.Affinity != b.Affinity:
		return Gain{ByAffinity, a.Affinity - b.Affinity}
	case a.Avoided != b.Avoided:
		return Gain{ByTaints, b.Avoided - a.Avoided}
	}
	for k := range min(len(s.Other.Same), len(s.Own.Same)) {
		if x, y := s.Other.Same[k], s.Own.Same[k]; x != y {
			return Gain{byFirstLevel + Criterion(k), y - x}
		}
	}
	if s.LevelsNodes && a.SameNode != b.SameNode {
		return Gain{ByNode, b.SameNode - a.SameNode}
	}
	return Gain{ByScore, a.Total - b.Total}
}

// Rebalance returns the best move: the one with the largest gain among those for which there is
// room on the other node now, beside everything that runs and without preemption. It leaves the
// view unchanged.
func (v *View) Rebalance(r Rebalancing) (best Move, found bool) {
	var moves []Move
	for _, uid := range r.Replicas {
		if m := v.moveOf(uid, r.Leaving); m.Gain.Reaches(r.MinGain) {
			moves = append(moves, m)
		}
	}
	slices.SortStableFunc(moves, func(a, b Move) int { return b.Gain.compare(a.Gain) })
	for _, m := range moves {
		if r.May != nil && !r.May(m.Other.Node) {
			continue
		}
		revision := v.work.at(v.work.byUID[m.Replica]).shape.Revision
		plan := v.Plan(Request{Asks: []Ask{{Revision: revision, Pinned: true, On: []string{m.Other.Node}, Modest: true}}})
		if len(plan.Placements) == 1 {
			m.Placement = plan.Placements[0]
			m.Placement.Score = m.Other.Score
			m.OwnUse, m.OtherUse = v.useOf(m.Own.Node), v.useOf(m.Other.Node)
			return m, true
		}
	}
	return Move{}, false
}

// moveOf reviews a replica as if others had left.
func (v *View) moveOf(uid string, leaving []string) Move {
	at, known := v.work.byUID[uid]
	if !known {
		return Move{}
	}
	v.refresh()
	own, s := v.work.at(at).node, v.enter(v.work.at(at).shape.Revision)
	v.evict(at)
	for _, one := range leaving {
		if gone, known := v.work.byUID[one]; known && gone != at {
			v.evict(gone)
		}
	}
	p := &v.place
	p.begin(v, s)
	m := Move{Replica: uid, Review: p.review(own)}
	v.rollback()
	v.leave(s)
	m.Gain = m.Review.Gain()
	return m
}

func (v *View) useOf(node string) (u Use) {
	i := v.slots[node]
	room, free := &v.nodes[i].room, &v.free[i]
	percent := func(r Resource) int {
		if room[r] <= 0 {
			return 0
		}
		return int(100 - float64(free[r])/float64(room[r])*100 + 0.5)
	}
	return Use{CPU: percent(CPU), Memory: percent(Memory)}
}

// Why says why the other node is better: the first criterion in which they differ.
func (m *Move) Why() string {
	a, b := &m.Other.Score, &m.Own.Score
	to, from := m.Other.NodeName, m.Own.NodeName
	switch c := m.Gain.Criterion; c {
	case ByAffinity:
		return fmt.Sprintf("the preferences that %s fulfils weigh %d, those that %s fulfils %d", to, a.Affinity, from, b.Affinity)
	case ByTaints:
		return fmt.Sprintf("%s has %s to avoid, %s %d", to, spec.Count(int(a.Avoided), "taint"), from, b.Avoided)
	case ByNode:
		return fmt.Sprintf("%s has %s of the workload, %s %d", to, spec.Count(int(a.SameNode), "other replica"), from, b.SameNode)
	case ByScore:
	default:
		k := c - byFirstLevel
		return fmt.Sprintf("the %s of %s has %s of the workload, that of %s %d", topologyNoun(m.Levels[k]), to, spec.Count(int(m.Other.Same[k]), "other replica"), from, m.Own.Same[k])
	}
	why := fmt.Sprintf("the score of %s is %s, that of %s %s, a gain of %s, most of all by %s",
		to, total(a), from, total(b), spec.FormatScore(m.Gain.By), m.most(a, b))
	resource, before, after := "memory", m.OwnUse.Memory, m.OtherUse.Memory
	if cpu, memory := m.OwnUse.CPU-m.OtherUse.CPU, before-after; max(cpu, -cpu) > max(memory, -memory) {
		resource, before, after = "CPU", m.OwnUse.CPU, m.OtherUse.CPU
	}
	return fmt.Sprintf("%s; %d %% of the %s of %s is promised, %d %% of that of %s", why, after, resource, to, before, from)
}
