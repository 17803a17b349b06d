package drivertest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
)

// readIn reads a file by a path that is looked up inside a root folder.
func readIn(root driver.Root, path string) (string, error) {
	fd, err := unix.Openat2(int(root.Dir.Fd()), path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd))
	return string(data), err
}

func roots(t *testing.T, s *suite) {
	task := s.shell(t, "echo written > /tmp/file; ln -s /tmp/file /tmp/link; echo ready; exec sleep 100000")
	task.User = "web"
	s.start(t, task)
	s.logUntil(t, task, "ready")
	t.Run("it is what the task sees", func(t *testing.T) {
		root, err := s.driver.Root(s.ctx(t), task.ID)
		must(t, err)
		defer root.Dir.Close()
		for _, path := range []string{"/tmp/file", "/tmp/link"} {
			if got, err := readIn(root, path); err != nil || got != "written\n" {
				t.Errorf("%s: %q, %v", path, got, err)
			}
		}
		// A mount of the task that its image does not have.
		var st unix.Stat_t
		if err := unix.Fstatat(int(root.Dir.Fd()), "proc/1", &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Errorf("the task's mounts are not there: %v", err)
		}
		if root.UID != 1234 || root.GID != 5678 {
			t.Errorf("the task runs as %d:%d", root.UID, root.GID)
		}
	})
	t.Run("only a running task has one", func(t *testing.T) {
		_, err := s.driver.Root(s.ctx(t), "no-such-task")
		wantError(t, err, driver.ErrNotFound)
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGKILL", 0))
		_, err = s.driver.Root(s.ctx(t), task.ID)
		wantError(t, err, driver.ErrNotRunning)
	})
}
