package systemd

import (
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/must"
)

// FuzzUnit: every value in a unit stays on its line, one word per argument, and can be read back.
func FuzzUnit(f *testing.F) {
	f.Add("--name=a b", "/var/lib/cloudless")
	f.Add("100%$\"\\", "/d\nExecStart=/bin/evil")
	f.Add("\x00", "/[X-Cloudless]")
	f.Fuzz(func(t *testing.T, arg, dir string) {
		u := Unit{Binary: "/usr/local/bin/cloudless", Args: []string{"up", arg}, DataDir: dir}
		text, err := u.Text()
		if err != nil {
			return
		}
		if strings.Count(text, "\n") != strings.Count(mustText(t), "\n") {
			t.Fatalf("another line came in:\n%s", text)
		}
		if strings.Count(text, "\nExecStart=") != 1 {
			t.Fatalf("another command came in:\n%s", text)
		}
		if got, ours := notes(text); !ours || got.DataDir != dir || got.Binary != u.Binary {
			t.Fatalf("read back as %+v, %v", got, ours)
		}
	})
}

func mustText(t *testing.T) string {
	t.Helper()
	text, err := Unit{Binary: "/usr/local/bin/cloudless", Args: []string{"up", "x"}, DataDir: "/d"}.Text()
	must.Succeed(t, err)
	return text
}
