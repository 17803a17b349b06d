package containerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
)

// Root opens the root folder through the task's first process, so that mounts inside the
// container are visible, too.
func (d *Driver) Root(ctx context.Context, id string) (_ driver.Root, err error) {
	container, err := d.container(ctx, id)
	if err != nil {
		return driver.Root{}, err
	}
	var spec oci.Spec
	if err := typeurl.UnmarshalTo(container.Spec, &spec); err != nil {
		return driver.Root{}, fmt.Errorf("read the description of task %s: %w", id, err)
	}
	pid, err := d.runningPID(ctx, id)
	if err != nil {
		return driver.Root{}, err
	}
	path := filepath.Join("/proc", strconv.Itoa(pid), "root")
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return driver.Root{}, fmt.Errorf("open the root folder of task %s: %w", id, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	// If the process had ended before, its pid could have been reused.
	if again, err := d.runningPID(ctx, id); err != nil || again != pid {
		_ = dir.Close()
		return driver.Root{}, fmt.Errorf("open the root folder of task %s: %w", id, driver.ErrNotRunning)
	}
	return driver.Root{Dir: dir, UID: int(spec.Process.User.UID), GID: int(spec.Process.User.GID)}, nil
}

func (d *Driver) runningPID(ctx context.Context, id string) (int, error) {
	reply, err := d.process(ctx, id)
	if err != nil {
		return 0, err
	}
	if reply == nil || reply.Process.Status != tasktypes.Status_RUNNING || reply.Process.Pid == 0 {
		return 0, fmt.Errorf("task %s: %w", id, driver.ErrNotRunning)
	}
	return int(reply.Process.Pid), nil
}
