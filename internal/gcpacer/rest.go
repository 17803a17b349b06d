package gcpacer

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// restLook is how often a process is checked, and restAllocates is how much an idle one allocates at most in
	// between: heartbeats and the like.
	restLook      = 5 * time.Second
	restAllocates = 2 << 20
	// restGarbage is how much it must have allocated since memory was last returned, and restShare which share of its
	// heap. Collections for less are not worth it, and those of larger heaps cost more.
	restGarbage, restShare = 4 << 20, 4
)

// Rest returns unused memory to the machine whenever a process becomes idle after work, until ctx ends. The runtime
// alone would keep it: it collects after so much allocation, and an idle process allocates nothing. Rest does nothing
// for a large heap, whose collection others would notice, nor if the user sets the pace.
func Rest(ctx context.Context) error {
	if !ownGC() {
		return nil
	}
	looks := time.NewTicker(restLook)
	defer looks.Stop()
	var r rest
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-looks.C:
		}
		if r.due(readMemory()) {
			runtime.GC() // pools release their objects in the second collection
			debug.FreeOSMemory()
		}
	}
}

// memory is what one check of a process has found.
type memory struct {
	// held is the machine's memory that the heap has, in use or not.
	held uint64
	// allocated counts everything that was ever allocated.
	allocated uint64
}

// rest holds the allocations at the last check, and when memory was last returned.
type rest struct{ looked, returned uint64 }

// due reports whether a process is idle and has allocated something worth collecting before.
func (r *rest) due(m memory) bool {
	atRest := m.allocated-r.looked < restAllocates
	r.looked = m.allocated
	if !atRest || m.allocated-r.returned < max(restGarbage, m.held/restShare) || m.held >= largeHeap {
		return false
	}
	r.returned = m.allocated
	return true
}

func readMemory() memory {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	return memory{allocated: value(0), held: value(1) + value(2) + value(3)}
}
