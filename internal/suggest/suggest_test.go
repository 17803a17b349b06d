package suggest_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/suggest"
)

func TestWhatWasMeant(t *testing.T) {
	for _, c := range []struct {
		name   string
		others []string
		want   string
	}{
		{"wbe", []string{"api", "web", "db"}, "web"},
		{"we", []string{"web"}, "web"},
		{"wxb", []string{"web"}, "web"},
		{"weeb", []string{"web"}, "web"},
		{"Web", []string{"web"}, "web"},
		{"frontned", []string{"backend", "frontend"}, "frontend"},
		{"front", []string{"backend", "frontend-europe"}, "frontend-europe"},
		{"fron", []string{"frontend-europe", "from"}, "from"},
		{"web", []string{"db", "api", "x"}, ""},
		{"a", []string{"b"}, "b"},
		{"ab", []string{"cd"}, ""},
		{"web", []string{"web"}, ""},
		{"web", nil, ""},
		{"", []string{"database"}, ""},
		{strings.Repeat("a", 300), []string{strings.Repeat("a", 299)}, ""},
	} {
		if got := suggest.To(c.name, slices.Values(c.others)); got != c.want {
			t.Errorf("%.20q among %.20q: %q, want %q", c.name, c.others, got, c.want)
		}
	}
}

// One slip of the finger in a name of some length is always understood, if no
// other name is as near.
func TestOneSlipIsUnderstood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := []rune(rapid.StringMatching(`[a-z]{4,20}`).Draw(t, "name"))
		at := rapid.IntRange(0, len(name)-2).Draw(t, "at")
		slip := slices.Clone(name)
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			slip[at], slip[at+1] = slip[at+1], slip[at]
		case 1:
			slip = slices.Delete(slip, at, at+1)
		case 2:
			slip = slices.Insert(slip, at, 'x')
		case 3:
			slip[at] = 'x'
		}
		if string(slip) == string(name) {
			return
		}
		others := []string{"0000000000000000000000000", string(name), "1"}
		if got := suggest.To(string(slip), slices.Values(others)); got != string(name) {
			t.Fatalf("%q was taken for %q, not for %q", string(slip), got, string(name))
		}
	})
}
