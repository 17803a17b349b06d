package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, content := range []string{"a longer first one", "second", ""} {
		if err := Replace(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("read %q, %v, want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	onlyFile(t, dir, "file")
}

func TestFailureChangesNothing(t *testing.T) {
	dir := t.TempDir()
	occupied := filepath.Join(dir, "folder")
	if err := os.Mkdir(occupied, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(occupied, []byte("x")); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if err := Replace(filepath.Join(dir, "none", "file"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that does not exist: %v", err)
	}
	onlyFile(t, dir, "folder")
}

func TestOnlyOneCreateSucceeds(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	var created atomic.Int32
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			err := Create(path, []byte{byte('a' + i)})
			if err == nil {
				created.Add(1)
			} else if !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if created.Load() != 1 {
		t.Errorf("%d of 16 created the file", created.Load())
	}
	onlyFile(t, dir, "file")
}

func onlyFile(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("the folder has %v, %v, want only %s", entries, err, name)
	}
}
