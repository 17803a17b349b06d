package scheduler

// packMax is the score of a node that the replica fills to the last byte. A
// replica of the same workload weighs more than any filling, so that spreading
// goes before packing.
const (
	packMax     = 1000
	spreadPrice = packMax + 1
)

// Score is why a node was preferred to the others that would do.
type Score struct {
	// Spread falls with every replica of the same workload on the node.
	Spread int
	// Pack rises with how full the replica makes the node: 0 to 1000.
	Pack int
	// Total is their sum; the node with the highest is taken.
	Total int
}

func scoreOf(n *view, ask *Ask) Score {
	used := n.used().plus(ask.Requirements.Resources)
	s := Score{
		Spread: -spreadPrice * n.replicas(ask.Workload),
		Pack:   (share(used.CPU, n.Capacity.CPU) + share(used.Memory, n.Capacity.Memory)) / 2,
	}
	s.Total = s.Spread + s.Pack
	return s
}

// share gives used/all in thousandths. A node that says to have none of
// something counts as empty in that.
func share(used, all int64) int {
	if all <= 0 || used <= 0 {
		return 0
	}
	if used >= all {
		return packMax
	}
	return int(float64(used) / float64(all) * packMax)
}
