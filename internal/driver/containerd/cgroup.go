package containerd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups is where the machine's cgroups are. It reads and removes them; runc creates them
// and sets limits.
type cgroups struct {
	unified string            // mount point of version 2, if it has the controllers
	v1      map[string]string // otherwise, mount point by controller
}

// findCgroups distinguishes version 2 from version 1. On a machine with both, the
// controllers are in version 1.
func findCgroups() (cgroups, error) {
	const root = "/sys/fs/cgroup"
	var stat unix.Statfs_t
	if err := unix.Statfs(root, &stat); err != nil {
		return cgroups{}, fmt.Errorf("look at %s: %w", root, err)
	}
	if stat.Type == unix.CGROUP2_SUPER_MAGIC {
		return cgroups{unified: root}, nil
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return cgroups{}, fmt.Errorf("look for cgroups: %w", err)
	}
	defer mounts.Close()
	v1, err := parseCgroupMounts(mounts)
	if err != nil {
		return cgroups{}, fmt.Errorf("look for cgroups: %w", err)
	}
	if v1["memory"] == "" || v1["cpu"] == "" {
		return cgroups{}, errors.New("the cgroup controllers cpu and memory are not mounted; mount them below " + root)
	}
	return cgroups{v1: v1}, nil
}

// parseCgroupMounts finds the mount points of version 1 in the format of
// /proc/self/mountinfo. A hierarchy without controllers goes by its name.
func parseCgroupMounts(r io.Reader) (map[string]string, error) {
	found := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		mount, super, ok := strings.Cut(lines.Text(), " - ")
		fields, superFields := strings.Fields(mount), strings.Fields(super)
		if !ok || len(fields) < 5 || len(superFields) < 3 || superFields[0] != "cgroup" {
			continue
		}
		for option := range strings.SplitSeq(superFields[2], ",") {
			if option != "rw" && option != "ro" {
				found[option] = fields[4]
			}
		}
	}
	return found, lines.Err()
}

// dir is the folder of a cgroup in the hierarchy of that controller.
func (c cgroups) dir(controller, path string) string {
	if c.unified != "" {
		return filepath.Join(c.unified, path)
	}
	return filepath.Join(c.v1[controller], path)
}

// dirs are all folders of a cgroup, one in each hierarchy.
func (c cgroups) dirs(path string) []string {
	if c.unified != "" {
		return []string{filepath.Join(c.unified, path)}
	}
	var dirs []string
	for _, mount := range c.v1 {
		if dir := filepath.Join(mount, path); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	// On a hybrid machine runc also joins the version 2 that has no controllers.
	return append(dirs, filepath.Join("/sys/fs/cgroup/unified", path))
}

// kill ends every process in the cgroup and those below, and returns when they
// are gone.
func (c cgroups) kill(path string) error {
	killed := map[int]bool{}
	for range 500 {
		pids, err := c.pids(path)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			awaitReaped(killed)
			return nil
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
			killed[pid] = true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("cgroup %s: its processes do not die", path)
}

// awaitReaped gives the parents of dead processes a moment to reap them: a shim that is
// killed next could not.
func awaitReaped(dead map[int]bool) {
	for range 100 {
		maps.DeleteFunc(dead, func(pid int, _ bool) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
		if len(dead) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (c cgroups) pids(path string) ([]int, error) {
	var pids []int
	root := c.dir("memory", path)
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Name() != "cgroup.procs" {
			return nil
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for field := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return fmt.Errorf("read %s: %w", file, err)
			}
			if pid > 0 { // 0 stands for a process outside our pid namespace
				pids = append(pids, pid)
			}
		}
		return nil
	})
	// A cgroup may go away while it is read, and then has no processes.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		err = nil
	}
	return pids, err
}

// remove removes the cgroup and those below, in every hierarchy.
func (c cgroups) remove(path string) error {
	var errs []error
	for _, dir := range c.dirs(path) {
		errs = append(errs, removeCgroup(dir))
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a cgroup: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	// A cgroup stays busy for a moment after its last process was reaped.
	for range 100 {
		if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the cgroup %s: %w", dir, err)
	}
	return nil
}

// limitMemory makes the cgroup, if it does not exist, and limits the memory of everything below. It keeps a cgroup that
// uses more already as it is: the kernel would kill its processes.
func (c cgroups) limitMemory(path string, limit int64) error {
	dir, name := c.dir("memory", path), "memory.limit_in_bytes"
	if c.unified != "" {
		name = "memory.max"
		// A controller must be enabled above. Usually it is; if it cannot be, the write below fails.
		_ = os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), []byte("+memory"), 0)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup for all tasks: %w", err)
	}
	pool, err := c.pool(path)
	if err == nil && pool.Used >= limit {
		err = fmt.Errorf("they use %d bytes already, and %d would be the limit", pool.Used, limit)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), strconv.AppendInt(nil, limit, 10), 0)
	}
	if err != nil {
		return fmt.Errorf("limit the memory of all tasks: %w", err)
	}
	return nil
}

// shareCPU gives all containers together as much CPU time under contention as one busy thread outside for each CPU has.
// Without that, the kernel gives them as much as a single thread, even to a hundred of them.
func (c cgroups) shareCPU(path string, cpus int) error {
	dir, name, share := c.dir("cpu", path), "cpu.shares", min(1024*cpus, 262144)
	if c.unified != "" {
		name, share = "cpu.weight", min(100*cpus, 10000)
		_ = os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), []byte("+cpu"), 0) // as for memory
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup for all tasks: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), strconv.AppendInt(nil, int64(share), 10), 0); err != nil {
		return fmt.Errorf("share the CPUs with all tasks: %w", err)
	}
	return nil
}

// limitsSwap reports whether the kernel accounts swap. Without that, setting a swap limit
// fails.
func (c cgroups) limitsSwap() bool {
	if c.unified == "" {
		_, err := os.Stat(filepath.Join(c.v1["memory"], "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	// The root has no limits; any cgroup below it does.
	found, err := filepath.Glob(filepath.Join(c.unified, "*", "memory.swap.max"))
	return err == nil && len(found) > 0
}
