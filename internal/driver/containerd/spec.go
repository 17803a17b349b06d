package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
)

const (
	defaultPath     = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultPIDLimit = 4096
	cpuPeriod       = 100_000 // microseconds
	minCPUShares    = 2       // the kernel's minimum
	highestOOMScore = 1000    // the kernel's maximum

	// Open files: few by default, because some programs close every number up to the limit;
	// many for those that ask.
	openFilesSoft = 1024
	openFilesHard = 524_288
)

// leaseAnnotation names the lease of a task to its shim.
const leaseAnnotation = "cloudless.lease"

// secretsAnnotation names the file with the secret variables of a task to its shim, which adds them.
const secretsAnnotation = "cloudless.secrets"

// processLimits are the kernel's limits for every process of a task.
type processLimits struct {
	openFiles specs.POSIXRlimit
	oomScore  int // the least that a task may have
}

// findProcessLimits stays within this process's own limits: if it may not exceed them, its
// containers could not start.
func findProcessLimits() (processLimits, error) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return processLimits{}, fmt.Errorf("read the limit of open files: %w", err)
	}
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return processLimits{}, fmt.Errorf("read the OOM score: %w", err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return processLimits{}, fmt.Errorf("read the OOM score: %w", err)
	}
	return processLimits{
		openFiles: specs.POSIXRlimit{
			Type: "RLIMIT_NOFILE",
			Soft: min(openFilesSoft, own.Max),
			Hard: min(openFilesHard, own.Max),
		},
		oomScore: max(0, score), // only a privileged process may lower its own
	}, nil
}

var validTaskID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,74}[a-z0-9])?$`)

func validateTask(task driver.Task) error {
	var problem string
	switch r := task.Resources; {
	case !validTaskID.MatchString(task.ID):
		problem = "its id must be 1 to 76 lower-case letters, digits and inner dashes"
	case task.Image == "":
		problem = "it names no image"
	case !filepath.IsAbs(task.LogDir):
		problem = fmt.Sprintf("its log folder %q is not an absolute path", task.LogDir)
	case task.Network != driver.NetworkNode && task.Network != driver.NetworkHost && task.Network != driver.NetworkNone:
		problem = fmt.Sprintf("network %q: want %q, %q or %q", task.Network, driver.NetworkNode, driver.NetworkHost, driver.NetworkNone)
	case (task.Network == driver.NetworkNode) != (task.NetworkNamespace != ""):
		problem = fmt.Sprintf("a network namespace goes with network %q and no other", driver.NetworkNode)
	case task.WorkingDir != "" && !filepath.IsAbs(task.WorkingDir):
		problem = fmt.Sprintf("its working folder %q is not an absolute path", task.WorkingDir)
	case inKernel(task.WorkingDir):
		problem = fmt.Sprintf("its working folder %q leads to the kernel and not to files", task.WorkingDir)
	case r.CPURequest < 0 || r.CPULimit < 0 || r.MemoryLimit < 0 || r.PIDLimit < 0 || r.OOMScore < 0:
		problem = "a resource is negative"
	case task.SecretEnv != "" && !filepath.IsAbs(task.SecretEnv):
		problem = fmt.Sprintf("the file with its secret variables %q is not an absolute path", task.SecretEnv)
	default:
		return nil
	}
	return fmt.Errorf("task %q: %s: %w", task.ID, problem, driver.ErrInvalid)
}

// spec describes the container to runc. The user stays root unless it is given in numbers;
// see lookupUser.
func (d *Driver) spec(ctx context.Context, task driver.Task, container *containers.Container, config imagespec.ImageConfig) (*oci.Spec, error) {
	args, err := commandLine(task, config)
	if err != nil {
		return nil, err
	}
	if err := checkImage(task, config); err != nil {
		return nil, err
	}
	spec, err := oci.GenerateSpec(d.scope(ctx), d.client, container,
		oci.WithProcessArgs(args...),
		d.secure(task),
		oci.WithCgroup(d.cgroupPath(task.ID)),
		oci.WithHostname(task.Hostname),
		oci.WithProcessCwd(firstOf(task.WorkingDir, config.WorkingDir, "/")),
	)
	if err != nil {
		return nil, fmt.Errorf("describe the container of task %s: %w", task.ID, err)
	}
	spec.Annotations = map[string]string{}
	for name, path := range map[string]string{leaseAnnotation: task.Lease, secretsAnnotation: task.SecretEnv} {
		if path != "" {
			spec.Annotations[name] = path
		}
	}
	spec.Process.Env = environment(config.Env, task.Env)
	spec.Process.Rlimits = []specs.POSIXRlimit{d.limits.openFiles}
	score := min(max(task.Resources.OOMScore, d.limits.oomScore), highestOOMScore)
	spec.Process.OOMScoreAdj = &score
	spec.Root.Readonly = task.ReadOnlyRoot || task.Security.Profile == driver.Restricted
	if uid, gid, ok := numericUser(firstOf(task.User, config.User, "0:0")); ok {
		spec.Process.User = specs.User{UID: uid, GID: gid, AdditionalGids: []uint32{gid}}
	}
	if err := allowDevices(spec, task.Devices); err != nil {
		return nil, fmt.Errorf("task %s: %w", task.ID, err)
	}
	d.setResources(spec.Linux.Resources, task.Resources)
	d.setCgroupView(task, spec)
	switch task.Network {
	case driver.NetworkHost:
		useHostNetwork(spec)
	case driver.NetworkNode:
		useNamespace(spec, task.NetworkNamespace)
	}
	for _, path := range slices.Sorted(maps.Keys(task.Files)) {
		spec.Mounts = append(spec.Mounts, readOnlyFile(task.Files[path], path))
	}
	for _, path := range slices.Sorted(maps.Keys(task.Folders)) { // a folder in another one comes after it
		spec.Mounts = append(spec.Mounts, readOnlyFile(task.Folders[path], path))
	}
	return spec, nil
}

// allowDevices lets a task use more devices than every task has. The task cannot create any
// itself.
func allowDevices(spec *oci.Spec, paths []string) error {
	for _, path := range paths {
		device, err := oci.DeviceFromPath(path)
		if err != nil {
			return fmt.Errorf("give it the device %s: %w", path, err)
		}
		spec.Linux.Devices = append(spec.Linux.Devices, *device)
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
			Allow: true, Type: device.Type, Major: &device.Major, Minor: &device.Minor, Access: "rw",
		})
	}
	return nil
}

// commandLine combines the image's command with the task's. If the task has a command, the
// image's arguments do not count.
func commandLine(task driver.Task, config imagespec.ImageConfig) ([]string, error) {
	args := slices.Concat(config.Entrypoint, config.Cmd)
	switch {
	case len(task.Command) > 0:
		args = slices.Concat(task.Command, task.Args)
	case len(task.Args) > 0:
		args = slices.Concat(config.Entrypoint, task.Args)
	}
	if len(args) == 0 || args[0] == "" {
		return nil, fmt.Errorf("task %s: neither it nor the image %s names a command: %w", task.ID, task.Image, driver.ErrInvalid)
	}
	return args, nil
}

// environment puts the task's variables over the image's.
func environment(image []string, task map[string]string) []string {
	env := map[string]string{"PATH": defaultPath}
	for _, variable := range image {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	maps.Copy(env, task)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// numericUser reads "uid:gid", and the names of root, which need no lookup.
func numericUser(user string) (uid, gid uint32, ok bool) {
	if user == "root" || user == "0" {
		return 0, 0, true
	}
	first, second, ok := strings.Cut(user, ":")
	u, errU := strconv.ParseUint(first, 10, 31)
	g, errG := strconv.ParseUint(second, 10, 31)
	return uint32(u), uint32(g), ok && errU == nil && errG == nil
}

// lookupUser looks a user that is not given in numbers up in the task's root filesystem,
// which must exist, and reports whether there was one to look up.
func (d *Driver) lookupUser(ctx context.Context, user string, container *containers.Container, spec *oci.Spec) (bool, error) {
	if _, _, ok := numericUser(user); ok {
		return false, nil
	}
	err := oci.WithUser(user)(d.scope(ctx), d.client, container, spec)
	if err == nil {
		err = oci.WithAdditionalGIDs(user)(d.scope(ctx), d.client, container, spec)
	}
	if errors.Is(err, oci.ErrNoUsersFound) || errors.Is(err, oci.ErrNoGroupsFound) || errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("user %q does not exist in the image: %w", user, driver.ErrInvalid)
	}
	if err != nil {
		return false, fmt.Errorf("look up user %q: %w", user, err)
	}
	return true, nil
}

func (d *Driver) setResources(to *specs.LinuxResources, from driver.Resources) {
	to.CPU = &specs.LinuxCPU{}
	if from.CPURequest > 0 {
		to.CPU.Shares = new(uint64)
		*to.CPU.Shares = max(minCPUShares, uint64(from.CPURequest)*1024/1000)
	}
	if from.CPULimit > 0 {
		quota, period := from.CPULimit*cpuPeriod/1000, uint64(cpuPeriod)
		to.CPU.Quota, to.CPU.Period = &quota, &period
	}
	if from.MemoryLimit > 0 {
		to.Memory = &specs.LinuxMemory{Limit: &from.MemoryLimit}
		// Without swap, so that the limit means memory.
		if d.cgroups.limitsSwap() {
			to.Memory.Swap = &from.MemoryLimit
		}
	} else if limit := d.memoryLimit.Load(); limit > 0 {
		// Enforced by the cgroup above; here, programs can see it and size their caches and heaps.
		to.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	pids := from.PIDLimit
	if pids == 0 {
		pids = defaultPIDLimit
	}
	to.Pids = &specs.LinuxPids{Limit: &pids}
}

// setCgroupView shows the container its own cgroup, read-only unless it is privileged, so that programs can see
// their limits.
func (d *Driver) setCgroupView(task driver.Task, spec *oci.Spec) {
	access := "ro"
	if isPrivileged(task) {
		access = "rw"
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: "/sys/fs/cgroup",
		Type:        "cgroup",
		Source:      "cgroup",
		Options:     []string{access, "nosuid", "noexec", "nodev"},
	})
	if d.cgroups.unified != "" {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
}

// useHostNetwork removes the task's network namespace; without that, runc would create one
// with only loopback.
func useHostNetwork(spec *oci.Spec) {
	spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.NetworkNamespace
	})
	for _, file := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		if _, err := os.Stat(file); err == nil {
			spec.Mounts = append(spec.Mounts, readOnlyFile(file, file))
		}
	}
}

// useNamespace lets the container join an existing network namespace.
func useNamespace(spec *oci.Spec, path string) {
	for i, ns := range spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = path
		}
	}
}

// userOf is the user of the first process. The user of a user namespace's root is the machine's at the shift.
func userOf(spec *oci.Spec) driver.User {
	user := driver.User{UID: int(spec.Process.User.UID), GID: int(spec.Process.User.GID)}
	if mappings := spec.Linux.UIDMappings; len(mappings) > 0 {
		user.Shift = int(mappings[0].HostID) - int(mappings[0].ContainerID)
	}
	return user
}

// readOnlyFile binds a file or a folder.
func readOnlyFile(source, destination string) specs.Mount {
	return specs.Mount{
		Destination: destination, Source: source, Type: "bind", Options: []string{"bind", "ro", "nosuid", "noexec", "nodev"},
	}
}

func firstOf(words ...string) string {
	for _, word := range words {
		if word != "" {
			return word
		}
	}
	return ""
}
