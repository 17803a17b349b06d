package streams

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestCommandsAreQuoted(t *testing.T) {
	for _, c := range []struct {
		want    string
		command []string
	}{
		{`ls -la /tmp`, []string{"ls", "-la", "/tmp"}},
		{`sh -c "rm -rf /"`, []string{"sh", "-c", "rm -rf /"}},
		{`sh "" "a\nb" "\x1b[2J" "\u202egpj" "\xff"`, []string{"sh", "", "a\nb", "\x1b[2J", "\u202egpj", "\xff"}},
		{`echo "\" (as user root)"`, []string{"echo", `" (as user root)`}},
	} {
		if got := quoted(c.command); got != c.want {
			t.Errorf("%q is recorded as %s, want %s", c.command, got, c.want)
		}
	}
	if got := execMessage(&v1.ExecStart{Command: []string{"id"}, User: "1000:1000"}); got != "id (as user 1000:1000)" {
		t.Errorf("a command of another user is recorded as %s", got)
	}
}

// Whatever a command is, its record is one bounded line of printable text.
func TestRecordsArePrintableAndShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var command []string
		for _, arg := range rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 3000), 1, 5).Draw(t, "command") {
			command = append(command, string(arg))
		}
		got := quoted(command)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%q is recorded as %q", command, got)
		}
		if len(got) > maxRecorded+len("…") {
			t.Fatalf("the record has %d bytes", len(got))
		}
	})
}

// A browser opens many connections through a forwarded port. One event stands for them, and another one for those of
// somebody else, or of a later hour.
func TestOneEventStandsForManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f forwards
		if !f.first("ann web-1 80", time.Now()) || f.first("ann web-1 80", time.Now()) || !f.first("bob web-1 80", time.Now()) {
			t.Error("want one event for each caller")
		}
		time.Sleep(forwardSilence)
		if !f.first("ann web-1 80", time.Now()) {
			t.Error("connections of a later time are not recorded")
		}
	})
}
