package chunks_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/object/chunks"
)

// smallDisk is a file system of a size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill fills a disk completely. free undoes it.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var size int64
	for step := int64(16 << 20); step >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, size, step); {
		case err == nil:
			size += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		default:
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFullDiskRefusesChunksAndNothingElse(t *testing.T) {
	dir := smallDisk(t, "128m")
	o := chunks.Options{Dir: filepath.Join(dir, "chunks"), Reserve: 10 << 20}
	s := open(t, o)
	var hashes []chunks.Hash
	var full *chunks.FullError
	for n := 0; full == nil; n++ {
		hash, data := content(n, 1<<20)
		err := s.Put(t.Context(), hash, data, 1)
		if err == nil {
			hashes = append(hashes, hash)
		} else if !errors.As(err, &full) || !strings.Contains(err.Error(), o.Dir) || !strings.Contains(err.Error(), "nothing was changed") {
			t.Fatal(err)
		}
	}
	if len(hashes) < 50 {
		t.Errorf("only %d MiB fit", len(hashes))
	}
	if stats := s.Stats(); !strings.Contains(stats.Problem, "no space left") || stats.Free >= 4<<20 {
		t.Errorf("the stats are %+v", stats)
	}
	// What is there is still read, put again and deleted.
	_, data := content(0, 1<<20)
	wantChunk(t, s, hashes[0], data)
	put(t, s, 0, 1<<20, 2)
	if deleted, err := s.Delete(t.Context(), hashes[1:30], 1); err != nil || len(deleted) != 29 {
		t.Errorf("deleted %d, %v", len(deleted), err)
	}
	if err := s.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	// There is room again.
	put(t, s, 1000, 1<<20, 2)
	if problem := s.Stats().Problem; problem != "" {
		t.Errorf("the problem is %s", problem)
	}
}

// Others can fill the disk completely, without asking for the reserve.
func TestDiskFilledByOthers(t *testing.T) {
	dir := smallDisk(t, "128m")
	o := chunks.Options{Dir: filepath.Join(dir, "chunks")}
	s := open(t, o)
	var hashes []chunks.Hash
	for n := range 20 {
		hashes = append(hashes, put(t, s, n, 1<<20, 1))
	}
	if err := s.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.RestoreBallast(t)
	free := fill(t, dir)
	hash, data := content(100, 3<<20)
	var full *chunks.FullError
	if err := s.Put(t.Context(), hash, data, 1); !errors.As(err, &full) {
		t.Errorf("put on a full disk: %v", err)
	}
	if had, err := s.Stamp(t.Context(), hashes[0], 2); err != nil || !had {
		t.Errorf("stamp on a full disk: %t, %v", had, err)
	}
	if deleted, err := s.Delete(t.Context(), hashes[1:3], 1); err != nil || len(deleted) != 2 {
		t.Errorf("delete on a full disk: %d, %v", len(deleted), err)
	}
	check := func() {
		t.Helper()
		for n, hash := range hashes[3:] {
			_, data := content(n+3, 1<<20)
			wantChunk(t, s, hash, data)
		}
		if got := list(t, s); len(got) != 18 || got[hashes[0]] != 2 {
			t.Errorf("there are %d chunks", len(got))
		}
	}
	check()
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	check()
	free()
	if err := s.Put(t.Context(), hash, data, 1); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
