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

// Gain is by how much a node is better than another.
type Gain struct {
	// Outranks is whether it is better by a criterion that comes before the score.
	Outranks bool
	// Score is by how much its score is higher, in millionths. It is 0 if Outranks.
	Score int32
}

// Use is how much of a node is promised, in percent.
type Use struct{ CPU, Memory int }

// Reaches reports whether a gain is large enough.
func (g Gain) Reaches(least int32) bool { return g.Outranks || g.Score >= max(least, 1) }

func (g Gain) compare(o Gain) int {
	switch {
	case g.Outranks && !o.Outranks:
		return 1
	case o.Outranks && !g.Outranks:
		return -1
	}
	return cmp.Compare(g.Score, o.Score)
}

// Gain is what a replica would gain on the other node. It is nothing if its own node is the
// best, or would refuse it today: nothing can be compared with that.
func (s *Review) Gain() Gain {
	a, b := &s.Other.Score, &s.Own.Score
	switch {
	case s.Own.Rank <= 1 || s.Other.Rank != 1:
		return Gain{}
	case a.Affinity != b.Affinity || a.Avoided != b.Avoided || !slices.Equal(s.Other.Same, s.Own.Same) ||
		s.LevelsNodes && a.SameNode != b.SameNode:
		return Gain{Outranks: true}
	}
	return Gain{Score: a.Total - b.Total}
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
	switch {
	case a.Affinity != b.Affinity:
		return fmt.Sprintf("the preferences that %s fulfils weigh %d, those that %s fulfils %d", to, a.Affinity, from, b.Affinity)
	case a.Avoided != b.Avoided:
		return fmt.Sprintf("%s has %s to avoid, %s %d", to, spec.Count(int(a.Avoided), "taint"), from, b.Avoided)
	}
	for k := range min(len(m.Other.Same), len(m.Own.Same)) {
		if x, y := m.Other.Same[k], m.Own.Same[k]; x != y {
			return fmt.Sprintf("the %s of %s has %s of the workload, that of %s %d", topologyNoun(m.Levels[k]), to, spec.Count(int(x), "other replica"), from, y)
		}
	}
	if m.LevelsNodes && a.SameNode != b.SameNode {
		return fmt.Sprintf("%s has %s of the workload, %s %d", to, spec.Count(int(a.SameNode), "other replica"), from, b.SameNode)
	}
	why := fmt.Sprintf("the score of %s is %s, that of %s %s, a gain of %s, most of all by %s",
		to, total(a), from, total(b), spec.FormatScore(m.Gain.Score), m.most(a, b))
	resource, before, after := "memory", m.OwnUse.Memory, m.OtherUse.Memory
	if cpu, memory := m.OwnUse.CPU-m.OtherUse.CPU, before-after; max(cpu, -cpu) > max(memory, -memory) {
		resource, before, after = "CPU", m.OwnUse.CPU, m.OtherUse.CPU
	}
	return fmt.Sprintf("%s; %d %% of the %s of %s is promised, %d %% of that of %s", why, after, resource, to, before, from)
}
