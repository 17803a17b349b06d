package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
)

// Each task in a user namespace has a range of ids of its own, so that tasks are strangers to each other, too. The ranges
// are between those that systemd uses for containers and the end of the positive numbers.
const (
	idsPerTask = 1 << 16
	firstID    = 0x7000_0000
	idRanges   = 4095
)

// labelIDs is the number of a task's range of ids.
const labelIDs = "cloudless.ids"

// userNamespaces is what this machine can do about user namespaces.
type userNamespaces struct {
	// why they cannot be used; empty if they can.
	why string
	// byDefault tells whether runc can also show other folders of the machine with the right owners.
	byDefault bool
}

// findUserNamespaces asks the kernel, the snapshotter and runc.
func (d *Driver) findUserNamespaces(ctx context.Context) userNamespaces {
	switch limit, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); {
	case err != nil:
		return userNamespaces{why: "the kernel has no user namespaces"}
	case string(limit) == "0\n":
		return userNamespaces{why: "the setting user.max_user_namespaces of this machine is 0"}
	}
	if d.snapshotter != overlayfs {
		return userNamespaces{why: "root filesystems are not made by overlayfs here, so that their files cannot get other owners"}
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		return userNamespaces{why: "nsenter is not installed; install the package util-linux of your distribution"}
	}
	if able, err := d.remaps(ctx); err != nil || !able {
		return userNamespaces{why: "the kernel is older than 5.19 and has no idmapped mounts of overlayfs, or containerd does not use them"}
	}
	return userNamespaces{byDefault: runcMapsMounts(ctx, d.runc)}
}

// remaps reports whether the snapshotter can give the files of an image other owners without copying them.
func (d *Driver) remaps(ctx context.Context) (bool, error) {
	if d.opts.embedded() {
		return overlayutils.SupportsIDMappedMounts()
	}
	reply, err := d.client.IntrospectionService().Plugins(ctx, fmt.Sprintf("type==%s,id==%s", plugins.SnapshotPlugin, overlayfs))
	if err != nil {
		return false, err
	}
	for _, found := range reply.Plugins {
		if slices.Contains(found.Capabilities, "remap-ids") {
			return true, nil
		}
	}
	return false, nil
}

// runcMapsMounts asks runc whether it supports idmapped mounts. Old versions cannot be asked, and do not.
func runcMapsMounts(ctx context.Context, runc string) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, runc, "features").Output()
	if err != nil {
		return false
	}
	var features struct {
		Linux struct {
			MountExtensions struct {
				IDMap struct{ Enabled bool } `json:"idmap"`
			} `json:"mountExtensions"`
		} `json:"linux"`
	}
	return json.Unmarshal(out, &features) == nil && features.Linux.MountExtensions.IDMap.Enabled
}

// wantsUserNamespace decides for tasks that do not say it.
func (d *Driver) wantsUserNamespace(task driver.Task) (bool, error) {
	switch wish := task.Security.UserNamespace; {
	case wish == nil:
		return d.userNamespaces.byDefault && d.userNamespaces.why == "" && !isPrivileged(task) &&
			task.Network != driver.NetworkHost && task.Sandbox == "" && len(task.Devices) == 0, nil
	case *wish && d.userNamespaces.why != "":
		return false, fmt.Errorf("task %s: it cannot have a user namespace on this machine: %s: %w", task.ID, d.userNamespaces.why, driver.ErrInvalid)
	default:
		return *wish, nil
	}
}

// idRange is a range of ids of the machine that stands for the ids from 0 in a task.
type idRange struct{ number uint32 }

func (r idRange) mappings() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: firstID + r.number*idsPerTask, Size: idsPerTask}}
}

func (r idRange) label() string { return strconv.FormatUint(uint64(r.number), 10) }

// freeRange is the first range that no task has. The caller holds a lock until the task has it.
func (d *Driver) freeRange(ctx context.Context) (idRange, error) {
	all, err := d.client.ContainerService().List(ctx)
	if err != nil {
		return idRange{}, fmt.Errorf("list containers: %w", err)
	}
	taken := map[string]bool{}
	for _, container := range all {
		taken[container.Labels[labelIDs]] = true
	}
	for number := range uint32(idRanges) {
		if r := (idRange{number}); !taken[r.label()] {
			return r, nil
		}
	}
	return idRange{}, errors.New("all ranges of ids for user namespaces are taken")
}

// mapUsers puts the task into a user namespace.
func (d *Driver) mapUsers(ctx context.Context, task driver.Task, ids idRange, spec *oci.Spec) error {
	if err := oci.WithUserNamespace(ids.mappings(), ids.mappings())(ctx, d.client, nil, spec); err != nil {
		return err
	}
	// The task's root must get through to its root folder. What is beside that stays closed.
	for _, dir := range []string{d.opts.RunDir, d.opts.stateDir()} {
		if err := os.Chmod(dir, 0o711); err != nil && d.opts.embedded() {
			return fmt.Errorf("open the way to the root filesystem: %w", err)
		}
	}
	if task.Network != driver.NetworkNode {
		return nil
	}
	// The network belongs to the machine's users and not to the task's. So the task cannot show it in /sys by itself, and
	// its root is as powerless there as any other user: all of them may listen on low ports.
	sys := d.opts.sysDir(task.ID)
	if err := inNetwork(task.NetworkNamespace, func() error { return mountSys(sys) }); err != nil {
		return fmt.Errorf("show the network of task %s in /sys: %w", task.ID, err)
	}
	for i, mount := range spec.Mounts {
		if mount.Destination == "/sys" {
			spec.Mounts[i] = readOnlyFile(sys, "/sys")
		}
	}
	// Its runtime is in the network already, see runcInNetwork.
	spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.NetworkNamespace
	})
	return nil
}

// runcInNetwork writes the program that the shim calls in place of runc for a task in a user namespace. A process that has
// joined the namespace has no right to join the network any more, and old versions of runc try that in this order.
func (d *Driver) runcInNetwork(task driver.Task) (string, error) {
	if task.Network != driver.NetworkNode {
		return d.runc, nil
	}
	path := d.opts.runcOf(task.ID)
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=%s %s \"$@\"\n", quoted(task.NetworkNamespace), quoted(d.runc))
	return path, writeProgram(path, script)
}

// mountSys makes the view that the calling thread's network has in /sys.
func mountSys(dir string) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(files) }()
	if err := unix.FsconfigCreate(files); err != nil {
		return err
	}
	mounted, err := unix.Fsmount(files, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(mounted) }()
	return unix.MoveMount(mounted, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// removeSys is for tasks that never had one, too.
func (d *Driver) removeSys(task string) error {
	dir := d.opts.sysDir(task)
	if err := unmountBelow(dir); err != nil {
		return err
	}
	for _, path := range []string{dir, d.opts.runcOf(task)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the view of a network: %w", err)
		}
	}
	return nil
}

// inNetwork calls fn on a thread in a network namespace.
func inNetwork(path string, fn func() error) error {
	namespace, err := os.Open(filepath.Clean(path))
	if err != nil {
		return err
	}
	defer func() { _ = namespace.Close() }()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// remapped makes the snapshotter show the files of the image with the owners of the task.
func (r idRange) remapped() snapshots.Opt {
	return client.WithUserNSRemapperLabels(r.mappings(), r.mappings())
}
