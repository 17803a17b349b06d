// Package sandbox runs the tests of a package again in their own namespaces for processes, mounts and the network.
// Whatever happens to the tests, nothing of what they started, mounted or connected outlives them. It knows nothing of
// what the tests do.
package sandbox

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The first process in the namespaces only waits for the others. When it ends, in whatever way, the kernel kills all
// others and removes their mounts, links and rules.
//
//	outside   builds what is needed, waits, removes cgroups
//	└ first   the first process of the namespaces: mounts, and reaps the dead
//	  └ inside  the tests
const (
	stageEnv = "CLOUDLESS_SANDBOX_STAGE"
	// dirEnv names a folder that all stages see.
	dirEnv = "CLOUDLESS_SANDBOX_DIR"

	stageFirst  = "first"
	stageInside = "inside"
)

// Main runs the tests in a sandbox, with bin/cloudless and the programs of some packages, and returns their exit code.
// Tests that run with -short need no sandbox: they must skip whatever needs one.
func Main(m *testing.M, packages ...string) int {
	flag.Parse()
	var code int
	var err error
	switch stage := os.Getenv(stageEnv); {
	case stage == stageFirst:
		code, err = first()
	case stage == stageInside || testing.Short():
		code = m.Run()
	default:
		code, err = outside(packages)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
	}
	return code
}

// Dir is a folder for the files of the tests. It is deleted when they end.
func Dir() string { return os.Getenv(dirEnv) }

// Program is the path of bin/cloudless, or of a program that Main has built.
func Program(name string) string { return filepath.Join(Dir(), name) }

// outside runs the tests in namespaces and returns their exit code.
func outside(packages []string) (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests make namespaces and run containers, and need root")
	}
	binary, err := os.ReadFile("../../bin/cloudless")
	if err != nil {
		return 1, errors.New("bin/cloudless is missing: run make build first")
	}
	dir, err := os.MkdirTemp("", "cloudless-test-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// A copy, so that the whole run uses the same program.
	if err := os.WriteFile(filepath.Join(dir, "cloudless"), binary, 0o700); err != nil {
		return 1, err
	}
	build := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", dir}, packages...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the programs of the containers: %w\n%s", err, out)
	}
	defer removeGroups(dir)
	return again(dir)
}

// again runs this program in new namespaces, and ends it on ctrl-C.
func again(dir string) (int, error) {
	runtime.LockOSThread() // the end of the thread would count as that of the parent
	defer runtime.UnlockOSThread()
	first := exec.Command("/proc/self/exe", os.Args[1:]...)
	first.Stdout, first.Stderr = os.Stdout, os.Stderr
	first.Env = append(os.Environ(), stageEnv+"="+stageFirst, dirEnv+"="+dir)
	first.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Setpgid:    true, // so that only this process gets ctrl-C
		Pdeathsig:  syscall.SIGKILL,
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(interrupted)
	if err := first.Start(); err != nil {
		return 1, fmt.Errorf("make namespaces: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-interrupted:
			_ = first.Process.Kill()
		case <-ended:
		}
	}()
	err := first.Wait() // after everything in the namespaces has ended
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// first makes the namespaces usable, runs the tests in them, and reaps orphans.
func first() (int, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 1, fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	for path, kind := range map[string]string{"/proc": "proc", "/run": "tmpfs"} {
		if err := unix.Mount("none", path, kind, 0, ""); err != nil {
			return 1, fmt.Errorf("mount %s: %w", path, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 1, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return 1, err
	}
	inside := exec.Command("/proc/self/exe", os.Args[1:]...)
	inside.Stdout, inside.Stderr = os.Stdout, os.Stderr
	inside.Env = append(os.Environ(), stageEnv+"="+stageInside)
	if err := inside.Start(); err != nil {
		return 1, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 1, fmt.Errorf("wait for the tests: %w", err)
		}
		if pid == inside.Process.Pid {
			return exitCode(status), nil
		}
	}
}

func exitCode(status unix.WaitStatus) int {
	if status.Exited() {
		return status.ExitStatus()
	}
	return 128 + int(status.Signal())
}

// Control groups are in no namespace. They are recorded, so that they can be removed when
// everything in them has ended.
const groupsFile = "groups"

// NoteGroup records the id of a cloud whose control group must be removed in the end.
func NoteGroup(id string) error {
	file, err := os.OpenFile(filepath.Join(Dir(), groupsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, GroupOf(id))
	return errors.Join(err, file.Close())
}

// GroupOf is the name of the control group of a machine's containers.
func GroupOf(id string) string { return "cloudless-" + id }

func removeGroups(dir string) {
	noted, _ := os.ReadFile(filepath.Join(dir, groupsFile))
	for _, name := range strings.Fields(string(noted)) {
		for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
			found, _ := filepath.Glob(pattern)
			for _, path := range found {
				removeGroup(path)
			}
		}
	}
}

// removeGroup removes a control group after those below it.
func removeGroup(path string) {
	entries, _ := os.ReadDir(path)
	for _, entry := range entries {
		if entry.IsDir() {
			removeGroup(filepath.Join(path, entry.Name()))
		}
	}
	if err := os.Remove(path); err != nil {
		fmt.Fprintln(os.Stderr, "sandbox: left behind:", err)
	}
}
