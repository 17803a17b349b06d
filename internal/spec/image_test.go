package spec

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// imageSyntax is the syntax as a regular expression, which is too slow to be used for every
// call.
var imageSyntax = regexp.MustCompile(`^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,128})?$`)

// someImage is a name near the edges of the syntax.
var someImage = rapid.Custom(func(t *rapid.T) string {
	var b strings.Builder
	for range rapid.IntRange(0, 7).Draw(t, "parts") {
		part := rapid.SampledFrom([]string{"a", "b7", "Z", "0", "-", ".", "_", "/", ":", "@", ":5000/", "/a:", "@sha256:", "ä", "\n"}).Draw(t, "part")
		times := rapid.SampledFrom([]int{1, 1, 1, 1, 1, 2, 31, 32, 127, 128, 129}).Draw(t, "times")
		b.WriteString(strings.Repeat(part, times))
	}
	return b.String()
})

func TestImageNamesMatchTheSyntax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := someImage.Draw(t, "name")
		if got, want := validImage(name), imageSyntax.MatchString(name); got != want {
			t.Fatalf("%q is valid: %t, want %t", name, got, want)
		}
	})
}
