package chunks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/cloudless/cloudless/internal/object/chunks"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		changeUntilKilled(dir)
		return
	}
	os.Exit(m.Run())
}

// damage collects what a store says about damaged chunks.
type damage struct {
	mu    sync.Mutex
	known map[chunks.Hash]int
}

func (d *damage) found(hashes []chunks.Hash) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[chunks.Hash]int{}
	}
	for _, hash := range hashes {
		d.known[hash]++
	}
}

func (d *damage) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.known)
}

// small has packs of 256 KiB, so that a test has many.
func small(dir string) chunks.Options {
	return chunks.Options{Dir: dir, PackSize: 256 << 10, ReclaimRate: 1 << 40, Logger: slog.New(slog.DiscardHandler)}
}

// open is a store that is closed when the test ends.
func open(t testing.TB, o chunks.Options) *chunks.Store {
	t.Helper()
	s, err := chunks.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// content is a chunk that depends on its number only.
func content(n, size int) (chunks.Hash, []byte) {
	data := make([]byte, size)
	var seed [32]byte
	copy(seed[:], fmt.Sprint(n, " ", size))
	_, _ = rand.NewChaCha8(seed).Read(data) // never fails
	return chunks.Hash(blake3.Sum256(data)), data
}

func put(t testing.TB, s *chunks.Store, n, size int, epoch uint64) chunks.Hash {
	t.Helper()
	hash, data := content(n, size)
	if err := s.Put(t.Context(), hash, data, epoch); err != nil {
		t.Fatal(err)
	}
	return hash
}

func list(t testing.TB, s *chunks.Store) map[chunks.Hash]uint64 {
	t.Helper()
	epochs := map[chunks.Hash]uint64{}
	var after chunks.Hash
	for last := false; !last; {
		var page []chunks.Held
		var err error
		if page, last, err = s.List(t.Context(), after, 7); err != nil {
			t.Fatal(err)
		}
		for _, held := range page {
			if bytes.Compare(held.Hash[:], after[:]) <= 0 {
				t.Fatalf("%s is listed after %s", held.Hash, after)
			}
			after = held.Hash
			epochs[held.Hash] = held.Epoch
		}
	}
	return epochs
}

func wantChunk(t testing.TB, s *chunks.Store, hash chunks.Hash, want []byte) {
	t.Helper()
	got, err := s.Get(hash, 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("chunk %s has other bytes", hash)
	}
}

func TestChunkIsThereAfterReopen(t *testing.T) {
	o := small(t.TempDir())
	s := open(t, o)
	sizes := []int{0, 1, 7, 8, 4096, 64 << 10, 64<<10 + 1, 1 << 20, chunks.MaxSize}
	for n, size := range sizes {
		put(t, s, n, size, 3)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	for n, size := range sizes {
		hash, data := content(n, size)
		wantChunk(t, s, hash, data)
		if has, err := s.Has(hash); err != nil || !has {
			t.Errorf("Has: %t, %v", has, err)
		}
	}
	if stats := s.Stats(); stats.Chunks != int64(len(sizes)) || stats.Problem != "" || stats.Capacity <= 0 {
		t.Errorf("the stats are %+v", stats)
	}
}

func TestPartOfAChunk(t *testing.T) {
	s := open(t, small(t.TempDir()))
	for _, size := range []int{1000, 64 << 10, 200_000, 1 << 20} {
		hash, data := content(1, size)
		put(t, s, 1, size, 1)
		for _, offset := range []int{0, 1, 999, 64<<10 - 1, 64 << 10, size - 1, size} {
			for _, length := range []int{0, 1, 100, 64 << 10, 64<<10 + 1, size} {
				if offset > size {
					continue
				}
				want := data[offset:]
				if length > 0 {
					want = want[:min(length, len(want))]
				}
				got, err := s.Get(hash, uint32(offset), uint32(length), []byte("before"))
				if err != nil || string(got) != "before"+string(want) {
					t.Fatalf("%d bytes at %d of %d: %d bytes, %v", length, offset, size, len(got), err)
				}
			}
		}
		if _, err := s.Get(hash, uint32(size)+1, 0, nil); err == nil {
			t.Errorf("there is something behind the end")
		}
	}
}

func TestRefusedChunks(t *testing.T) {
	s := open(t, small(t.TempDir()))
	hash, data := content(1, 100)
	data[5]++
	if err := s.Put(t.Context(), hash, data, 1); !errors.Is(err, chunks.ErrDamaged) || !strings.Contains(err.Error(), hash.String()) {
		t.Errorf("with another digest: %v", err)
	}
	hash, data = content(1, chunks.MaxSize+1)
	if err := s.Put(t.Context(), hash, data, 1); err == nil || !strings.Contains(err.Error(), "cut it into smaller ones") {
		t.Errorf("too large: %v", err)
	}
	if _, err := s.Get(hash, 0, 0, nil); !errors.Is(err, chunks.ErrMissing) || !strings.Contains(err.Error(), hash.String()) {
		t.Errorf("missing: %v", err)
	}
	if stats := s.Stats(); stats.Chunks != 0 || stats.Used != 0 {
		t.Errorf("the stats are %+v", stats)
	}
}

func TestPutAgainRaisesTheEpoch(t *testing.T) {
	o := small(t.TempDir())
	s := open(t, o)
	hash := put(t, s, 1, 1000, 5)
	used := s.Stats().Used
	put(t, s, 1, 1000, 8)
	put(t, s, 1, 1000, 7)
	if stats := s.Stats(); stats.Used != used || stats.Chunks != 1 {
		t.Errorf("it is stored more than once: %+v", stats)
	}
	if had, err := s.Stamp(t.Context(), hash, 9); err != nil || !had {
		t.Errorf("Stamp: %t, %v", had, err)
	}
	other, _ := content(2, 10)
	if had, err := s.Stamp(t.Context(), other, 9); err != nil || had {
		t.Errorf("Stamp of a missing chunk: %t, %v", had, err)
	}
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	if got := list(t, open(t, o)); got[hash] != 9 || len(got) != 1 {
		t.Errorf("after a crash it has the epochs %v", got)
	}
}

func TestDeleteKeepsWhatWasPutLater(t *testing.T) {
	o := small(t.TempDir())
	s := open(t, o)
	old, fresh := put(t, s, 1, 1000, 5), put(t, s, 2, 1000, 6)
	never, _ := content(3, 1000)
	deleted, err := s.Delete(t.Context(), []chunks.Hash{fresh, old, never, old}, 5)
	if err != nil {
		t.Fatal(err)
	}
	if len(deleted) != 2 || !slices.Contains(deleted, old) || !slices.Contains(deleted, never) {
		t.Errorf("deleted %v", deleted)
	}
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	if got := list(t, s); len(got) != 1 || got[fresh] != 6 {
		t.Errorf("there are %v", got)
	}
	if _, err := s.Get(old, 0, 0, nil); !errors.Is(err, chunks.ErrMissing) {
		t.Errorf("the deleted one: %v", err)
	}
}

// A chunk that was put in a newer epoch while it is deleted must be there afterwards.
func TestPutWinsOverDelete(t *testing.T) {
	s := open(t, small(t.TempDir()))
	for epoch := uint64(1); epoch <= 100; epoch++ {
		hash, data := content(1, 5000)
		var wait sync.WaitGroup
		wait.Go(func() {
			if _, err := s.Delete(t.Context(), []chunks.Hash{hash}, epoch-1); err != nil {
				t.Error(err)
			}
		})
		wait.Go(func() {
			if err := s.Put(t.Context(), hash, data, epoch); err != nil {
				t.Error(err)
			}
		})
		wait.Wait()
		wantChunk(t, s, hash, data)
		if got := list(t, s)[hash]; got != epoch {
			t.Fatalf("it has the epoch %d, want %d", got, epoch)
		}
	}
}

func TestManyCallsAtTheSameTime(t *testing.T) {
	s := open(t, small(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	var background, wait sync.WaitGroup
	background.Go(func() {
		for ctx.Err() == nil {
			if err := s.Reclaim(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			if err := s.Scrub(ctx, 1<<40, func(int64, int64, int64) {}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for w := range 8 {
		wait.Go(func() {
			for i := range 150 {
				n := w%4*1000 + i // two writers have the same chunks
				hash, data := content(n, 1+n*977%100_000)
				if err := s.Put(ctx, hash, data, 2); err != nil {
					t.Error(err)
				}
				got, err := s.Get(hash, 0, 0, nil)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("chunk %d: %v", n, err)
				}
				if i%3 == 0 {
					gone, _ := content(n, 77)
					put(t, s, n, 77, 1)
					if _, err := s.Delete(ctx, []chunks.Hash{gone}, 1); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wait.Wait()
	cancel()
	background.Wait()
	if stats := s.Stats(); stats.Chunks != 600 || stats.Damaged != 0 {
		t.Errorf("the stats are %+v", stats)
	}
}

func TestCancelledPutIsNotWritten(t *testing.T) {
	s := open(t, small(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hash, data := content(1, 1000)
	err := s.Put(ctx, hash, data, 1)
	has, hasErr := s.Has(hash)
	if hasErr != nil || has != (err == nil) {
		t.Errorf("Put: %v, Has: %t, %v", err, has, hasErr)
	}
	if s.Waiting() != 0 {
		t.Errorf("%d bytes wait", s.Waiting())
	}
}

func TestFolderHasOneStore(t *testing.T) {
	o := small(t.TempDir())
	s := open(t, o)
	if _, err := chunks.Open(o); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("the second store: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	hash, data := content(1, 10)
	if err := s.Put(t.Context(), hash, data, 1); !errors.Is(err, chunks.ErrClosed) {
		t.Errorf("Put after Close: %v", err)
	}
	if problem := s.Stats().Problem; problem == "" {
		t.Error("a closed store has no problem")
	}
	open(t, o)
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []chunks.Options{{}, {Dir: t.TempDir(), Reserve: -1}, {Dir: filepath.Join(os.DevNull, "x")}} {
		if _, err := chunks.Open(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func chunkOf(data []byte) chunks.Hash { return chunks.Hash(blake3.Sum256(data)) }
