package doctor

import (
	"os"
	"testing"
)

// FuzzParsers: no output of the kernel or runc crashes the parsers.
func FuzzParsers(f *testing.F) {
	f.Add("MemTotal: 1 kB\n", uint16(1))
	f.Add("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", uint16(7700))
	f.Add("  0: 0100007F:1E14 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12345 1\n", uint16(7700))
	f.Add("runc version 1.1.5+ds1\n", uint16(0))
	f.Add("5.3-rc1", uint16(0))
	f.Fuzz(func(t *testing.T, text string, port uint16) {
		_ = parseMemory(text)
		_ = parseRuncVersion([]byte(text))
		if c := parseCgroups(text, os.ReadFile); c.Version == "" && len(c.Controllers) > 0 {
			t.Errorf("controllers %v of no cgroups", c.Controllers)
		}
		if olderThan(text, [2]int{1, 0}) && !olderThan(text, [2]int{2, 0}) {
			t.Errorf("%q is older than 1.0 and not older than 2.0", text)
		}
		for _, network := range []string{"tcp", "udp"} {
			_ = listener(text, network, port)
		}
	})
}
