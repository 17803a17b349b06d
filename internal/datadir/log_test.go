package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/must"
)

// A large log is rotated, but not one that this process does not write.
func TestLogIsRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, older := filepath.Join(dir, LogName), filepath.Join(dir, OlderLogName)
	must.Succeed(t, rotateLog(dir, os.Stderr, 10)) // there is none
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must.Succeed(t, err)
	defer out.Close()
	say := func(text string) {
		t.Helper()
		_, err := out.WriteString(text)
		must.Succeed(t, err)
	}
	want := func(file, text string) {
		t.Helper()
		if got, _ := os.ReadFile(file); string(got) != text {
			t.Errorf("%s is %q, want %q", filepath.Base(file), got, text)
		}
	}
	say("small\n")
	must.Succeed(t, rotateLog(dir, out, 10))
	want(path, "small\n")
	say("no more\n")
	must.Succeed(t, rotateLog(dir, os.Stderr, 10))
	want(path, "small\nno more\n")
	must.Succeed(t, rotateLog(dir, out, 10))
	want(path, "")
	want(older, "small\nno more\n")
	say("new\n")
	want(path, "new\n")
	say(strings.Repeat("x", 10))
	must.Succeed(t, rotateLog(dir, out, 10))
	want(older, "new\nxxxxxxxxxx")
}
