package scheduler

import (
	"fmt"
	"math"

	"github.com/cloudless/cloudless/internal/spec"
)

// Resource is a limited resource of a node.
type Resource int

// CPU is in thousandths, memory and disk in bytes, bandwidth in bits per second, GPU in
// whole devices.
const (
	CPU Resource = iota
	Memory
	Disk
	Bandwidth
	GPU
	resourceCount
)

// String is the word for a resource in sentences.
func (r Resource) String() string {
	return [resourceCount]string{"CPU", "memory", "disk", "bandwidth", "GPU"}[r]
}

// format formats an amount for people.
func (r Resource) format(n int64) string {
	switch r {
	case CPU:
		return spec.FormatCPU(n)
	case Memory, Disk:
		return spec.HumanBytes(n)
	case Bandwidth:
		return spec.FormatBandwidth(n)
	default:
		return fmt.Sprint(n)
	}
}

// Resources are amounts by resource.
type Resources [resourceCount]int64

// maxAmount keeps sums of amounts far from overflowing.
const maxAmount = math.MaxInt64 >> 8

func (r Resources) plus(o Resources) Resources {
	for i := range r {
		r[i] = clamp(r[i]+o[i], -maxAmount, maxAmount)
	}
	return r
}

func (r Resources) minus(o Resources) Resources {
	for i := range r {
		r[i] = clamp(r[i]-o[i], -maxAmount, maxAmount)
	}
	return r
}

// least is how much must be free for a need. Resources that are not needed do not count, so
// that a replica without needs fits on an overcommitted node.
func (r *Resources) least() Resources {
	least := *r
	for i := range least {
		if least[i] <= 0 {
			least[i] = math.MinInt64
		}
	}
	return least
}

// holds reports whether there is at least so much of everything. It is called for every
// node, and unrolled because a loop would be slower.
func (r *Resources) holds(least *Resources) bool {
	return r[CPU] >= least[CPU] && r[Memory] >= least[Memory] && r[Disk] >= least[Disk] &&
		r[Bandwidth] >= least[Bandwidth] && r[GPU] >= least[GPU]
}

func clamp[T int | int32 | int64](n, least, most T) T { return max(least, min(most, n)) }

// thousandth is the scale of shares, scores and weights: integers, because a plan must be
// the same on every machine to the byte.
const thousandth = 1000
