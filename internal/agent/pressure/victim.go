package pressure

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cloudless/cloudless/internal/spec"
)

// Replica is what counts about a running replica. Memory is in bytes.
type Replica struct {
	UID      string
	Priority int32
	Used     int64
	Request  int64
	// Alone is whether its workload wants no other replica.
	Alone bool
}

// leastUsed is the memory below which a replica is not worth evicting.
const leastUsed = 4 * mebibyte

// Victim returns the replica to evict. Requests are promises, so replicas that use more than they requested come first.
// Among them, the lowest priority goes first, then the one that exceeds its request most. The only replica of a workload
// counts half, because its eviction leaves nothing that serves.
func Victim(replicas []Replica) (Replica, bool) {
	worth := slices.DeleteFunc(slices.Clone(replicas), func(r Replica) bool { return r.Used < leastUsed })
	if len(worth) == 0 {
		return Replica{}, false
	}
	return slices.MinFunc(worth, func(a, b Replica) int {
		return cmp.Or(
			-compare(a.excess() > 0, b.excess() > 0),
			cmp.Compare(a.Priority, b.Priority),
			-cmp.Compare(a.weight(), b.weight()),
			-cmp.Compare(a.UID, b.UID), // the newest
		)
	}), true
}

// excess is what it uses above its request.
func (r Replica) excess() int64 { return r.Used - r.Request }

func (r Replica) weight() int64 {
	weight := r.excess()
	if weight <= 0 {
		weight = r.Used
	}
	if r.Alone {
		weight /= 2
	}
	return weight
}

// compare puts false before true.
func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Reason says why a replica was evicted.
func (r Replica) Reason(short Reading) string {
	asked := "no request"
	if r.Request > 0 {
		asked = "a request of " + spec.HumanBytes(r.Request)
	}
	return fmt.Sprintf("Evicted: %s, and it used %s with %s.", short, spec.HumanBytes(r.Used), asked)
}
