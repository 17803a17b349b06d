package object_test

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

// observed are nodes that forget what they are given and look at the memory of the process instead.
type observed struct {
	*objecttest.Disks
	store     *object.Store
	most      atomic.Int64
	mostHeap  atomic.Uint64
	remaining atomic.Int64
}

func (o *observed) Put(context.Context, string, object.Hash, []byte, uint64) error {
	raise(&o.most, o.store.Buffered())
	if o.remaining.Add(-1)%16 == 0 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		for {
			most := o.mostHeap.Load()
			if stats.HeapAlloc <= most || o.mostHeap.CompareAndSwap(most, stats.HeapAlloc) {
				break
			}
		}
	}
	return nil
}

func raise(most *atomic.Int64, to int64) {
	for {
		old := most.Load()
		if to <= old || most.CompareAndSwap(old, to) {
			return
		}
	}
}

func TestMemoryOfManyUploadsIsBounded(t *testing.T) {
	const limit, clients, size = 32 << 20, 64, 20 << 20
	disks := &observed{Disks: objecttest.NewDisks("a", "b", "c")}
	c := newClusterOver(t, objecttest.NewNames(t), disks.Disks, object.Options{Disks: disks, Memory: limit})
	disks.store = c.store
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that garbage is not taken for memory in use
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	block := content(1<<20, 1)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			body := io.LimitReader(repeating(block), size)
			if _, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: body, Size: size}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most := disks.most.Load(); most > limit || most < limit/2 {
		t.Errorf("buffers had at most %d bytes, want most of %d and never more", most, limit)
	}
	if most := int64(disks.mostHeap.Load() - before.HeapAlloc); most > 2*limit {
		t.Errorf("the heap grew by %d bytes with a limit of %d", most, limit)
	}
}

// Readers whose clients do not take what they asked for must leave memory to the others.
func TestSlowReadersLeaveMemoryToOthers(t *testing.T) {
	c := newClusterOver(t, objecttest.NewNames(t), objecttest.NewDisks("a", "b"), object.Options{Memory: 16 << 20})
	data := content(20<<20, 1)
	c.put("k", data)
	for range 8 {
		_, r, err := c.store.Open(t.Context(), photos, "k", "")
		if err != nil {
			t.Fatal(err)
		}
		g := r.ReadRange(t.Context(), 0, -1)
		defer r.Close()
		defer g.Close()
		first := make([]byte, 1)
		if _, err := io.ReadFull(g, first); err != nil || !bytes.Equal(first, data[:1]) {
			t.Fatal(err)
		}
	}
	c.has("k", data)
	c.put("k2", data)
}

type repeating []byte

func (r repeating) Read(p []byte) (int, error) {
	total := 0
	for total < len(p) {
		total += copy(p[total:], r)
	}
	return total, nil
}
