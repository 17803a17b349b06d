package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// sandboxRuntime is the program that the shim calls in place of runc: runsc, gVisor's, with the options that the driver
// needs, which a shim cannot pass.
const sandboxRuntime = "runsc-in-a-shim"

// gVisorOptions are for runsc, as far as its version has them.
var gVisorOptions = []struct{ name, value string }{
	// The network of the task's own namespace, in which the addresses and rules of its replica are, and in which others
	// reach its loopback. gVisor's own network would take the addresses away from it.
	{"network", "host"},
	// Others read and write the task's files while it runs.
	{"file-access", "shared"},
	{"overlay2", "none"},
	// Sockets in folders that the task is given, such as that of its identity. The second name is that of old versions.
	{"host-uds", "open"},
	{"fsgofer-host-uds", "true"},
}

// findSandbox looks for runsc and writes the program that calls it. There is no sandbox if it is missing.
func (d *Driver) findSandbox(ctx context.Context) error {
	runsc, err := exec.LookPath("runsc")
	if err != nil {
		runsc = "/usr/local/bin/runsc"
		if _, err := os.Stat(runsc); err != nil {
			return nil
		}
	}
	options := gVisorFlags(ctx, runsc)
	script := fmt.Sprintf(sandboxScript, quoted(runsc)+options)
	path := filepath.Join(d.opts.shimDir(), sandboxRuntime)
	if err := writeProgram(path, script); err != nil {
		return err
	}
	d.sandbox = path
	return nil
}

// writeProgram writes a program unless it is there.
func writeProgram(path, script string) error {
	if before, err := os.ReadFile(path); err == nil && string(before) == script {
		return nil
	}
	err := atomicfile.Replace(path, []byte(script))
	if err == nil {
		err = os.Chmod(path, 0o755)
	}
	if err != nil {
		return fmt.Errorf("write the program %s: %w", path, err)
	}
	return nil
}

// sandboxScript calls runsc. For exec, it also has runsc write which number the process has inside: a signal to the process
// that runsc has outside does not reach it.
const sandboxScript = `#!/bin/sh
file= last= exec=
for word; do
	[ "$last" = --pid-file ] && file=$word
	[ "$word" = exec ] && exec=yes
	last=$word
done
if [ -n "$exec" ]; then
	left=$#
	while [ "$left" -gt 0 ]; do
		word=$1
		shift
		set -- "$@" "$word"
		[ "$word" = exec ] && set -- "$@" --internal-pid-file "$file` + insideSuffix + `"
		left=$((left - 1))
	done
fi
exec %s "$@"
`

// insideSuffix ends the name of the file with the number that a process has inside of its sandbox.
const insideSuffix = ".inside"

// signalInside sends a signal to a process of a sandbox that was started by exec. It reports false for a process that is in
// none.
func (p *process) signalInside(ctx context.Context, sig syscall.Signal) bool {
	d := p.driver
	if d.sandbox == "" {
		return false
	}
	root, err := d.mountedRoot(p.task)
	if err != nil {
		return false
	}
	inside, err := os.ReadFile(filepath.Join(filepath.Dir(root), p.id+".pid"+insideSuffix))
	if err != nil {
		return false
	}
	// A process that has ended cannot be told from another failure; then the shim knows better.
	return exec.CommandContext(ctx, d.sandbox, "--root", filepath.Join(d.opts.runcDir(), d.opts.namespace()),
		"kill", "--pid", strings.TrimSpace(string(inside)), p.task, strconv.Itoa(int(sig))).Run() == nil
}

// gVisorFlags are the options that this runsc knows.
func gVisorFlags(ctx context.Context, runsc string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	known, _ := exec.CommandContext(ctx, runsc, "flags").CombinedOutput()
	var options strings.Builder
	has := func(name string) bool {
		return bytes.Contains(known, []byte("\n  -"+name+" ")) || bytes.Contains(known, []byte("\n  -"+name+"\n"))
	}
	for _, o := range gVisorOptions {
		if has(o.name) && (o.name != "fsgofer-host-uds" || !has("host-uds")) {
			fmt.Fprintf(&options, " --%s=%s", o.name, o.value)
		}
	}
	return options.String()
}

func quoted(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }

// runtimeFor is the program that runs a task: runc, or that of a sandbox.
func (d *Driver) runtimeFor(task driver.Task, mapped bool) (string, error) {
	switch {
	case mapped:
		return d.runcInNetwork(task)
	case task.Sandbox == "":
		return d.runc, nil
	case task.Sandbox != spec.SandboxGVisor:
		return "", fmt.Errorf("task %s: there is no sandbox %q: %w", task.ID, task.Sandbox, driver.ErrInvalid)
	case d.sandbox == "":
		return "", fmt.Errorf("task %s: sandbox %s needs runsc, which is not installed on this machine; install gVisor, whose Debian package is runsc, and restart the agent: %w",
			task.ID, task.Sandbox, driver.ErrInvalid)
	}
	return d.sandbox, nil
}

// labelSandbox marks a container in a sandbox, whose process has another root folder than the program in it.
const labelSandbox = "cloudless.sandbox"

// openMountedRoot opens the root filesystem of a task where it is mounted. Other mounts in the task are not in it.
func (d *Driver) openMountedRoot(id string) (*os.File, error) {
	path, err := d.mountedRoot(id)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// mountedRoot is where the root filesystem of a task is mounted, in its bundle.
func (d *Driver) mountedRoot(id string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	suffix := filepath.Join("/", d.opts.namespace(), id, "rootfs")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasSuffix(fields[4], suffix) {
			return fields[4], nil
		}
	}
	return "", driver.ErrNotRunning
}

// hiddenInSandbox are the folders that the kernel of a sandbox mounts and the machine does not see. It has a file system in
// memory in /tmp, too.
func hiddenInSandbox(of *oci.Spec) []string {
	hidden := []string{"/tmp"}
	for _, m := range of.Mounts {
		hidden = append(hidden, m.Destination)
	}
	return hidden
}

// sandboxEnded reports whether a signal came too late for a sandbox. The shim knows only how runc says it.
func sandboxEnded(err error) bool { return strings.Contains(err.Error(), "sandbox is not running") }

// removeSandbox removes what runsc keeps of a task, whose shim may have been killed.
func (d *Driver) removeSandbox(id string) error {
	left, err := filepath.Glob(filepath.Join(d.opts.runcDir(), d.opts.namespace(), id+"_sandbox:*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}
