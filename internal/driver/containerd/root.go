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
func (d *Driver) Root(ctx context.Context, id string) (driver.Root, error) {
	container, err := d.container(ctx, id)
	if err != nil {
		return driver.Root{}, err
	}
	var spec oci.Spec
	if err := typeurl.UnmarshalTo(container.Spec, &spec); err != nil {
		return driver.Root{}, fmt.Errorf("read the description of task %s: %w", id, err)
	}
	var dir *os.File
	if container.Labels[labelSandbox] == "" {
		dir, err = d.openOfProcess(ctx, id, "root", unix.O_PATH|unix.O_DIRECTORY)
	} else if _, err = d.runningPID(ctx, id); err == nil {
		dir, err = d.openMountedRoot(id)
	}
	if err != nil {
		return driver.Root{}, fmt.Errorf("open the root folder of task %s: %w", id, err)
	}
	root := driver.Root{Dir: dir, UID: int(spec.Process.User.UID), GID: int(spec.Process.User.GID)}
	if mappings := spec.Linux.UIDMappings; len(mappings) > 0 {
		root.UID, root.GID = root.UID+int(mappings[0].HostID), root.GID+int(mappings[0].HostID)
	}
	if container.Labels[labelSandbox] != "" {
		root.Hidden = hiddenInSandbox(&spec)
	}
	return root, nil
}

// openOfProcess opens a file in the /proc folder of the task's first process.
func (d *Driver) openOfProcess(ctx context.Context, id, name string, flags int) (*os.File, error) {
	pid, err := d.runningPID(ctx, id)
	if err != nil {
		return nil, err
	}
	path := filepath.Join("/proc", strconv.Itoa(pid), name)
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	// If the process had ended before, its pid could have been reused.
	if again, err := d.runningPID(ctx, id); err != nil || again != pid {
		_ = file.Close()
		return nil, driver.ErrNotRunning
	}
	return file, nil
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
