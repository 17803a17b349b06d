package containerd

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	hostapparmor "github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/containerd/v2/pkg/oci"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// capabilities are what root in a container keeps. They do not allow making devices, raw
// packets, new roots or audit records, nor passing capabilities on.
var capabilities = []string{
	"CAP_CHOWN",
	"CAP_DAC_OVERRIDE",
	"CAP_FOWNER",
	"CAP_FSETID",
	"CAP_KILL",
	"CAP_NET_BIND_SERVICE",
	"CAP_SETGID",
	"CAP_SETUID",
}

// appArmorProfile is containerd's default profile under our own name, so that no other program replaces it.
const appArmorProfile = "cloudless-default"

// isPrivileged reports whether a task may do everything.
func isPrivileged(task driver.Task) bool { return task.Security.Profile == driver.Privileged }

// secure makes a task's process as powerless as its profile says.
func (d *Driver) secure(task driver.Task) oci.SpecOpts {
	s := task.Security
	opts := []oci.SpecOpts{withCapabilities(s), withSystemCalls(task), d.withAppArmor(task), oci.WithNoNewPrivileges}
	if s.NewPrivileges != nil && *s.NewPrivileges || s.NewPrivileges == nil && isPrivileged(task) {
		opts = append(opts, oci.WithNewPrivileges)
	}
	if isPrivileged(task) {
		opts = append(opts, oci.WithHostDevices, oci.WithAllDevicesAllowed, oci.WithWriteableSysfs, oci.WithMaskedPaths(nil), oci.WithReadonlyPaths(nil))
	}
	return oci.Compose(opts...)
}

// withCapabilities gives the process those of its profile and what its workload changes. Those that are added by name also
// work for a user who is not root.
func withCapabilities(s driver.Security) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, container *containers.Container, to *specs.Spec) error {
		var base []string
		switch s.Profile {
		case driver.Restricted:
		case driver.Privileged:
			base = spec.AllCapabilities()
		default:
			base = capabilities
		}
		has := spec.Capabilities(base, &v1.Capabilities{Add: s.AddCapabilities, Drop: s.DropCapabilities})
		own, err := cap.Current() // the kernel may know fewer, and nobody can give what they lack
		if err != nil {
			return fmt.Errorf("read the capabilities of this process: %w", err)
		}
		has = slices.DeleteFunc(has, func(name string) bool { return !slices.Contains(own, name) })
		if err := oci.WithCapabilities(has)(ctx, client, container, to); err != nil {
			return err
		}
		for _, name := range s.AddCapabilities {
			if name = "CAP_" + name; slices.Contains(has, name) {
				to.Process.Capabilities.Inheritable = append(to.Process.Capabilities.Inheritable, name)
				to.Process.Capabilities.Ambient = append(to.Process.Capabilities.Ambient, name)
			}
		}
		return nil
	}
}

// withSystemCalls filters system calls. It follows the capabilities, on which the default filter depends.
func withSystemCalls(task driver.Task) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, to *specs.Spec) error {
		switch filter := task.Security.Seccomp; {
		case task.Sandbox != "", // its kernel is another program, which filters its own calls
			filter == spec.FilterUnconfined,
			filter == "" && isPrivileged(task):
			to.Linux.Seccomp = nil
		case filter == "" || filter == spec.FilterDefault:
			to.Linux.Seccomp = seccomp.DefaultProfile(to)
			ownArchitectureOnly(to)
		default:
			own, err := spec.ParseSeccomp(filter)
			if err != nil {
				return fmt.Errorf("the filter of system calls %w: %w", err, driver.ErrInvalid)
			}
			to.Linux.Seccomp = own
		}
		return nil
	}
}

// ownArchitectureOnly refuses the system calls of other architectures that the processor
// supports, such as 32-bit ones: they are less tested in the kernel, and take half of the
// time in which runc builds the filter.
func ownArchitectureOnly(to *specs.Spec) {
	own, ok := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}[runtime.GOARCH]
	if ok && to.Linux.Seccomp != nil {
		to.Linux.Seccomp.Architectures = []specs.Arch{own}
	}
}

// withAppArmor uses a profile where the kernel has AppArmor.
func (d *Driver) withAppArmor(task driver.Task) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, to *specs.Spec) error {
		name := task.Security.AppArmor
		switch {
		case task.Sandbox != "", name == spec.FilterUnconfined, name == "" && isPrivileged(task), !hostapparmor.HostSupports():
		case name == "" || name == spec.FilterDefault:
			if err := apparmor.LoadDefaultProfile(appArmorProfile); err != nil {
				return fmt.Errorf("load the AppArmor profile %s, for which the package apparmor must be installed: %w", appArmorProfile, err)
			}
			to.Process.ApparmorProfile = appArmorProfile
		default:
			to.Process.ApparmorProfile = name
		}
		return nil
	}
}

// inKernel reports whether a working folder is one of the kernel.
func inKernel(dir string) bool { return spec.KernelFolder(dir) != "" }

// checkImage refuses what only the image's configuration shows.
func checkImage(task driver.Task, config imagespec.ImageConfig) error {
	if in := spec.KernelFolder(config.WorkingDir); in != "" && task.WorkingDir == "" {
		return fmt.Errorf("task %s: the working folder %q of the image is in %s, which leads to the kernel and not to files; give another one by workingDir: %w",
			task.ID, config.WorkingDir, in, driver.ErrInvalid)
	}
	return nil
}

// checkRestricted refuses root under the profile "restricted", once the user is known.
func checkRestricted(task driver.Task, of *specs.Spec) error {
	if task.Security.Profile != driver.Restricted || of.Process.User.UID != 0 {
		return nil
	}
	whose := "the user"
	if task.User == "" {
		whose = "the user of the image " + shortName(task.Image)
	}
	return fmt.Errorf("task %s: %s is root, which the security profile restricted does not allow; name another one by user, such as 1000:1000: %w",
		task.ID, whose, driver.ErrInvalid)
}

// labelProfile marks a container whose security profile also limits what runs in it later.
const labelProfile = "cloudless.profile"

// checkRestrictedExec refuses root beside the first process of a restricted task, once the user is known.
func checkRestrictedExec(of containers.Container, process *specs.Process) error {
	if of.Labels[labelProfile] != string(driver.Restricted) || process.User.UID != 0 {
		return nil
	}
	return fmt.Errorf("the user is root, which the security profile restricted does not allow; name another one, such as 1000:1000, or none for the task's own: %w",
		driver.ErrInvalid)
}

// shortName is an image's name without its digest.
func shortName(image string) string {
	name, _, _ := strings.Cut(image, "@")
	return name
}
