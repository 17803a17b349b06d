package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process on a slow disk waits for its writes, and no longer once the disk is as fast as before.
func TestSlowDiskDelaysWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := newDisk(path, 32)
	t.Cleanup(func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		_ = unix.Unmount(filepath.Join(filepath.Dir(path), "disks"), unix.MNT_DETACH)
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.group == "" {
		t.Skip("the kernel has no control group for disks")
	}
	const writes, perSecond = 20, 20 // the shell knows the first one, too
	write := func() time.Duration {
		t.Helper()
		cmd := exec.Command("sh", "-c", "read go; for i in $(seq 20); do echo $i >>file; sync file; done")
		cmd.Dir = path
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := d.hold(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	if err := d.limit(perSecond); err != nil {
		t.Fatal(err)
	}
	slow := write()
	if err := d.limit(0); err != nil {
		t.Fatal(err)
	}
	fast := write()
	if least := writes * time.Second / perSecond / 2; slow < least || fast >= slow {
		t.Errorf("%d writes took %v at %d a second, and then %v", writes, slow, perSecond, fast)
	}
}
