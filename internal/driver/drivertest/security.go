package drivertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
)

// The capabilities that no process of a task may have, by their numbers in Linux.
var dangerous = map[string]int{
	"CAP_SETPCAP":         8,
	"CAP_NET_ADMIN":       12,
	"CAP_NET_RAW":         13,
	"CAP_SYS_MODULE":      16,
	"CAP_SYS_RAWIO":       17,
	"CAP_SYS_PTRACE":      19,
	"CAP_SYS_ADMIN":       21,
	"CAP_SYS_BOOT":        22,
	"CAP_SYS_TIME":        25,
	"CAP_MKNOD":           27,
	"CAP_SETFCAP":         31,
	"CAP_MAC_ADMIN":       33,
	"CAP_BPF":             39,
	"CAP_DAC_READ_SEARCH": 2,
}

func security(t *testing.T, s *suite) {
	t.Run("the process has few rights", func(t *testing.T) {
		fields := procStatus(s.output(t, s.shell(t, "cat /proc/self/status")))
		if fields["NoNewPrivs"] != "1" {
			t.Errorf("NoNewPrivs is %q", fields["NoNewPrivs"])
		}
		if fields["Seccomp"] != "2" {
			t.Errorf("Seccomp is %q, want 2, a filter", fields["Seccomp"])
		}
		for _, set := range []string{"CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"} {
			bits, err := strconv.ParseUint(fields[set], 16, 64)
			must(t, err)
			for name, number := range dangerous {
				if bits&(1<<number) != 0 {
					t.Errorf("%s is in %s", name, set)
				}
			}
		}
	})
	t.Run("a user by name has his groups and no rights", func(t *testing.T) {
		task := s.shell(t, "id -u; id -g; id -G; grep CapEff /proc/self/status")
		task.User = "web"
		got := strings.Fields(s.output(t, task))
		if want := []string{"1234", "5678", "5678", "77", "CapEff:", "0000000000000000"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a user by number need not be known", func(t *testing.T) {
		task := s.shell(t, "id -u; id -g")
		task.User = "4321:8765"
		if got := s.output(t, task); got != "4321\n8765" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("the root is read-only if asked", func(t *testing.T) {
		task := s.shell(t, "touch /tmp/x 2>/dev/null && echo wrote; true")
		task.ReadOnlyRoot = true
		if got := s.output(t, task); got != "" {
			t.Errorf("got %q", got)
		}
		if got := s.output(t, s.shell(t, "touch /tmp/x && echo wrote")); got != "wrote" {
			t.Errorf("writable root: got %q", got)
		}
	})
	t.Run("the machine's settings cannot be written", func(t *testing.T) {
		task := s.shell(t, `(echo 1 >/proc/sys/net/ipv4/ip_forward) 2>/dev/null && echo wrote; (echo x >/proc/sysrq-trigger) 2>/dev/null && echo wrote; true`)
		if got := s.output(t, task); got != "" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("no network has loopback only, and it works", func(t *testing.T) {
		task := s.shell(t, `ls /proc/self/net/dev_snmp6 2>/dev/null | grep -v '^lo$'; grep -c : /proc/net/dev; ip addr show dev lo | grep -c 'inet 127.0.0.1'`)
		if got := s.output(t, task); got != "1\n1" {
			t.Errorf("got %q, want one interface and its address", got)
		}
	})
	t.Run("the host's network is the machine's own", func(t *testing.T) {
		// Of this thread: the first one of the process may have been left in another
		// namespace, see newNamespace.
		here, err := os.Readlink("/proc/thread-self/ns/net")
		must(t, err)
		task := s.shell(t, "ls -l /proc/self/ns/net; cat /etc/hosts >/dev/null && echo hosts")
		task.Network = driver.NetworkHost
		if got := s.output(t, task); !strings.Contains(got, here) || !strings.HasSuffix(got, "hosts") {
			t.Errorf("got %q, want %s", got, here)
		}
	})
	t.Run("a namespace that is there is joined and files of the machine are seen", func(t *testing.T) {
		namespace := newNamespace(t)
		var stat unix.Stat_t
		must(t, unix.Stat(namespace, &stat))
		hosts := filepath.Join(t.TempDir(), "hosts")
		must(t, os.WriteFile(hosts, []byte("192.0.2.7 somebody\n"), 0o644))
		task := s.shell(t, "ls -l /proc/self/ns/net; cat /etc/hosts; (echo x >/etc/hosts) 2>/dev/null && echo wrote; true")
		task.Network, task.NetworkNamespace = driver.NetworkNode, namespace
		task.Files = map[string]string{"/etc/hosts": hosts}
		got := s.output(t, task)
		if !strings.Contains(got, fmt.Sprintf("net:[%d]", stat.Ino)) || !strings.HasSuffix(got, "192.0.2.7 somebody") {
			t.Errorf("got %q, want namespace %d", got, stat.Ino)
		}
		task = s.shell(t, "true")
		task.Network = driver.NetworkNode
		if _, err := s.driver.Start(s.ctx(t), task); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("without a namespace: %v", err)
		}
	})
	t.Run("a device is there for those who are given it", func(t *testing.T) {
		const device = "/dev/net/tun" // most machines have it, and no task by default
		const try = "exec 3<>" + device + " && echo opened"
		task := s.shell(t, try)
		task.Devices = []string{device}
		if got := s.output(t, task); got != "opened" {
			t.Errorf("with the device: %q", got)
		}
		task = s.shell(t, "ls "+device+" 2>/dev/null || echo none")
		if got := s.output(t, task); got != "none" {
			t.Errorf("without it: %q", got)
		}
		task = s.shell(t, "true")
		task.Devices = []string{"/dev/nothing"}
		if _, err := s.driver.Start(s.ctx(t), task); err == nil || !strings.Contains(err.Error(), "/dev/nothing") {
			t.Errorf("with a device that is not there: %v", err)
		}
	})
	t.Run("other namespaces are its own", func(t *testing.T) {
		task := s.shell(t, "echo pid $$; hostname; ls -l /proc/self/ns")
		task.Hostname = "replica-7"
		task.Network = driver.NetworkHost
		got := s.output(t, task)
		if !strings.HasPrefix(got, "pid 1\nreplica-7\n") {
			t.Errorf("got %q", got)
		}
		for _, kind := range []string{"ipc", "mnt", "pid", "uts"} {
			here, err := os.Readlink("/proc/thread-self/ns/" + kind)
			must(t, err)
			if strings.Contains(got, here) {
				t.Errorf("the %s namespace is the machine's own", kind)
			}
		}
	})
}

// procStatus reads the format of /proc/self/status.
func procStatus(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

// newNamespace makes a network namespace and binds it to a file.
func newNamespace(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "netns")
	must(t, os.WriteFile(path, nil, 0o400))
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		made <- err
	}()
	must(t, <-made)
	t.Cleanup(func() { must(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return path
}
