// Package placement decides which nodes should have a chunk. It is pure: a list of nodes in, the same list in another
// order out, without a clock and without randomness. It must not know objects, connections or why a node is left out.
//
// The order depends on the digest of the chunk, so that equal chunks meet on the same nodes, the chunks of one object are
// on many, and a node that joins or leaves moves only its own share.
package placement

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
)

const (
	// reserve is what a node must have beyond the chunk, or it does not get it.
	reserve = 64 << 20
	// slowClass is the share of a spinning disk's free space that counts. Such disks are large, and without this they
	// would get most chunks and slow down every object.
	slowClass = 0.25
	// fuller is how much more of the local disk may be in use than of all disks, as a share of one, for the local node
	// to come first. Otherwise the machine that clients talk to would be full long before the others.
	fuller = 0.1
)

// Node is a node that can store chunks now.
type Node struct {
	UID, Zone, Class string
	Capacity, Free   int64
	// Local is the node of this machine.
	Local bool
	// Doubtful nodes come after all others: something went wrong there a moment ago.
	Doubtful bool
}

// Chunk is what is to be placed.
type Chunk struct {
	Hash [32]byte
	Size int64
	// Zones are those of the nodes that have it already.
	Zones []string
}

// Order returns the UIDs of at most limit nodes, the best first. Every prefix of the order is the best set of its size;
// the nodes after it replace those of it that fail.
//
// The zones are spread first: no zone comes twice before every other one came once. In a zone, nodes get chunks in
// proportion to their free space.
func Order(nodes []Node, chunk Chunk, limit int) []string {
	candidates := rank(nodes, chunk)
	taken := make(map[string]int, len(chunk.Zones)+limit)
	for _, zone := range chunk.Zones {
		taken[zone]++
	}
	limit = min(limit, len(candidates))
	order := make([]string, 0, limit)
	for len(order) < limit {
		best := 0
		for i := 1; i < len(candidates); i++ {
			if better(&candidates[i], &candidates[best], taken) {
				best = i
			}
		}
		chosen := candidates[best]
		taken[chosen.node.Zone]++
		order = append(order, chosen.node.UID)
		candidates = slices.Delete(candidates, best, best+1)
	}
	return order
}

// candidate is a node with its place among those that are equal otherwise. The smallest cost wins.
type candidate struct {
	node  *Node
	local bool
	cost  float64
}

func better(a, b *candidate, taken map[string]int) bool {
	if a.node.Doubtful != b.node.Doubtful {
		return b.node.Doubtful
	}
	if order := cmp.Compare(taken[a.node.Zone], taken[b.node.Zone]); order != 0 {
		return order < 0
	}
	if a.local != b.local {
		return a.local
	}
	if a.cost != b.cost {
		return a.cost < b.cost
	}
	return a.node.UID < b.node.UID
}

// rank returns the nodes that have room.
func rank(nodes []Node, chunk Chunk) []candidate {
	seed := binary.LittleEndian.Uint64(chunk.Hash[:8])
	used := usedOf(nodes)
	candidates := make([]candidate, 0, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		if n.Free < chunk.Size+reserve {
			continue
		}
		local := n.Local && 1-share(n.Free, n.Capacity) <= used+fuller
		candidates = append(candidates, candidate{node: n, local: local, cost: cost(n, seed)})
	}
	return candidates
}

// cost draws from an exponential distribution with the node's weight as its rate: the smallest of several such draws
// belongs to each node with a probability in proportion to its weight.
func cost(n *Node, seed uint64) float64 {
	digest := fnv.New64a()
	digest.Write([]byte(n.UID)) // never fails
	uniform := (float64(mix(digest.Sum64()^seed)>>11) + 0.5) / (1 << 53)
	weight := float64(n.Free)
	if n.Class == "hdd" {
		weight *= slowClass
	}
	return -math.Log(uniform) / weight
}

// mix makes every bit of the result depend on every bit of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// usedOf is the used share of all disks together.
func usedOf(nodes []Node) float64 {
	var free, capacity int64
	for i := range nodes {
		free += nodes[i].Free
		capacity += nodes[i].Capacity
	}
	return 1 - share(free, capacity)
}

func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
