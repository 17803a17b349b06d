package lockfile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func hold(t *testing.T, path string) *Lock {
	t.Helper()
	lock, err := Hold(path)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func TestPathHasOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first := hold(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if _, err := Hold(path); !errors.Is(err, ErrHeld) {
		t.Errorf("the second Hold: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := hold(t, path).Close(); err != nil {
		t.Error(err)
	}
}

// A child has all files of its parent open between fork and exec.
func TestForkedChildDoesNotKeepTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock := hold(t, path)
	child, err := syscall.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := hold(t, path).Close(); err != nil {
		t.Error(err)
	}
}

func TestErrorNamesThePath(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none", "lock"), link} {
		var where *os.PathError
		if _, err := Hold(path); !errors.As(err, &where) || where.Path != path {
			t.Errorf("%s: %v", path, err)
		}
	}
}
