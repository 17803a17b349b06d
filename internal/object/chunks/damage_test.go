package chunks_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/object/chunks"
)

// flip changes one bit of a file.
func flip(t testing.TB, path string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << rand.IntN(8)
	if _, err := f.WriteAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
}

// scrub returns how many damaged chunks a scrub finds.
func scrub(t testing.TB, s *chunks.Store) (damaged int64) {
	t.Helper()
	err := s.Scrub(t.Context(), 1<<40, func(_, _, found int64) { damaged = found })
	if err != nil {
		t.Fatal(err)
	}
	return damaged
}

func TestDamagedChunkIsReportedAndRepaired(t *testing.T) {
	for _, size := range []int{100, 200_000} {
		var found damage
		o := small(t.TempDir())
		o.OnDamage = found.found
		s := open(t, o)
		hash, data := content(1, size)
		put(t, s, 1, size, 1)
		other := put(t, s, 2, size, 1)
		pack, offset, _ := s.Place(hash)
		flip(t, s.PackPath(pack), offset+80+int64(size)/2)

		for range 2 {
			if _, err := s.Get(hash, 0, 0, nil); !errors.Is(err, chunks.ErrDamaged) || !strings.Contains(err.Error(), hash.String()) {
				t.Errorf("get: %v", err)
			}
		}
		if found.known[hash] != 1 || found.count() != 1 {
			t.Errorf("reported %v", found.known)
		}
		if got := list(t, s); len(got) != 1 || got[other] != 1 {
			t.Errorf("listed %v", got)
		}
		if had, err := s.Stamp(t.Context(), hash, 2); had || err != nil {
			t.Errorf("stamped a damaged chunk: %t, %v", had, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, o)
		if got, err := s.Damaged(chunks.Hash{}, 10); err != nil || len(got) != 1 || got[0] != hash {
			t.Errorf("remembered %v, %v", got, err)
		}
		put(t, s, 1, size, 3)
		wantChunk(t, s, hash, data)
		if got, err := s.Damaged(chunks.Hash{}, 10); err != nil || len(got) != 0 {
			t.Errorf("after the repair, %v are damaged, %v", got, err)
		}
		if got := list(t, s); got[hash] != 3 {
			t.Errorf("listed %v", got)
		}
		if stats := s.Stats(); stats.Damaged != 1 || stats.Chunks != 2 {
			t.Errorf("the stats are %+v", stats)
		}
	}
}

func TestPartWithoutDamageIsReadable(t *testing.T) {
	s := open(t, small(t.TempDir()))
	hash, data := content(1, 500_000)
	put(t, s, 1, len(data), 1)
	pack, offset, _ := s.Place(hash)
	flip(t, s.PackPath(pack), offset+400_000)
	if got, err := s.Get(hash, 1000, 2000, nil); err != nil || !bytes.Equal(got, data[1000:3000]) {
		t.Errorf("a part without damage: %v", err)
	}
	if _, err := s.Get(hash, 390_000, 50_000, nil); !errors.Is(err, chunks.ErrDamaged) {
		t.Errorf("a part with damage: %v", err)
	}
}

func TestScrubFindsWhatNobodyReads(t *testing.T) {
	var found damage
	o := small(t.TempDir())
	o.OnDamage = found.found
	s := open(t, o)
	var hashes []chunks.Hash
	for n := range 100 {
		hashes = append(hashes, put(t, s, n, 1+n*3000, 1))
	}
	if got := scrub(t, s); got != 0 {
		t.Fatalf("%d are damaged", got)
	}
	scrubbed := s.Stats().Scrubbed
	if scrubbed.IsZero() {
		t.Error("the time of the scrub is not known")
	}
	for _, n := range []int{3, 50, 99} {
		pack, offset, _ := s.Place(hashes[n])
		flip(t, s.PackPath(pack), offset+72+4+int64(n*2900)) // in the data
	}
	// Only the head of this one is damaged, so its data can be written again.
	pack, offset, _ := s.Place(hashes[20])
	flip(t, s.PackPath(pack), offset+20)
	if got := scrub(t, s); got != 3 || found.count() != 3 {
		t.Errorf("%d are damaged, and reported are %v", got, found.known)
	}
	for n, hash := range hashes {
		_, data := content(n, 1+n*3000)
		if n != 3 && n != 50 && n != 99 {
			wantChunk(t, s, hash, data)
		}
	}
	if after, _, _ := s.Place(hashes[20]); after == pack && len(s.Packs()) == 1 {
		t.Error("the chunk with a damaged head was not written again")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := open(t, o).Stats(); got.Damaged != 3 || got.Scrubbed.Before(scrubbed) {
		t.Errorf("after a restart the stats are %+v", got)
	}
}

// copyStore copies the folder of a closed store.
func copyStore(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// files are the paths below a folder of a store.
func files(t testing.TB, dir, kind string) (paths []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, kind))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Size() > 0 {
			paths = append(paths, filepath.Join(dir, kind, entry.Name()))
		}
	}
	return paths
}

// A store with one wrong bit anywhere opens, and never returns wrong bytes. At most one chunk is lost, and a scrub finds
// it. After it was put again, everything is there.
func TestOneWrongBit(t *testing.T) {
	base := t.TempDir()
	s := open(t, small(base))
	hashes := map[chunks.Hash][]byte{}
	for n := range 60 {
		size := 1 + n*n*60
		hash, data := content(n, size)
		put(t, s, n, size, 1)
		hashes[hash] = data
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{"packs", "index", "packs, and the index is lost"} {
		t.Run(where, func(t *testing.T) {
			kind, _, lost := strings.Cut(where, ",")
			for range 60 {
				dir := copyStore(t, base)
				paths := files(t, dir, kind)
				path := paths[rand.IntN(len(paths))]
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				offset := rand.Int64N(info.Size())
				flip(t, path, offset)
				if lost {
					if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
						t.Fatal(err)
					}
				}
				checkFlipped(t, dir, kind, lost, hashes)
				if t.Failed() {
					t.Fatalf("with a wrong bit at %d of %s", offset, path)
				}
			}
		})
	}
}

func checkFlipped(t *testing.T, dir, kind string, lost bool, hashes map[chunks.Hash][]byte) {
	t.Helper()
	var found damage
	o := small(dir)
	o.OnDamage = found.found
	s, err := chunks.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	unreadable := 0
	for hash, data := range hashes {
		got, err := s.Get(hash, 0, 0, nil)
		if err == nil && !bytes.Equal(got, data) {
			t.Errorf("chunk %s has wrong bytes", hash)
		}
		if err != nil {
			unreadable++
		}
		if err != nil && !errors.Is(err, chunks.ErrDamaged) && !(lost && errors.Is(err, chunks.ErrMissing)) {
			t.Errorf("get: %v", err)
		}
	}
	if kind == "packs" && unreadable > 1 || kind == "index" && unreadable > 0 {
		t.Errorf("%d chunks cannot be read", unreadable)
	}
	if got := scrub(t, s); !lost && (got != int64(unreadable) || found.count() != unreadable) {
		t.Errorf("%d chunks cannot be read, the scrub finds %d, and %d were reported", unreadable, got, found.count())
	}
	for hash, data := range hashes {
		if err := s.Put(t.Context(), hash, data, 2); err != nil {
			t.Errorf("put again: %v", err)
		}
		got, err := s.Get(hash, 0, 0, nil)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("chunk %s after it was put again: %v", hash, err)
		}
	}
	if got := scrub(t, s); got != 0 {
		t.Errorf("after the repair %d are damaged", got)
	}
}

// The index is used while it is damaged on the disk.
func TestIndexDamagedWhileItIsUsed(t *testing.T) {
	o := small(t.TempDir())
	o.Cache = 1
	s := open(t, o)
	hashes := map[chunks.Hash][]byte{}
	for n := range 3000 {
		hash, data := content(n, 10)
		put(t, s, n, 10, 1)
		hashes[hash] = data
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	for _, path := range files(t, o.Dir, "index") {
		if strings.HasSuffix(path, ".sst") {
			flip(t, path, 5000)
		}
	}
	for hash, data := range hashes {
		got, err := s.Get(hash, 0, 0, nil)
		for err != nil { // until it is built anew
			if errors.Is(err, chunks.ErrMissing) || errors.Is(err, chunks.ErrDamaged) {
				t.Fatal(err)
			}
			got, err = s.Get(hash, 0, 0, nil)
		}
		if !bytes.Equal(got, data) {
			t.Fatal("wrong bytes")
		}
	}
	if got := len(list(t, s)); got != len(hashes) {
		t.Errorf("%d chunks are listed", got)
	}
}

func TestLostPackIsReported(t *testing.T) {
	for _, lose := range []func(string) error{os.Remove, func(path string) error { return os.Truncate(path, 20_000) }} {
		var found damage
		o := small(t.TempDir())
		o.OnDamage = found.found
		s := open(t, o)
		inFirst := 0
		for n := range 200 {
			hash := put(t, s, n, 4000, 1)
			if pack, offset, _ := s.Place(hash); pack == 1 && offset > 20_000 {
				inFirst++
			}
		}
		path := s.PackPath(1)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := lose(path); err != nil {
			t.Fatal(err)
		}
		s = open(t, o)
		if got := found.count(); got < inFirst || got > inFirst+3 {
			t.Errorf("%d chunks were reported, and at least %d are lost", got, inFirst)
		}
		for n := range 200 {
			hash, data := content(n, 4000)
			got, err := s.Get(hash, 0, 0, nil)
			if _, reported := found.known[hash]; reported != errors.Is(err, chunks.ErrDamaged) || !reported && !bytes.Equal(got, data) {
				t.Errorf("chunk %d, reported %t: %v", n, reported, err)
			}
			put(t, s, n, 4000, 2)
			wantChunk(t, s, hash, data)
		}
		if got := s.Stats().Chunks; got != 200 {
			t.Errorf("there are %d chunks", got)
		}
	}
}

// What a crash cut off was not acknowledged; what is before it stays.
func TestTornEndIsRemoved(t *testing.T) {
	base := t.TempDir()
	s := open(t, small(base))
	hash, data := content(1, 3000)
	put(t, s, 1, 3000, 1)
	path := s.PackPath(1)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := info.Size()
	torn, tornData := content(2, 3000)
	put(t, s, 2, 3000, 1)
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	info, err = os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := whole; size <= info.Size(); size += 101 {
		dir := copyStore(t, base)
		if err := os.Truncate(filepath.Join(dir, "packs", filepath.Base(path)), size); err != nil {
			t.Fatal(err)
		}
		s := open(t, small(dir))
		wantChunk(t, s, hash, data)
		if _, err := s.Get(torn, 0, 0, nil); !errors.Is(err, chunks.ErrMissing) {
			t.Errorf("of the torn one %d bytes are there: %v", size-whole, err)
		}
		if err := s.Put(t.Context(), torn, tornData, 1); err != nil {
			t.Fatal(err)
		}
		if err := s.Crash(); err != nil {
			t.Fatal(err)
		}
		s = open(t, small(dir))
		wantChunk(t, s, hash, data)
		wantChunk(t, s, torn, tornData)
	}
	// The last record is complete in length, but its data did not reach the disk.
	flip(t, path, info.Size()-500)
	s = open(t, small(base))
	if _, err := s.Get(torn, 0, 0, nil); !errors.Is(err, chunks.ErrMissing) {
		t.Errorf("the torn one: %v", err)
	}
	wantChunk(t, s, hash, data)
}

// A chunk may contain a pack. What is in it must not come back when a search for records meets it.
func TestPackInsideOfAChunk(t *testing.T) {
	source := small(t.TempDir())
	s := open(t, source)
	inner := put(t, s, 1, 3000, 1)
	stolen, err := os.ReadFile(s.PackPath(1))
	if err != nil {
		t.Fatal(err)
	}
	o := small(t.TempDir())
	s = open(t, o)
	outer := chunkOf(stolen)
	if err := s.Put(t.Context(), outer, stolen, 1); err != nil {
		t.Fatal(err)
	}
	put(t, s, 2, 100, 1)
	pack, offset, _ := s.Place(outer)
	path := s.PackPath(pack)
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	flip(t, path, offset+1) // in the marker, so the record is not found
	if err := os.RemoveAll(filepath.Join(o.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	if has, err := s.Has(inner); has || err != nil {
		t.Errorf("the inner one is there: %t, %v", has, err)
	}
	second, data := content(2, 100)
	wantChunk(t, s, second, data)
}
