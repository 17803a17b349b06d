package object_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

// event is what a client did with a key, and when by a clock that only counts.
type event struct {
	began, ended int64
	// write is the number of the content that was put or read; 0 is none.
	write uint64
	read  bool
}

// unknown is the end of a write that failed: it may still have been applied.
const unknown = int64(1) << 62

// history is everything that happened to one key.
type history struct {
	mu     sync.Mutex
	events []event
}

func (h *history) add(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// check returns an error if a read has returned what another write had replaced before the read began, or what nobody
// had begun to write.
func (h *history) check() error {
	writes := append([]event{{began: -2, ended: -1}}, h.writes()...) // at first there is nothing
	for _, r := range h.events {
		if !r.read {
			continue
		}
		possible := false
		for _, w := range writes {
			if w.write == r.write && w.began < r.ended && !replaced(writes, w, r) {
				possible = true
			}
		}
		if !possible {
			return fmt.Errorf("a read from %d to %d returned write %d: %+v", r.began, r.ended, r.write, writes)
		}
	}
	return nil
}

func (h *history) writes() []event {
	var writes []event
	for _, e := range h.events {
		if !e.read {
			writes = append(writes, e)
		}
	}
	return writes
}

// replaced is whether some write began after w had ended, and had ended before the read began.
func replaced(writes []event, w, read event) bool {
	for _, other := range writes {
		if other.began > w.ended && other.ended < read.began {
			return true
		}
	}
	return false
}

// numbered is content that says which write it is from, in its first bytes and in all others.
func numbered(write uint64, size int) []byte {
	data := content(max(size, 8), write)
	binary.BigEndian.PutUint64(data, write)
	return data
}

// Clients put, read and delete a few keys at once, while one node at a time fails, fills up, loses chunks or returns
// other bytes. Every read must return all bytes of one write, and no older one than it may.
func TestClientsSeeOneHistoryWhileANodeFails(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d")
	var clock, iteration atomic.Int64
	var written atomic.Uint64
	rapid.Check(t, func(t *rapid.T) {
		b := photos
		if rapid.Bool().Draw(t, "encrypted") {
			b = encrypted(c.t, "vault")
		}
		b.UID = fmt.Sprint("model-", iteration.Add(1))
		victim := rapid.SampledFrom([]string{"uid-a", "uid-b", "uid-c", "uid-d"}).Draw(t, "victim")
		keys := []string{"x", "y"}
		histories := map[string]*history{"x": {}, "y": {}}
		sizes := sync.Map{}
		client := func(script []string, size int) {
			for i, step := range script {
				key := keys[i%len(keys)]
				h := histories[key]
				e := event{began: clock.Add(1), ended: unknown}
				switch step {
				case "put":
					e.write = written.Add(1)
					sizes.Store(e.write, max(size, 8))
					_, err := c.store.Put(c.t.Context(), b, object.PutRequest{Key: key, Body: bytes.NewReader(numbered(e.write, size)), Size: -1})
					if err == nil {
						e.ended = clock.Add(1)
					}
				case "delete":
					_, err := c.store.Delete(c.t.Context(), b, key, "", object.Condition{})
					if err == nil || errors.Is(err, object.ErrNoKey) {
						e.ended = clock.Add(1)
					}
				case "read":
					data, err := c.read(b, key, "")
					e.ended, e.read = clock.Add(1), true
					if err != nil && !errors.Is(err, object.ErrNoKey) {
						c.t.Errorf("a read fails although one node at most does: %v", err)
						continue
					}
					if err == nil {
						e.write = binary.BigEndian.Uint64(data)
						size, _ := sizes.Load(e.write)
						if !bytes.Equal(data, numbered(e.write, size.(int))) {
							c.t.Errorf("the object of write %d is torn", e.write)
						}
					}
				}
				h.add(e)
			}
		}
		fault := func(kind string) {
			switch kind {
			case "gone":
				c.disks.Break(victim, objecttest.Faults{Gone: true})
			case "full":
				c.disks.Break(victim, objecttest.Faults{Full: true})
			case "slow":
				c.disks.Break(victim, objecttest.Faults{Delay: 30 * time.Millisecond})
			case "lies":
				c.disks.Break(victim, objecttest.Faults{Lies: true})
				fallthrough
			case "damage":
				page, _, _ := c.disks.List(c.t.Context(), victim, object.Hash{}, 100)
				for _, held := range page {
					c.disks.Corrupt(victim, held.Hash)
				}
			case "lose":
				page, _, _ := c.disks.List(c.t.Context(), victim, object.Hash{}, 100)
				for _, held := range page {
					c.disks.Lose(victim, held.Hash)
				}
			case "epoch":
				c.names.AdvanceEpoch(c.t)
			case "heal":
				c.disks.Break(victim, objecttest.Faults{})
			}
		}
		step := rapid.SampledFrom([]string{"put", "put", "read", "read", "delete"})
		kind := rapid.SampledFrom([]string{"gone", "full", "slow", "lies", "damage", "lose", "epoch", "heal"})
		size := rapid.SampledFrom([]int{8, 1000, 100_000, object.ChunkSize + 1000})
		var clients sync.WaitGroup
		for range 3 {
			script, size := rapid.SliceOfN(step, 1, 8).Draw(t, "script"), size.Draw(t, "size")
			clients.Go(func() { client(script, size) })
		}
		faults := rapid.SliceOfN(kind, 0, 6).Draw(t, "faults")
		clients.Go(func() {
			for _, kind := range faults {
				fault(kind)
			}
		})
		clients.Wait()
		fault("heal")
		client([]string{"read", "read"}, 0)
		for key, h := range histories {
			if err := h.check(); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
		if c.t.Failed() {
			t.FailNow()
		}
	})
}
