package spec

import (
	"testing"

	"pgregory.net/rapid"
)

func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 1000: "1000", 64 << 20: "64Mi", 1536 << 20: "1536Mi", 24551344 << 10: "23.4Gi", 123456789: "117Mi", 99999: "97.6Ki", 8 << 50: "8Pi",
	} {
		if got := HumanBytes(n); got != want {
			t.Errorf("%d bytes are shown as %s, want %s", n, got, want)
		}
	}
}

func TestHumanBytesAreShortAndNeverTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, maxBytes).Draw(t, "bytes")
		text := HumanBytes(n)
		shown, err := ParseBytes(text)
		if err != nil || len(text) > 7 {
			t.Fatalf("%d bytes are shown as %q: %v", n, text, err)
		}
		// A fraction of a byte is rounded up when it is read.
		if shown > n+1 || float64(shown) < 0.9*float64(n) {
			t.Fatalf("%d bytes are shown as %s, which is %d", n, text, shown)
		}
	})
}
