package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

// smallDisk mounts a small file system at dir and returns functions that fill and free it.
func smallDisk(t *testing.T, dir string) (fill, free func()) {
	t.Helper()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	filler := filepath.Join(dir, "filler")
	fill = func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for block := make([]byte, 4096); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return fill, func() {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
}

// On a full disk, nothing is started that could not be recorded. Running replicas go on,
// the reason is reported, and everything resumes when there is room again.
func TestFullDiskDelaysReplicasAndLosesNone(t *testing.T) {
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		fill, free := smallDisk(t, n.dir)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("always", "1s", "4s"))))
		s.await(t, "a", "running")
		fill()
		s.send(t, full(assignment("a", restart("always", "1s", "4s")), assignment("b", restart("always", "1s", "4s"))))
		heldUp := func(status *v1.ReplicaStatus) bool {
			return strings.Contains(status.GetReason(), "no space left on device")
		}
		held := s.awaitStatus(t, "b", "held up", heldUp)
		if held.GetPhase() != "placed" || !strings.HasPrefix(held.GetReason(), "It is held up: ") {
			t.Errorf("the report was %v", held)
		}
		if got := n.tasks.ids(); len(got) != 1 || got[0] != "a-1" {
			t.Errorf("there run %v, want only what ran before", got)
		}
		n.tasks.exit("a-1", driver.Exit{Code: 3})
		s.awaitStatus(t, "a", "held up", heldUp)

		free()
		if got := s.await(t, "b", "running"); got.GetReason() != "" {
			t.Errorf("with room again, the report is %v", got)
		}
		if got := s.awaitRestart(t, "a", 1); got.GetLastExit().GetCode() != 3 {
			t.Errorf("the exit was lost: %v", got)
		}
	})
}
