package datadir

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/must"
)

// machineOf is the root of a machine with these ids.
func machineOf(t *testing.T, id, board string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range map[string]string{"etc/machine-id": id, "sys/class/dmi/id/product_uuid": board} {
		must.Succeed(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		must.Succeed(t, os.WriteFile(filepath.Join(root, path), []byte(content+"\n"), 0o444))
	}
	return root
}

// The mark distinguishes machines by ids of system and hardware, and does not contain those ids.
func TestMachineMarksDiffer(t *testing.T) {
	t.Parallel()
	mark := MachineMark(machineOf(t, "1234567890abcdef", "board-1"))
	if mark == "" || strings.Contains(mark, "1234567890abcdef") || mark != MachineMark(machineOf(t, "1234567890abcdef", "board-1")) {
		t.Errorf("the mark is %q", mark)
	}
	for what, other := range map[string]string{
		"another system":               machineOf(t, "fedcba0987654321", "board-1"),
		"a copy of a virtual machine":  machineOf(t, "1234567890abcdef", "board-2"),
		"one that does not say who":    t.TempDir(),
		"one that has not been set up": machineOf(t, "", "board-1"),
	} {
		if MachineMark(other) == mark {
			t.Errorf("%s has the same mark", what)
		}
	}
	if got := MachineMark(t.TempDir()); got != "" {
		t.Errorf("a machine that says nothing is %q", got)
	}
}

// A folder that was last used on another machine works, with one warning.
func TestMoveOfAFolderIsNoticed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data")
	open := func(mark string) (said []string) {
		f, err := Open(path)
		must.Succeed(t, err)
		defer f.Release()
		must.Succeed(t, f.NoticeMove(mark, func(line string) { said = append(said, line) }, slog.New(slog.NewTextHandler(io.Discard, nil))))
		return said
	}
	for i, one := range []struct {
		mark string
		said bool
	}{{"first", false}, {"first", false}, {"", false}, {"second", true}, {"second", false}, {"first", true}} {
		said := open(one.mark)
		if (len(said) == 1) != one.said {
			t.Errorf("at start %d on %q it said %q", i, one.mark, said)
		}
		for _, line := range said {
			if !strings.Contains(line, "was last used on another machine: if it still runs there, stop one of the two") || !strings.Contains(line, "down --purge --data-dir "+path) {
				t.Errorf("it said %q", line)
			}
		}
	}
}

// A copy of a folder that is in use on the same machine is refused before it changes anything.
func TestCopyOnTheSameMachine(t *testing.T) {
	t.Parallel()
	f, err := Open(filepath.Join(t.TempDir(), "data"))
	must.Succeed(t, err)
	defer f.Release()
	t.Cleanup(func() { _ = os.RemoveAll(f.RunDir()) })
	must.Succeed(t, f.LockMachine())
	must.Succeed(t, f.LockMachine()) // a second time does no harm
	copied := t.TempDir()
	data, err := os.ReadFile(f.Path("cloud.json"))
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(filepath.Join(copied, "cloud.json"), data, 0o600))
	other, err := Open(copied)
	must.Succeed(t, err)
	defer other.Release()
	if err := other.LockMachine(); err == nil || !strings.Contains(err.Error(), "is a copy of another one, which is in use on this machine") || !strings.Contains(err.Error(), "rm -r "+copied) {
		t.Errorf("its use ended with %v", err)
	}
	if _, err := os.Stat(f.RunDir()); err != nil {
		t.Errorf("what is in use is gone: %v", err)
	}
	f.Release()
	must.Succeed(t, other.LockMachine())
}
