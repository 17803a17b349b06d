package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// plain is a machine with 4 CPUs and 8 GiB, as its kernel describes it.
var plain = map[string]string{
	"proc/self/status":               "Name:\tcloudless\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n",
	"proc/meminfo":                   "MemTotal:        8388608 kB\nMemFree:         1000000 kB\nMemAvailable:    6291456 kB\n",
	"proc/loadavg":                   "0.50 0.40 0.30 2/431 9876\n",
	"proc/sys/kernel/pid_max":        "32768\n",
	"proc/sys/kernel/threads-max":    "63000\n",
	"proc/sys/kernel/random/boot_id": "6f0c3ac9-8b7c-4a5e-9f6e-0f1d2c3b4a59\n",
	"proc/sys/kernel/osrelease":      "6.1.0-18-amd64\n",
	"proc/sys/kernel/hostname":       "n1\n",
	"proc/stat":                      stat(1000, 9000),
}

func stat(busy, idle int) string {
	return fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\ncpu1 1 0 0 1 0 0 0 0 0 0\n"+
		"cpu2 1 0 0 1 0 0 0 0 0 0\ncpu3 1 0 0 1 0 0 0 0 0 0\nintr 1\n", busy, idle)
}

// The three kinds of cgroup setups, as the kernel shows them, cut down to what is read.
var (
	cgroupV1 = map[string]string{
		"proc/self/cgroup": "4:memory:/system.slice/cloudless.service\n3:cpu,cpuacct:/system.slice/cloudless.service\n2:pids:/system.slice/cloudless.service\n1:name=systemd:/system.slice/cloudless.service\n",
		"proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n" +
			"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n" +
			"33 31 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n" +
			"34 31 0:31 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n",
		"sys/fs/cgroup/cpu,cpuacct/system.slice/cloudless.service/cpu.cfs_quota_us":  "-1\n",
		"sys/fs/cgroup/cpu,cpuacct/system.slice/cloudless.service/cpu.cfs_period_us": "100000\n",
		"sys/fs/cgroup/cpu,cpuacct/system.slice/cpu.cfs_quota_us":                    "150000\n",
		"sys/fs/cgroup/cpu,cpuacct/system.slice/cpu.cfs_period_us":                   "100000\n",
		"sys/fs/cgroup/memory/system.slice/cloudless.service/memory.limit_in_bytes":  "4294967296\n",
		"sys/fs/cgroup/memory/system.slice/cloudless.service/memory.usage_in_bytes":  "3221225472\n",
		"sys/fs/cgroup/memory/system.slice/cloudless.service/memory.stat":            "cache 1\ninactive_file 5\ntotal_inactive_file 1073741824\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes":                                 "9223372036854771712\n",
		"sys/fs/cgroup/memory/memory.usage_in_bytes":                                 "5\n",
		"sys/fs/cgroup/pids/system.slice/cloudless.service/pids.max":                 "1000\n",
		"sys/fs/cgroup/pids/system.slice/cloudless.service/pids.current":             "12\n",
	}
	cgroupV2 = map[string]string{
		"proc/self/cgroup":    "0::/system.slice/cloudless.service\n",
		"proc/self/mountinfo": "26 20 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
		"sys/fs/cgroup/system.slice/cloudless.service/cpu.max":      "max 100000\n",
		"sys/fs/cgroup/system.slice/cpu.max":                        "150000 100000\n",
		"sys/fs/cgroup/system.slice/cloudless.service/memory.max":   "max\n",
		"sys/fs/cgroup/system.slice/memory.max":                     "4294967296\n",
		"sys/fs/cgroup/system.slice/memory.current":                 "3221225472\n",
		"sys/fs/cgroup/system.slice/memory.stat":                    "anon 1\ninactive_file 1073741824\n",
		"sys/fs/cgroup/system.slice/cloudless.service/pids.max":     "1000\n",
		"sys/fs/cgroup/system.slice/cloudless.service/pids.current": "12\n",
	}
	// The controllers are in version 1; the unified hierarchy is empty. The memory mount's
	// root is a container's own group.
	hybrid = map[string]string{
		"proc/self/cgroup": "4:memory:/docker/abc\n3:cpu:/\n2:pids:/\n0::/\n",
		"proc/self/mountinfo": "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
			"35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
			"39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/cpu/cpu.cfs_quota_us":         "150000\n",
		"sys/fs/cgroup/cpu/cpu.cfs_period_us":        "100000\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296\n",
		"sys/fs/cgroup/memory/memory.usage_in_bytes": "3221225472\n",
		"sys/fs/cgroup/memory/memory.stat":           "total_inactive_file 1073741824\n",
		"sys/fs/cgroup/pids/pids.max":                "1000\n",
		"sys/fs/cgroup/pids/pids.current":            "12\n",
	}
)

// write creates files below dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func newMachine(t *testing.T, recorded ...map[string]string) (*Machine, string) {
	t.Helper()
	dir := t.TempDir()
	for _, files := range append([]map[string]string{plain}, recorded...) {
		write(t, dir, files)
	}
	m, err := New(Options{DataDir: dir, Version: "1.2.3", Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	return m, dir
}

func status(t *testing.T, m *Machine) *v1.NodeStatus {
	t.Helper()
	s, err := m.Status()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWithoutLimitsTheWholeMachineCounts(t *testing.T) {
	m, _ := newMachine(t)
	s := status(t, m)
	if c := s.GetCapacity(); c.GetCpu() != "4" || c.GetMemory() != "8Gi" || c.GetPids() != 32768 || c.GetDisk() == "" {
		t.Errorf("capacity: %v", c)
	}
	if u := s.GetUsage(); u.GetMemory() != "2Gi" || u.GetPids() != 431 {
		t.Errorf("usage: %v", u)
	}
	info := s.GetInfo()
	if info.GetBootId() != m.BootID() || info.GetHostname() != "n1" || info.GetKernel() != "6.1.0-18-amd64" || info.GetVersion() != "1.2.3" || info.GetArch() == "" {
		t.Errorf("info: %v", info)
	}
}

func TestLimitsOfEveryAncestorCount(t *testing.T) {
	for name, files := range map[string]map[string]string{"v1": cgroupV1, "v2": cgroupV2, "hybrid": hybrid} {
		t.Run(name, func(t *testing.T) {
			m, _ := newMachine(t, files)
			s := status(t, m)
			if c := s.GetCapacity(); c.GetCpu() != "1500m" && c.GetCpu() != "1.5" || c.GetMemory() != "4Gi" || c.GetPids() != 1000 {
				t.Errorf("capacity: %v", c)
			}
			// Reclaimable memory is not used.
			if u := s.GetUsage(); u.GetMemory() != "2Gi" || u.GetPids() != 12 {
				t.Errorf("usage: %v", u)
			}
		})
	}
}

func TestAffinityCounts(t *testing.T) {
	m, _ := newMachine(t, map[string]string{"proc/self/status": "Cpus_allowed_list:\t0,2\n"})
	if got := status(t, m).GetCapacity().GetCpu(); got != "2" {
		t.Errorf("two of four CPUs are %s", got)
	}
}

func TestAddedMemoryIsSeen(t *testing.T) {
	m, dir := newMachine(t)
	status(t, m)
	write(t, dir, map[string]string{"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 16777216 kB\n"})
	if got := status(t, m).GetCapacity().GetMemory(); got != "16Gi" {
		t.Errorf("capacity: %s", got)
	}
}

func TestCPUUsageIsSinceTheLastReading(t *testing.T) {
	m, dir := newMachine(t)
	write(t, dir, map[string]string{"proc/stat": stat(1100, 9300)}) // 100 of 400 ticks of 4 CPUs
	if got := status(t, m).GetUsage().GetCpu(); got != "1" {
		t.Errorf("usage: %s", got)
	}
	write(t, dir, map[string]string{"proc/stat": stat(1500, 9300)}) // all of them
	if got := status(t, m).GetUsage().GetCpu(); got != "4" {
		t.Errorf("usage: %s", got)
	}
	write(t, dir, map[string]string{"proc/stat": stat(1400, 9300)}) // a counter that ran backwards
	if got := status(t, m).GetUsage().GetCpu(); got != "0" {
		t.Errorf("usage: %s", got)
	}
}

func condition(s *v1.NodeStatus, kind string) *v1.Condition {
	i := slices.IndexFunc(s.GetConditions(), func(c *v1.Condition) bool { return c.GetType() == kind })
	return s.GetConditions()[i]
}

func TestPressureBeginsAbove85AndEndsBelow80Percent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, dir := newMachine(t)
		var changed time.Time
		for _, step := range []struct {
			used     int // percent
			pressure bool
		}{{85, false}, {86, true}, {82, true}, {79, false}, {84, false}} {
			available := 10_000 - 100*step.used
			write(t, dir, map[string]string{"proc/meminfo": fmt.Sprintf("MemTotal: 10000 kB\nMemAvailable: %d kB\n", available)})
			before := condition(status(t, m), "MemoryPressure")
			if before.GetStatus() != step.pressure {
				t.Errorf("%d %% used: %v", step.used, before)
			}
			if step.pressure && !strings.Contains(before.GetReason(), "85 %") {
				t.Errorf("reason: %q", before.GetReason())
			}
			changed = before.GetChangeTime().AsTime()
			time.Sleep(time.Minute)
			if after := condition(status(t, m), "MemoryPressure"); !after.GetChangeTime().AsTime().Equal(changed) {
				t.Error("the time of change moved though nothing changed")
			}
		}
		if changed.Equal(time.Unix(0, 0)) {
			t.Error("no time of change")
		}
	})
}

func TestNetworkIsAvailableWithAGlobalAddress(t *testing.T) {
	m, _ := newMachine(t)
	for _, c := range []struct {
		i    *v1.Interface
		want bool
	}{
		{&v1.Interface{Name: "eth0", Up: true, Addresses: []string{"192.0.2.7/24"}}, true},
		{&v1.Interface{Name: "eth0", Up: true, Addresses: []string{"2001:db8::7/64"}}, true},
		{&v1.Interface{Name: "eth0", Up: false, Addresses: []string{"192.0.2.7/24"}}, false},
		{&v1.Interface{Name: "eth0", Up: true, Addresses: []string{"fe80::1/64"}}, false},
		{&v1.Interface{Name: "eth0", Up: true}, false},
	} {
		if got := m.network([]*v1.Interface{c.i}, time.Now()); got.GetStatus() != c.want {
			t.Errorf("%v: %v", c.i, got)
		}
	}
}

// This asks the real kernel: it creates an interface and adds an address.
func TestWatchReportsANewInterface(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a network interface, which needs root; make test runs it")
	}
	m, err := New(Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() { done <- m.Watch(ctx, func() { changes <- struct{}{} }) }()

	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("clt%d", os.Getpid()%1_000_000)}}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	address, err := netlink.ParseAddr("192.0.2.77/32")
	if err != nil {
		t.Fatal(err)
	}
	<-changes // it watches
	if err := netlink.AddrAdd(link, address); err != nil {
		t.Fatal(err)
	}
	found := func(i *v1.Interface) bool {
		return i.GetName() == link.Name && i.GetMac() != "" && i.GetMtu() > 0 && slices.Contains(i.GetAddresses(), "192.0.2.77/32")
	}
	for told := false; !told; {
		<-changes
		told = slices.ContainsFunc(status(t, m).GetInterfaces(), found)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestThisMachine(t *testing.T) {
	m, err := New(Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s := status(t, m)
	for name, r := range map[string]*v1.NodeResources{"capacity": s.GetCapacity(), "usage": s.GetUsage()} {
		if r.GetCpu() == "" || r.GetMemory() == "" || r.GetMemory() == "0" || r.GetDisk() == "" || r.GetPids() <= 0 {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func FuzzCgroupFiles(f *testing.F) {
	for _, files := range []map[string]string{cgroupV1, cgroupV2, hybrid} {
		f.Add(files["proc/self/cgroup"], files["proc/self/mountinfo"])
	}
	f.Fuzz(func(t *testing.T, groups, mounts string) {
		h := findHierarchy("memory", parseGroups(groups), parseMounts(mounts))
		for _, dir := range h.dirs {
			if strings.Contains(dir, "..") && !strings.Contains(groups+mounts, "..") {
				t.Errorf("looks in %q", dir)
			}
		}
	})
}

func FuzzCountCPUs(f *testing.F) {
	f.Add("0-3,8")
	f.Add("0")
	f.Add("3-1")
	f.Fuzz(func(t *testing.T, list string) {
		if n, err := countCPUs(list); err == nil && n < 1 {
			t.Errorf("%q counts %d CPUs", list, n)
		}
	})
}

// Traffic through a bridge or a partition to a device is counted once.
func TestTrafficIsThatOfTheHardware(t *testing.T) {
	const network = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n" +
		"    lo:    7000      10    0    0    0     0          0         0     7000      10    0    0    0     0       0          0\n" +
		"  eth0: 1000      10    0    0    0     0          0         0     200      10    0    0    0     0       0          0\n" +
		"br-lan:     500      10    0    0    0     0          0         0     60      10    0    0    0     0       0          0\n" +
		"cl-abcdefgh:     500      10    0    0    0     0          0         0     60      10    0    0    0     0       0          0\n"
	const disks = "   7       0 loop0 9 9 9 9 9 9 9 9 0 0 0\n" +
		" 254       0 vda 10 0 8 4 20 0 16 4 0 0 0 0 0 0 0 0 0\n 254       1 vda1 10 0 8 4 20 0 16 4 0 0 0 0 0 0 0 0 0\n"
	m, dir := newMachine(t, map[string]string{"proc/net/dev": network})
	if got, err := m.Traffic(); err != nil || got != (Traffic{Received: 1500, Sent: 260}) {
		t.Errorf("without hardware: %+v, %v", got, err)
	}
	write(t, dir, map[string]string{
		"proc/diskstats":                   disks,
		"sys/class/net/eth0/device/uevent": "", "sys/block/vda/device/uevent": "", "sys/block/loop0/size": "0",
	})
	if got, err := m.Traffic(); err != nil || got != (Traffic{Received: 1000, Sent: 200, Read: 8 * 512, Written: 16 * 512}) {
		t.Errorf("counted %+v, %v", got, err)
	}
}
