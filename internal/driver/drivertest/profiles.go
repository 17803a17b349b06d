package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/driver"
)

// allCapabilities has a bit for every capability of the test's own process.
func allCapabilities(t *testing.T) uint64 {
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	return bits(t, procStatus(string(status))["CapEff"])
}

func bits(t *testing.T, hex string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(hex, 16, 64)
	must(t, err)
	return n
}

// The bits of capabilities, by their numbers in Linux.
const (
	chown       = 1 << 0
	bindService = 1 << 10
	netRaw      = 1 << 13
	sysTime     = 1 << 25
)

// rights runs a task that shows what its process may do.
func (s *suite) rights(t *testing.T, security driver.Security, user string) map[string]string {
	t.Helper()
	task := s.shell(t, "cat /proc/self/status")
	task.Security, task.User = security, user
	return procStatus(s.output(t, task))
}

func profiles(t *testing.T, s *suite) {
	t.Run("restricted has no rights and a read-only root", func(t *testing.T) {
		task := s.shell(t, "cat /proc/self/status; touch /tmp/x 2>/dev/null && echo wrote; true")
		task.Security.Profile, task.User = driver.Restricted, "1000:1000"
		got := s.output(t, task)
		fields := procStatus(got)
		for _, set := range []string{"CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"} {
			if bits(t, fields[set]) != 0 {
				t.Errorf("%s is %s", set, fields[set])
			}
		}
		if fields["NoNewPrivs"] != "1" || fields["Seccomp"] != "2" || strings.Contains(got, "wrote") {
			t.Errorf("got %s", got)
		}
	})
	t.Run("restricted refuses root, of the task or of the image", func(t *testing.T) {
		for _, user := range []string{"", "root", "0:0", "0"} {
			task := s.shell(t, "true")
			task.Security.Profile, task.User = driver.Restricted, user
			_, err := s.driver.Start(s.ctx(t), task)
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "is root, which the security profile restricted does not allow") {
				t.Errorf("user %q: %v", user, err)
			}
		}
	})
	t.Run("restricted refuses root in what runs later, by number and by any name", func(t *testing.T) {
		task := s.shell(t, "echo ready; exec sleep 100000")
		task.Security.Profile, task.User = driver.Restricted, "web"
		s.start(t, task)
		s.logUntil(t, task, "ready")
		s.close(t) // the profile is known to a driver that has not started the task
		s.open(t)
		exec := func(user string) (string, error) {
			var out strings.Builder
			process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"id", "-u"}, User: user, Stdout: &out})
			if err != nil {
				return "", err
			}
			_, err = process.Wait(s.ctx(t))
			return strings.TrimSpace(out.String()), err
		}
		for _, user := range []string{"0", "00", "root", "0:0", "0:1234", "root:root", "toor"} {
			_, err := exec(user)
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "is root, which the security profile restricted does not allow") {
				t.Errorf("user %q: %v", user, err)
			}
		}
		for user, want := range map[string]string{"": "1234", "web": "1234", "1000:1000": "1000"} {
			if got, err := exec(user); got != want || err != nil {
				t.Errorf("user %q is %q: %v", user, got, err)
			}
		}
	})
	t.Run("a capability that is added works for users who are not root", func(t *testing.T) {
		security := driver.Security{Profile: driver.Restricted, AddCapabilities: []string{"NET_BIND_SERVICE"}}
		if got := bits(t, s.rights(t, security, "1000:1000")["CapEff"]); got != bindService {
			t.Errorf("got %x", got)
		}
	})
	t.Run("capabilities are added and dropped", func(t *testing.T) {
		security := driver.Security{AddCapabilities: []string{"NET_RAW"}, DropCapabilities: []string{"CHOWN"}}
		if got := bits(t, s.rights(t, security, "")["CapEff"]); got&netRaw == 0 || got&chown != 0 || got&bindService == 0 {
			t.Errorf("with NET_RAW and without CHOWN: %x", got)
		}
		security = driver.Security{AddCapabilities: []string{"CHOWN"}, DropCapabilities: []string{"ALL"}}
		if got := bits(t, s.rights(t, security, "")["CapEff"]); got != chown {
			t.Errorf("only CHOWN: %x", got)
		}
	})
	t.Run("privileged has all rights and all devices", func(t *testing.T) {
		task := s.shell(t, "cat /proc/self/status; ls /dev/kmsg; mount -t tmpfs none /tmp && echo mounted")
		task.Security.Profile = driver.Privileged
		got := s.output(t, task)
		fields := procStatus(got)
		if all := allCapabilities(t); bits(t, fields["CapEff"]) != all {
			t.Errorf("CapEff is %s, want %x", fields["CapEff"], all)
		}
		if fields["NoNewPrivs"] != "0" || fields["Seccomp"] != "0" || !strings.Contains(got, "/dev/kmsg") || !strings.HasSuffix(got, "mounted") {
			t.Errorf("got %s", got)
		}
	})
	t.Run("privileged can be filtered and give rights up", func(t *testing.T) {
		no := false
		fields := s.rights(t, driver.Security{
			Profile: driver.Privileged, Seccomp: "default", DropCapabilities: []string{"SYS_TIME"}, NewPrivileges: &no,
		}, "")
		if fields["Seccomp"] != "2" || fields["NoNewPrivs"] != "1" || bits(t, fields["CapEff"])&sysTime != 0 {
			t.Errorf("got %v", fields)
		}
	})
	t.Run("new privileges can be allowed", func(t *testing.T) {
		yes := true
		if got := s.rights(t, driver.Security{NewPrivileges: &yes}, "")["NoNewPrivs"]; got != "0" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("a filter of system calls of its own", func(t *testing.T) {
		task := s.shell(t, "mkdir /tmp/x 2>&1; echo went on")
		task.Security.Seccomp = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]}`
		if got := s.output(t, task); !strings.Contains(got, "Function not implemented") || !strings.HasSuffix(got, "went on") {
			t.Errorf("got %q", got)
		}
		task = s.shell(t, "true")
		task.Security.Seccomp = "strict"
		if _, err := s.driver.Start(s.ctx(t), task); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("with the name of one: %v", err)
		}
	})
	t.Run("a working folder of the kernel is refused", func(t *testing.T) {
		for _, dir := range []string{"/proc/self/fd/7", "//proc/../proc", "/sys/", "/./proc", "/tmp/../proc/1"} {
			task := s.shell(t, "true")
			task.WorkingDir = dir
			if _, err := s.driver.Start(s.ctx(t), task); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%s: %v", dir, err)
			}
		}
		task := s.shell(t, "sleep 1000")
		s.start(t, task)
		_, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"true"}, WorkingDir: "/proc/self/fd/7"})
		wantError(t, err, driver.ErrInvalid)
	})
	t.Run("no way out is open", func(t *testing.T) {
		for name, try := range map[string]string{
			"mount a file system":    "mount -t tmpfs none /tmp",
			"mount the machine's":    "mount -t proc proc /tmp",
			"make a device":          "mknod /tmp/mem c 1 1",
			"change the root":        "chroot / /bin/true",
			"new namespaces":         "unshare -m true",
			"a new user namespace":   "unshare -U true",
			"enter the machine's":    "nsenter -t 1 -m -- ls /sys/firmware/acpi",
			"change the host's name": "hostname other",
			"set the clock":          "date -s 2000-01-01 2>&1 | grep -v not.permitted | grep -q 2000 && test $(date +%Y) = 2000",
			"write settings":         "echo x >/proc/sys/kernel/core_pattern",
			"catch core dumps":       "echo x >/proc/sys/kernel/modprobe",
			"release agents":         "cd /sys/fs/cgroup/memory || cd /sys/fs/cgroup; mkdir x",
			"the kernel's memory":    "head -c1 /proc/kcore",
			"the kernel's log":       "dmesg",
			"the kernel's addresses": `grep -v "^0000000000000000" /proc/kallsyms | head -1 | grep .`,
			"change the network":     "ip link add x type dummy",
			"raise its own priority": "nice -n -5 true",
			"reboot":                 "reboot -f",
		} {
			task := s.shell(t, fmt.Sprintf("if ( %s ) >/dev/null 2>&1; then echo open; fi", try))
			if got := s.output(t, task); got != "" {
				t.Errorf("it can %s: %q", name, got)
			}
		}
	})
}

func userNamespaces(t *testing.T, s *suite) {
	yes := true
	if !s.driver.Capabilities().UserNamespaces {
		task := s.shell(t, "true")
		task.Security.UserNamespace = &yes
		_, err := s.driver.Start(s.ctx(t), task)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "cannot have a user namespace") {
			t.Errorf("got %v", err)
		}
		return
	}
	mapped := func(t *testing.T, script string) driver.Task {
		task := s.shell(t, script)
		task.Security.UserNamespace = &yes
		return task
	}
	t.Run("root inside is nobody outside", func(t *testing.T) {
		got := s.output(t, mapped(t, "id -u; cat /proc/self/uid_map; stat -c %u /bin/busybox; touch /made && stat -c %u /made; grep CapEff /proc/self/status"))
		fields := strings.Fields(got)
		if len(fields) != 8 || fields[0] != "0" || fields[1] != "0" || fields[2] == "0" || fields[3] != "65536" || fields[4] != "0" || fields[5] != "0" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("each task has users of its own", func(t *testing.T) {
		a, b := mapped(t, "cat /proc/self/uid_map; echo ready; sleep 1000"), mapped(t, "cat /proc/self/uid_map; echo ready; sleep 1000")
		s.start(t, a)
		s.start(t, b)
		first, second := s.logUntil(t, a, "ready"), s.logUntil(t, b, "ready")
		if first[0] == second[0] {
			t.Errorf("both have %q", first[0])
		}
	})
	t.Run("with a network and files of the machine", func(t *testing.T) {
		task := mapped(t, "ls /sys/class/net; cat /etc/hosts; echo ready; sleep 1000")
		task.Network, task.NetworkNamespace = driver.NetworkNode, newNamespace(t)
		task.Files = map[string]string{"/etc/hosts": "/etc/hosts"}
		s.start(t, task)
		if lines := s.logUntil(t, task, "ready"); lines[0] != "lo" {
			t.Errorf("its interfaces are %q", lines)
		}
		root, err := s.driver.Root(s.ctx(t), task.ID)
		must(t, err)
		defer root.Dir.Close()
		if root.UID == 0 || root.UID != root.GID {
			t.Errorf("its root is user %d, group %d outside", root.UID, root.GID)
		}
		path := fmt.Sprintf("/proc/self/fd/%d/copied", root.Dir.Fd())
		must(t, os.WriteFile(path, []byte("in"), 0o600))
		must(t, os.Chown(path, root.UID, root.GID))
		var out strings.Builder
		process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sh", "-c", "stat -c %u /copied; cat /copied"}, Stdout: &out})
		must(t, err)
		if code, err := process.Wait(s.ctx(t)); code != 0 || err != nil || out.String() != "0\nin" {
			t.Errorf("exec: %d, %v, %q", code, err, out.String())
		}
	})
	t.Run("a user by name, restricted", func(t *testing.T) {
		task := mapped(t, "id -u; grep CapEff /proc/self/status")
		task.User, task.Security.Profile = "web", driver.Restricted
		if got := strings.Fields(s.output(t, task)); fmt.Sprint(got) != "[1234 CapEff: 0000000000000000]" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("limits hold", func(t *testing.T) {
		task := mapped(t, eat)
		task.Resources.MemoryLimit = 64 << 20
		if exit := s.run(t, task); exit.Code == 0 {
			t.Errorf("got %+v", exit)
		}
	})
}

func sandboxes(t *testing.T, s *suite) {
	sandboxed := func(t *testing.T, script string) driver.Task {
		task := s.shell(t, script)
		task.Sandbox = "gvisor"
		return task
	}
	t.Run("an unknown one is refused", func(t *testing.T) {
		task := s.shell(t, "true")
		task.Sandbox = "sand"
		_, err := s.driver.Start(s.ctx(t), task)
		wantError(t, err, driver.ErrInvalid)
	})
	if len(s.driver.Capabilities().Sandboxes) == 0 {
		_, err := s.driver.Start(s.ctx(t), sandboxed(t, "true"))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "runsc") {
			t.Errorf("got %v", err)
		}
		t.Skip("this test needs gVisor's runsc in PATH; install the package runsc")
	}
	t.Run("its kernel is not the machine's", func(t *testing.T) {
		if got := s.output(t, sandboxed(t, "dmesg")); !strings.Contains(got, "Starting gVisor") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("it has an exit code and an error output", func(t *testing.T) {
		task := sandboxed(t, "echo complaint >&2; exit 7")
		if exit := s.run(t, task); exit.Code != 7 {
			t.Errorf("got %+v", exit)
		}
		if got := s.log(t, task); got != "stderr: complaint\n" {
			t.Errorf("log: %q", got)
		}
	})
	t.Run("it stops by a signal, and is killed", func(t *testing.T) {
		task := sandboxed(t, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGTERM", hangs))
		if exit, err := s.driver.Wait(s.ctx(t), task.ID); err != nil || exit.Code != 5 {
			t.Errorf("got %+v, %v", exit, err)
		}
		task = sandboxed(t, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGTERM", 0))
		if exit, err := s.driver.Wait(s.ctx(t), task.ID); err != nil || exit.Code != 137 {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
	t.Run("exec and copies and network and statistics and users", func(t *testing.T) {
		task := sandboxed(t, "id -u; cat /proc/net/dev | grep -c lo:; cat /etc/hosts | head -1; echo ready; sleep 1000")
		task.User = "web"
		task.Network, task.NetworkNamespace = driver.NetworkNode, newNamespace(t)
		task.Files = map[string]string{"/etc/hosts": "/etc/hosts"}
		task.Resources = driver.Resources{MemoryLimit: 256 << 20, CPULimit: 1000, PIDLimit: 500}
		s.start(t, task)
		if lines := s.logUntil(t, task, "ready"); lines[0] != "1234" {
			t.Errorf("got %q", lines)
		}
		root, err := s.driver.Root(s.ctx(t), task.ID)
		must(t, err)
		defer root.Dir.Close()
		if !slices.Contains(root.Hidden, "/tmp") || slices.Contains(root.Hidden, "/") {
			t.Errorf("hidden are %q", root.Hidden)
		}
		must(t, os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/copied", root.Dir.Fd()), []byte("in"), 0o644))
		var out strings.Builder
		process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sh", "-c", "cat /copied; exit 3"}, Stdout: &out, Stderr: &out})
		must(t, err)
		if code, err := process.Wait(s.ctx(t)); code != 3 || err != nil || out.String() != "in" {
			t.Errorf("exec: %d, %v, %q", code, err, out.String())
		}
		stats, err := s.driver.Stats(s.ctx(t), task.ID)
		must(t, err)
		if stats.MemoryBytes == 0 || stats.MemoryLimit != 256<<20 || stats.CPUNanos == 0 {
			t.Errorf("statistics: %+v", stats)
		}
	})
	t.Run("a process of exec gets signals and ends with its caller", func(t *testing.T) {
		task := sandboxed(t, "echo ready; sleep 1000")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sleep", "777"}})
		must(t, err)
		must(t, process.Signal(s.ctx(t), "SIGTERM"))
		if code, err := process.Wait(s.ctx(t)); code != 128+15 || err != nil {
			t.Errorf("signalled: %d, %v", code, err)
		}
		process, err = s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sleep", "888"}})
		must(t, err)
		ctx, cancel := context.WithCancel(s.ctx(t))
		cancel()
		if _, err := process.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("left by its caller: %v", err)
		}
		var out strings.Builder
		process, err = s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline"}, Stdout: &out})
		must(t, err)
		if code, err := process.Wait(s.ctx(t)); code != 0 || err != nil || strings.Contains(out.String(), "888") || !strings.Contains(out.String(), "1000") {
			t.Errorf("ps: %d, %v\n%s", code, err, out.String())
		}
	})
	t.Run("the limit of memory is for all of the sandbox", func(t *testing.T) {
		task := sandboxed(t, "dd if=/dev/zero of=/tmp/x bs=1M count=400; echo survived")
		task.Resources.MemoryLimit = 128 << 20
		if exit := s.run(t, task); exit.Code == 0 || !exit.OOMKilled {
			t.Errorf("got %+v, log:\n%s", exit, s.log(t, task))
		}
	})
	t.Run("it survives a restart of the driver", func(t *testing.T) {
		task := sandboxed(t, "echo ready; sleep 1000")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		s.close(t)
		s.open(t)
		if status, found := s.status(t, task.ID); !found || status.State != driver.StateRunning {
			t.Errorf("afterwards it is %+v", status)
		}
	})
}
