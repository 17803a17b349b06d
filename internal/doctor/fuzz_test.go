package doctor

import (
	"os"
	"testing"
)

// FuzzParsers: no output of the kernel or runc crashes the parsers.
func FuzzParsers(f *testing.F) {
	f.Add("MemTotal: 1 kB\n")
	f.Add("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
	f.Add("runc version 1.1.5+ds1\n")
	f.Add("5.3-rc1")
	f.Fuzz(func(t *testing.T, text string) {
		_ = parseMemory(text)
		_ = parseRuncVersion([]byte(text))
		if c := parseCgroups(text, os.ReadFile); c.Version == "" && len(c.Controllers) > 0 {
			t.Errorf("controllers %v of no cgroups", c.Controllers)
		}
		if olderThan(text, [2]int{1, 0}) && !olderThan(text, [2]int{2, 0}) {
			t.Errorf("%q is older than 1.0 and not older than 2.0", text)
		}
	})
}
