package names

import (
	"bytes"
	"cmp"
	"strings"
	"testing"
)

// FuzzKeyEncoding proves what the order of listings relies on.
func FuzzKeyEncoding(f *testing.F) {
	for _, a := range []string{"", "a", "a\x00", "a\x00\x01", "a\x00\xff", "\xff", "\x00\x00"} {
		for _, b := range []string{"", "a\x01", "a\x00b", "\xff\xff", "\x00"} {
			f.Add(a, b, "behind")
		}
	}
	f.Fuzz(func(t *testing.T, a, b, behind string) {
		x, y := append(appendString(nil, a), behind...), append(appendString(nil, b), behind...)
		if s, rest, ok := cutString(x); !ok || s != a || string(rest) != behind {
			t.Errorf("%q, followed by %q, is decoded as %q, followed by %q (%v)", a, behind, s, rest, ok)
		}
		if got, want := bytes.Compare(x, y), cmp.Compare(a, b); got != want {
			t.Errorf("the order of %q and %q is %d and not %d", a, b, got, want)
		}
		prefix := appendPrefix(nil, b)
		if got, want := bytes.HasPrefix(x, prefix), strings.HasPrefix(a, b); got != want && behind == "" {
			t.Errorf("that %q begins with %q is %v", a, b, got)
		}
		if end := after(prefix); end != nil {
			inside := bytes.Compare(x, prefix) >= 0 && bytes.Compare(x, end) < 0
			if inside != strings.HasPrefix(a, b) {
				t.Errorf("that %q is in the range of %q is %v", a, b, inside)
			}
		}
		cutString([]byte(a)) // must not panic
	})
}
