package gcpacer

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// restLook is how often a process is looked at, and restAllocates what one that is at rest allocates at most in
	// between: heartbeats and the like.
	restLook      = 5 * time.Second
	restAllocates = 2 << 20
	// restGarbage is what it must have allocated since memory was last returned, and restShare which part of its heap.
	// Collections for less are not worth it, and those of larger heaps cost more.
	restGarbage, restShare = 4 << 20, 4
)

// Rest returns to the machine what work has left behind, whenever a process has come to rest after it, until ctx ends.
// The runtime alone would keep it: it collects by how much is allocated, and a process at rest allocates nothing. With
// a large heap, of which others would notice the collection, it does nothing. Nor does it if somebody else has said how
// to collect.
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
			runtime.GC() // pools give up what they hold in the second collection
			debug.FreeOSMemory()
		}
	}
}

// memory is what a process has at one look.
type memory struct {
	// held is what the heap has of the machine's memory, in use or not.
	held uint64
	// allocated counts all that was ever allocated.
	allocated uint64
}

// rest is how much was ever allocated at the last look, and when memory was last returned.
type rest struct{ looked, returned uint64 }

// due reports whether a process is at rest and has allocated something worth collecting before.
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
