package scheduler

import (
	"cmp"
	"container/heap"
	"slices"
)

// Snapshot is the cluster as it is. It is only read.
type Snapshot struct {
	Nodes []Node
}

// Ask is a number of replicas of one workload.
type Ask struct {
	// Workload is the uid, Name the name.
	Workload     string
	Name         string
	Count        int
	Requirements Requirements
}

// Request is what should be placed. Asks are served in their order.
type Request struct {
	Asks []Ask
}

// Plan says for every replica that was asked for where it goes or why nowhere.
type Plan struct {
	// Placements has one entry for each replica, in the order of the asks.
	Placements []Placement
	// Unplaced has one entry for each ask of which something is left over.
	Unplaced []Unplaced
}

// Placement is one replica's place. Ask is the index of the ask that it is for,
// Node the uid.
type Placement struct {
	Ask      int
	Workload string
	Node     string
	NodeName string
	Score    Score
}

// Schedule places what is asked for. Later replicas see the earlier ones.
func Schedule(s Snapshot, r Request) Plan {
	views := newViews(s.Nodes)
	open := candidates{list: make([]candidate, 0, len(views))}
	var plan Plan
	for i := range r.Asks {
		one := r.Asks[i]
		one.Requirements.owner = one.Workload
		ask := &one
		before := len(plan.Placements)
		plan.Placements = open.place(plan.Placements, views, i, ask)
		if left := ask.Count - (len(plan.Placements) - before); left > 0 {
			plan.Unplaced = append(plan.Unplaced, unplaced(views, i, ask, left))
		}
	}
	return plan
}

// place puts as many replicas of an ask as possible onto nodes and appends
// where. A replica changes only the node that it goes to, so the candidates are
// judged once and after that only the chosen one again.
func (open *candidates) place(placements []Placement, views []view, index int, ask *Ask) []Placement {
	if ask.Count <= 0 {
		return placements
	}
	open.list = open.list[:0]
	for i := range views {
		if passesAll(&views[i], &ask.Requirements) {
			open.list = append(open.list, candidate{node: i, score: scoreOf(&views[i], ask)})
		}
	}
	heap.Init(open)
	for range ask.Count {
		if len(open.list) == 0 {
			break
		}
		best := &open.list[0]
		node := &views[best.node]
		placements = append(placements, Placement{
			Ask: index, Workload: ask.Workload, Node: node.UID, NodeName: node.Name, Score: best.score,
		})
		node.take(ask)
		if passesAll(node, &ask.Requirements) {
			best.score = scoreOf(node, ask)
			heap.Fix(open, 0)
		} else {
			heap.Pop(open)
		}
	}
	return placements
}

// candidates is a heap with the best node on top, reused from ask to ask. Views
// are ordered by name, so that of equal ones the first by name wins.
type candidates struct {
	list []candidate
}

type candidate struct {
	node  int
	score Score
}

func (open *candidates) Len() int { return len(open.list) }

func (open *candidates) Less(i, j int) bool {
	a, b := &open.list[i], &open.list[j]
	if a.score.Total != b.score.Total {
		return a.score.Total > b.score.Total
	}
	return a.node < b.node
}

func (open *candidates) Swap(i, j int) { open.list[i], open.list[j] = open.list[j], open.list[i] }

// Push completes heap.Interface; nothing is ever added.
func (open *candidates) Push(x any) { open.list = append(open.list, x.(candidate)) }

func (open *candidates) Pop() any {
	open.list = open.list[:len(open.list)-1]
	return nil
}

// view is a node with what the plan has put on it so far.
type view struct {
	*Node
	taken      Resources
	takenPorts []PortUse
	placed     []placedCount
}

// placedCount is how many replicas of a workload the plan has put on a node.
// Few workloads of one plan meet on one node, so a list beats a map.
type placedCount struct {
	workload string
	count    int
}

// newViews makes the working view without copying nodes, ordered by name.
func newViews(nodes []Node) []view {
	views := make([]view, len(nodes))
	for i := range nodes {
		views[i].Node = &nodes[i]
	}
	slices.SortFunc(views, func(a, b view) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return views
}

func (v *view) used() Resources { return v.Requested.plus(v.taken) }

func (v *view) free() Resources {
	used := v.used()
	return Resources{CPU: v.Capacity.CPU - used.CPU, Memory: v.Capacity.Memory - used.Memory}
}

// portOwner returns who has a port that cannot be shared with those who ask,
// nil if there is nobody.
func (v *view) portOwner(p Port, r *Requirements) *PortUse {
	for _, uses := range [2][]PortUse{v.Ports, v.takenPorts} {
		for i := range uses {
			shared := uses[i].Shared && r.SharePorts && uses[i].Owner == r.owner
			if uses[i].Port == p && !shared {
				return &uses[i]
			}
		}
	}
	return nil
}

// replicas counts those of a workload that are here or planned to be.
func (v *view) replicas(workload string) int {
	n := v.Replicas[workload]
	for _, p := range v.placed {
		if p.workload == workload {
			n += p.count
		}
	}
	return n
}

// take puts one replica onto the node.
func (v *view) take(ask *Ask) {
	v.taken = v.taken.plus(ask.Requirements.Resources)
	for _, use := range ask.Requirements.uses(ask.Workload, ask.Name) {
		v.takenPorts = addUse(v.takenPorts, use)
	}
	for i := range v.placed {
		if v.placed[i].workload == ask.Workload {
			v.placed[i].count++
			return
		}
	}
	v.placed = append(v.placed, placedCount{workload: ask.Workload, count: 1})
}
