package chunks_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/object/chunks"
)

// known is a chunk in the model.
type known struct {
	data  []byte
	epoch uint64
}

// modelled is a store beside a map that says what must be in it.
type modelled struct {
	t     *testing.T
	o     chunks.Options
	s     *chunks.Store
	model map[chunks.Hash]known
	// epoch grows, as it does in a cluster.
	epoch uint64
}

func (m *modelled) check(rt *rapid.T, what string, err error) {
	rt.Helper()
	if err != nil {
		rt.Fatalf("%s: %v", what, err)
	}
}

// chunk draws one of few, so that it is often there already.
func (m *modelled) chunk(rt *rapid.T) (chunks.Hash, []byte) {
	n := rapid.IntRange(0, 40).Draw(rt, "chunk")
	sizes := []int{0, 1, 100, 4096, 5000, 64 << 10, 70_000, 300_000}
	return content(n, sizes[n%len(sizes)])
}

func (m *modelled) put(rt *rapid.T) {
	hash, data := m.chunk(rt)
	epoch := m.epoch - rapid.Uint64Range(0, 1).Draw(rt, "late")
	m.check(rt, "put", m.s.Put(m.t.Context(), hash, data, epoch))
	m.model[hash] = known{data, max(epoch, m.model[hash].epoch)}
}

func (m *modelled) stamp(rt *rapid.T) {
	hash, _ := m.chunk(rt)
	had, err := m.s.Stamp(m.t.Context(), hash, m.epoch)
	m.check(rt, "stamp", err)
	want, there := m.model[hash]
	if had != there {
		rt.Fatalf("stamped %s: %t", hash, had)
	}
	if there {
		m.model[hash] = known{want.data, max(m.epoch, want.epoch)}
	}
}

func (m *modelled) delete(rt *rapid.T) {
	upTo := m.epoch - rapid.Uint64Range(0, 2).Draw(rt, "age")
	var hashes []chunks.Hash
	for range rapid.IntRange(1, 20).Draw(rt, "count") {
		hash, _ := m.chunk(rt)
		hashes = append(hashes, hash)
	}
	deleted, err := m.s.Delete(m.t.Context(), hashes, upTo)
	m.check(rt, "delete", err)
	for _, hash := range hashes {
		want, there := m.model[hash]
		if gone := !there || want.epoch <= upTo; gone != slices.Contains(deleted, hash) {
			rt.Fatalf("deleted %s: %t", hash, !gone)
		}
		if there && want.epoch <= upTo {
			defer delete(m.model, hash)
		}
	}
}

func (m *modelled) get(rt *rapid.T) {
	hash, data := m.chunk(rt)
	offset := rapid.IntRange(0, len(data)).Draw(rt, "offset")
	length := rapid.IntRange(0, len(data)-offset).Draw(rt, "length")
	got, err := m.s.Get(hash, uint32(offset), uint32(length), nil)
	want, there := m.model[hash]
	if !there {
		if !errors.Is(err, chunks.ErrMissing) {
			rt.Fatalf("get of a missing chunk: %v", err)
		}
		return
	}
	part := want.data[offset:]
	if length > 0 {
		part = part[:length]
	}
	if err != nil || !bytes.Equal(got, part) {
		rt.Fatalf("get %d bytes at %d: %d bytes, %v", length, offset, len(got), err)
	}
}

func (m *modelled) open(rt *rapid.T) {
	s, err := chunks.Open(m.o)
	m.check(rt, "open", err)
	m.s = s
}

func (m *modelled) reopen(rt *rapid.T) {
	m.check(rt, "close", m.s.Close())
	m.open(rt)
}

func (m *modelled) crash(rt *rapid.T) {
	m.check(rt, "crash", m.s.Crash())
	m.open(rt)
}

func (m *modelled) loseIndex(rt *rapid.T) {
	m.check(rt, "crash", m.s.Crash())
	m.check(rt, "remove the index", os.RemoveAll(filepath.Join(m.o.Dir, "index")))
	m.open(rt)
}

func (m *modelled) reclaim(rt *rapid.T) {
	if rapid.Bool().Draw(rt, "seal") {
		m.s.Seal()
	}
	m.check(rt, "reclaim", m.s.Reclaim(m.t.Context()))
}

func (m *modelled) scrub(rt *rapid.T) {
	var damaged int64
	err := m.s.Scrub(m.t.Context(), 1<<40, func(_, _, found int64) { damaged = found })
	m.check(rt, "scrub", err)
	if damaged != 0 {
		rt.Fatalf("%d chunks are damaged", damaged)
	}
}

// compare checks everything.
func (m *modelled) compare(rt *rapid.T) {
	epochs := map[chunks.Hash]uint64{}
	for hash, want := range m.model {
		epochs[hash] = want.epoch
		got, err := m.s.Get(hash, 0, 0, nil)
		if err != nil || !bytes.Equal(got, want.data) {
			rt.Fatalf("chunk %s of %d bytes: %d bytes, %v", hash, len(want.data), len(got), err)
		}
	}
	if got := list(m.t, m.s); !maps.Equal(got, epochs) {
		rt.Fatalf("the store lists %v, want %v", got, epochs)
	}
	stats := m.s.Stats()
	if stats.Chunks != int64(len(m.model)) || stats.Damaged != 0 || (stats.Used == 0) != (len(m.model) == 0) {
		rt.Fatalf("there are %d chunks, and the stats are %+v", len(m.model), stats)
	}
}

// A store behaves like a map, whatever happens to the process, to the index and in the background.
func TestStoreIsAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &modelled{t: t, o: small(t.TempDir()), model: map[chunks.Hash]known{}, epoch: 10}
		m.open(rt)
		defer func() {
			if err := m.s.Close(); err != nil {
				rt.Error(err)
			}
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"put": m.put, "put more": m.put, "stamp": m.stamp, "delete": m.delete, "get": m.get,
			"reopen": m.reopen, "crash": m.crash, "lose the index": m.loseIndex,
			"reclaim": m.reclaim, "scrub": m.scrub,
			"next epoch": func(*rapid.T) { m.epoch++ },
			"":           m.compare,
		})
	})
}
