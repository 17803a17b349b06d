package chaos

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/test/sandbox"
)

// disk is the disk of a machine: a file system on a block device of its own, which the kernel keeps in memory. A control
// group holds the processes of the machine, so that the kernel can make their writes to the device slow.
type disk struct {
	image, path string
	device      string // as major:minor
	group       string // the folder of the control group; empty if the kernel has none for disks
}

// Where the controllers of disks are, in both versions of control groups.
const (
	groupsV1 = "/sys/fs/cgroup/blkio"
	groupsV2 = "/sys/fs/cgroup"
)

// newDisk mounts an empty disk of so many MiB at a path. Nothing of it outlives the sandbox: the kernel frees the device
// when the mounts of the sandbox are gone, and the sandbox removes the control group.
func newDisk(path string, size int) (*disk, error) {
	image := filepath.Join(filepath.Dir(path), "disks", filepath.Base(path))
	if err := os.Mkdir(filepath.Dir(image), 0o700); err == nil {
		if err := unix.Mount("none", filepath.Dir(image), "tmpfs", 0, "mode=0700"); err != nil {
			return nil, fmt.Errorf("mount the memory for disks: %w", err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(image, int64(size)<<20); err != nil {
		return nil, err
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", image},
		{"mount", "-o", "loop,noatime", image, path},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("make the disk %s: %s: %w\n%s", path, command[0], err, out)
		}
	}
	// A data folder must be empty, and only its owner may read it.
	if err := errors.Join(os.Remove(filepath.Join(path, "lost+found")), os.Chmod(path, 0o700)); err != nil {
		return nil, err
	}
	var about unix.Stat_t
	if err := unix.Stat(path, &about); err != nil {
		return nil, err
	}
	d := &disk{image: image, path: path, device: fmt.Sprintf("%d:%d", unix.Major(about.Dev), unix.Minor(about.Dev))}
	return d, d.makeGroup(fmt.Sprintf("chaos-%016x", rand.Uint64())) // other sandboxes have the same process ids
}

// close removes the disk.
func (d *disk) close() {
	if d != nil && unix.Unmount(d.path, unix.MNT_DETACH) == nil {
		_ = os.Remove(d.image)
	}
}

func (d *disk) makeGroup(id string) error {
	parent := groupsV1
	if _, err := os.Stat(parent); err != nil {
		parent = groupsV2
		have, _ := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control"))
		if !strings.Contains(string(have), "io") {
			return nil
		}
	}
	if err := sandbox.NoteGroup(id); err != nil {
		return err
	}
	d.group = filepath.Join(parent, sandbox.GroupOf(id))
	return os.Mkdir(d.group, 0o755)
}

// hold makes a process, and those that it starts, depend on the speed of the disk.
func (d *disk) hold(pid int) error {
	if d.group == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(d.group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// limit lets the processes of the machine write so many times in a second; 0 is without limit.
func (d *disk) limit(writes int) error {
	switch {
	case d.group == "":
		return errors.New("the kernel has no control group for disks")
	case strings.HasPrefix(d.group, groupsV1):
		return d.set("blkio.throttle.write_iops_device", strconv.Itoa(writes))
	case writes == 0:
		return d.set("io.max", "wiops=max")
	}
	return d.set("io.max", fmt.Sprintf("wiops=%d", writes))
}

func (d *disk) set(file, value string) error {
	if err := os.WriteFile(filepath.Join(d.group, file), []byte(d.device+" "+value), 0); err != nil {
		return fmt.Errorf("limit writes to a disk: %w", err)
	}
	return nil
}
