package containerd

import (
	"os"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/driver"
)

// The fixtures are the files of a cgroup as the kernel shows them.
func TestStatsFromFixtures(t *testing.T) {
	v1 := map[string]string{}
	for _, controller := range []string{"cpu", "cpuacct", "memory", "pids", "blkio"} {
		v1[controller] = "testdata/v1/" + controller
	}
	for name, test := range map[string]struct {
		cgroups cgroups
		want    driver.Stats
	}{
		"version 1": {cgroups{v1: v1}, driver.Stats{
			CPUNanos: 1_093_411_202, ThrottledNanos: 612_004_511, ThrottledPeriods: 9,
			MemoryBytes: 3_194_880 - 1_081_344, MemoryLimit: 67_108_864, OOMKills: 1, PIDs: 3,
			BlockReadBytes: 1_048_576 + 4096, BlockWriteBytes: 8192,
		}},
		"version 2": {cgroups{unified: "testdata/v2"}, driver.Stats{
			CPUNanos: 2_734_915_000, ThrottledNanos: 801_220_000, ThrottledPeriods: 12,
			MemoryBytes: 5_332_992 - 1_216_512, MemoryLimit: 67_108_864, OOMKills: 2, PIDs: 4,
			BlockReadBytes: 2_097_152 + 12_288, BlockWriteBytes: 40_960,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.cgroups.stats("/limited")
			if err != nil {
				t.Fatal(err)
			}
			if got.At.IsZero() {
				t.Error("no time")
			}
			test.want.At = got.At
			if got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			kills, err := test.cgroups.oomKills("/limited")
			if err != nil || kills != test.want.OOMKills {
				t.Errorf("kills: %d, %v", kills, err)
			}
		})
	}
}

func TestStatsWithoutLimits(t *testing.T) {
	got, err := cgroups{unified: "testdata/v2"}.stats("/unlimited")
	if err != nil {
		t.Fatal(err)
	}
	if got.MemoryLimit != 0 || got.BlockReadBytes != 0 || got.CPUNanos == 0 {
		t.Errorf("got %+v", got)
	}
}

func TestStatsOfNothing(t *testing.T) {
	if _, err := (cgroups{unified: "testdata/v2"}).stats("/missing"); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}

func TestCgroupMounts(t *testing.T) {
	found, err := parseCgroupMounts(strings.NewReader(`
22 28 0:20 / /sys rw,relatime - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/memory ro shared:11 master:3 - cgroup cgroup rw,memory
33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
short - cgroup
`))
	if err != nil {
		t.Fatal(err)
	}
	for controller, want := range map[string]string{
		"cpu":          "/sys/fs/cgroup/cpu,cpuacct",
		"cpuacct":      "/sys/fs/cgroup/cpu,cpuacct",
		"memory":       "/sys/fs/cgroup/memory",
		"name=systemd": "/sys/fs/cgroup/systemd",
	} {
		if found[controller] != want {
			t.Errorf("%s: got %q, want %q", controller, found[controller], want)
		}
	}
}

func FuzzCgroupFiles(f *testing.F) {
	for _, seed := range []string{"oom_kill 1\n", "8:0 Read 4096\nTotal 4096\n", "8:0 rbytes=1 wbytes=2 rios=3\n", "max\n", " \x00\n=\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name := range parseKeyed([]byte(text)) {
			if !strings.Contains(text, name) {
				t.Errorf("the name %q came from nowhere", name)
			}
		}
		parseBlkio([]byte(text))
		parseIOStat([]byte(text))
		if _, err := parseCgroupMounts(strings.NewReader(text)); err != nil && len(text) < 1<<16 {
			t.Errorf("mounts: %v", err)
		}
	})
}
