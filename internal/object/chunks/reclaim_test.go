package chunks_test

import (
	"testing"

	"github.com/cloudless/cloudless/internal/object/chunks"
)

func TestSpaceOfLargeChunksReturns(t *testing.T) {
	o := small(t.TempDir())
	o.PackSize = 1 << 30 // nothing is compacted
	s := open(t, o)
	var hashes []chunks.Hash
	for n := range 10 {
		hashes = append(hashes, put(t, s, n, 1<<20, 1))
	}
	before := s.Allocated()
	if _, err := s.Delete(t.Context(), hashes[1:], 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := s.Allocated(); before-after < 8<<20 {
		t.Errorf("the packs took %d bytes, and take %d after nine of ten MiB were deleted", before, after)
	}
	_, data := content(0, 1<<20)
	wantChunk(t, s, hashes[0], data)
}

// Small chunks share blocks of the disk, so only compaction returns their space.
func TestSpaceOfSmallChunksReturns(t *testing.T) {
	o := small(t.TempDir())
	s := open(t, o)
	var odd, even []chunks.Hash
	for n := range 2000 {
		hash := put(t, s, n, 1000, 1)
		if n%20 == 0 {
			even = append(even, hash)
		} else {
			odd = append(odd, hash)
		}
	}
	for _, hash := range even[:50] {
		if _, err := s.Stamp(t.Context(), hash, 7); err != nil {
			t.Fatal(err)
		}
	}
	before, packs := s.Allocated(), len(s.Packs())
	if _, err := s.Delete(t.Context(), odd, 1); err != nil {
		t.Fatal(err)
	}
	s.Seal()
	if err := s.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := s.Allocated(); after > before/4 {
		t.Errorf("%d packs took %d bytes, and %d take %d after 19 of 20 chunks were deleted", packs, before, len(s.Packs()), after)
	}
	check := func(s *chunks.Store) {
		t.Helper()
		epochs := list(t, s)
		if len(epochs) != len(even) {
			t.Errorf("there are %d chunks, want %d", len(epochs), len(even))
		}
		for i, hash := range even {
			_, data := content(i*20, 1000)
			wantChunk(t, s, hash, data)
			if want := map[bool]uint64{true: 7, false: 1}[i < 50]; epochs[hash] != want {
				t.Errorf("chunk %d has the epoch %d, want %d", i, epochs[hash], want)
			}
		}
	}
	check(s)
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	check(open(t, o))
}

// A damaged chunk keeps its pack, so that it can still be told apart from one that was never there.
func TestDamagedChunkSurvivesCompaction(t *testing.T) {
	var found damage
	o := small(t.TempDir())
	o.OnDamage = found.found
	s := open(t, o)
	var others []chunks.Hash
	kept := put(t, s, 0, 1000, 1)
	for n := range 500 {
		others = append(others, put(t, s, n+1, 1000, 1))
	}
	pack, offset, _ := s.Place(kept)
	flip(t, s.PackPath(pack), offset+500)
	if _, err := s.Delete(t.Context(), others[1:], 1); err != nil {
		t.Fatal(err)
	}
	s.Seal()
	for range 2 {
		if err := s.Reclaim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if found.known[kept] != 1 || found.count() != 1 {
		t.Errorf("reported %v", found.known)
	}
	_, data := content(1, 1000)
	wantChunk(t, s, others[0], data)
	put(t, s, 0, 1000, 2)
	if err := s.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, data = content(0, 1000)
	wantChunk(t, s, kept, data)
}
