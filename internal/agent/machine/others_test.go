package machine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOthersAreWhatThisProcessDidNotUse(t *testing.T) {
	stat := func(busy, idle string) string {
		return "cpu  " + busy + " 0 0 " + idle + " 0 0 0 0 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\n"
	}
	self := func(user, system string) string {
		return "7 (a (name) here) S 1 7 7 0 -1 4194560 1 2 3 4 " + user + " " + system + " 0 0 20 0\n"
	}
	m, dir := newMachine(t, map[string]string{"proc/stat": stat("1000", "1000"), "proc/self/stat": self("100", "100")})
	others := m.Others()
	expect := func(want float64) {
		t.Helper()
		if got, err := others(); err != nil || got != want {
			t.Errorf("others used %v of the CPUs (%v), want %v", got, err, want)
		}
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect(1) // nothing is known yet
	write("proc/stat", stat("1080", "1020"))
	write("proc/self/stat", self("130", "120"))
	expect(0.3)
	write("proc/stat", stat("1180", "1020"))
	write("proc/self/stat", self("200", "150"))
	expect(0)
	write("proc/self/stat", "7 (cloudless) S 1")
	if _, err := others(); err == nil {
		t.Error("a file that is cut short is no error")
	}
}
