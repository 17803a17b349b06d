package doctor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestLookInspectsThisMachineAndLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and runc; make test runs it")
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "not", "yet")
	v := Look(t.Context(), Options{DataDir: data, Containerd: filepath.Join(dir, "none.sock")})
	if !v.Root || v.OS != "linux" || olderThan(v.Kernel, oldestKernel) || v.Runc.Version == "" || v.Runc.Err != nil {
		t.Errorf("saw %+v", v)
	}
	if v.Memory.Total == 0 || v.Memory.Available == 0 || v.Disk.Total == 0 || v.Disk.Err != nil || v.Cgroups.Version == "" {
		t.Errorf("saw %+v %+v %+v", v.Memory, v.Disk, v.Cgroups)
	}
	if v.NFTables != nil || v.BridgeRules != nil || v.Links != nil {
		t.Errorf("this machine cannot have a network: %v, %v, %v", v.NFTables, v.BridgeRules, v.Links)
	}
	if v.Containerd.Err == nil {
		t.Error("a containerd that is not there was reached")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	if _, err := netlink.LinkByName("try0"); err == nil {
		t.Error("the bridge of the attempt is on this machine")
	}
}

func TestOverlayIsTriedWhereTheDataIs(t *testing.T) {
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := tryOverlay(dir); err != nil {
		t.Errorf("on tmpfs: %v", err)
	}
	if err := unix.Mount("none", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := tryOverlay(dir); !errors.Is(err, unix.EROFS) {
		t.Errorf("on a file system that is read-only: %v", err)
	}
}

func TestFailedProbeReturnsItsError(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root; make test runs it")
	}
	broken := errors.New("broken")
	if err := inThrowaway(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestPortIsTracedToItsProcess(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	used := uint16(tcp.Addr().(*net.TCPAddr).Port)
	ports := lookPorts([]Port{
		{Network: "tcp", Number: used},
		{Network: "udp", Number: uint16(udp.LocalAddr().(*net.UDPAddr).Port)},
	})
	for _, p := range ports {
		if !strings.Contains(p.UsedBy, "(doctor.test)") {
			t.Errorf("%+v", p)
		}
	}
	tcp.Close()
	if p := lookPorts([]Port{{Network: "tcp", Number: used}})[0]; p.UsedBy != "" {
		t.Errorf("after it was closed: %+v", p)
	}
}

func TestCgroupVersions(t *testing.T) {
	one := "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n"
	two := "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n"
	files := func(path string) ([]byte, error) {
		if path != "/sys/fs/cgroup/unified/cgroup.controllers" {
			return nil, os.ErrNotExist
		}
		return []byte("memory hugetlb\n"), nil
	}
	for version, mounts := range map[string]string{"1": one, "2": two, "hybrid": one + two, "": "proc /proc proc rw 0 0\nshort\n"} {
		got := parseCgroups(mounts, files)
		if got.Version != version ||
			slices.Contains(got.Controllers, "pids") != (version == "1" || version == "hybrid") ||
			slices.Contains(got.Controllers, "memory") != (version == "2" || version == "hybrid") {
			t.Errorf("version %q: %+v", version, got)
		}
	}
}

func TestParsers(t *testing.T) {
	if got := parseRuncVersion([]byte("runc version 1.1.5+ds1\ncommit: 1\n")); got != "1.1.5+ds1" {
		t.Errorf("runc is %q", got)
	}
	if got := parseRuncVersion([]byte("crun 1.8")) + parseRuncVersion([]byte("version ")); got != "" {
		t.Errorf("runc is %q", got)
	}
	if got := parseMemory("MemTotal:  1024 kB\nMemAvailable: 512 kB\nodd\nMemFree: x kB\n"); got != (Memory{Available: 512 << 10, Total: 1 << 20}) {
		t.Errorf("memory is %+v", got)
	}
	for version, older := range map[string]bool{"5.2.1": true, "5.3": false, "4.19": true, "6.1-rc1": false, "": false, "x.y": false, "5": false} {
		if olderThan(version, [2]int{5, 3}) != older {
			t.Errorf("%q older than 5.3: %v", version, !older)
		}
	}
	only := func(name string) func(string) (string, error) {
		return func(asked string) (string, error) {
			if asked == name {
				return "/usr/bin/" + name, nil
			}
			return "", os.ErrNotExist
		}
	}
	if got := installer(only("apk")) + installer(only("none")); got != "apk add" {
		t.Errorf("installer is %q", got)
	}
}
