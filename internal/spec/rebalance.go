package spec

import (
	"cmp"
	"fmt"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Rebalance says whether and how fast replicas that run are moved to better nodes.
type Rebalance struct {
	Enabled bool
	// MinGain is by how much the score of the other node must be higher, in millionths.
	MinGain int32
	// Replicas is how many may be moved within Per, and at the same time.
	Replicas int
	Per      time.Duration
	// Rest is how long a moved replica stays where it is.
	Rest time.Duration
}

// Defaults of rebalancing.
const (
	defaultMinGain   = 0.1
	defaultMoves     = 1
	defaultMovesPer  = time.Minute
	defaultRest      = 10 * time.Minute
	minRest, maxRest = time.Second, 24 * time.Hour

	// maxDoubled is how often the rest of a replica that is moved again and again doubles.
	maxDoubled = 8
	// maxCalm is how long a node must have been ready at most before replicas are moved to it.
	maxCalm = time.Minute
)

// RebalanceOf returns the configured rebalancing.
func RebalanceOf(c *v1.ClusterSpec) Rebalance {
	r := c.GetRebalance()
	return Rebalance{
		Enabled: r.GetEnabled(), MinGain: int32(cmp.Or(r.GetMinGain(), defaultMinGain)*1e6 + 0.5),
		Replicas: cmp.Or(int(r.GetReplicas()), defaultMoves), Per: cmp.Or(durationOf(r.GetPer()), defaultMovesPer),
		Rest: cmp.Or(durationOf(r.GetRest()), defaultRest),
	}
}

// RestAfter is how long a replica rests after so many moves in a row.
func (r Rebalance) RestAfter(moves int) time.Duration {
	return r.Rest << min(max(moves-1, 0), maxDoubled)
}

// Calm is how long a node must have been ready before replicas are moved to it: one that comes and goes gets none.
func (r Rebalance) Calm() time.Duration { return min(r.Rest, maxCalm) }

// FormatScore formats a score or a gain in millionths as a fraction of 1.
func FormatScore(millionths int32) string { return fmt.Sprintf("%.3g", float64(millionths)/1e6) }

func checkRebalance(path string, r *v1.Rebalance, found *violations) {
	within(path+".per", r.GetPer(), minPer, MaxPer, found)
	within(path+".rest", r.GetRest(), minRest, maxRest, found)
}

func normalRebalance(r *v1.Rebalance) *v1.Rebalance {
	if r == nil {
		return nil
	}
	canonicalDuration(&r.Per)
	canonicalDuration(&r.Rest)
	return unlessEmpty(r)
}
