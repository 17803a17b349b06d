package spec

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
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

func TestOutOfMemoryNamesTheLimitAndTheWayOut(t *testing.T) {
	for limit, words := range map[string][]string{
		"64Mi": {"(OOM)", "its limit is 64Mi", "raise spec.resources.limits.memory"},
		"":     {"(OOM)", "the node had none left", "spec.resources.requests.memory"},
	} {
		for _, word := range words {
			if got := OutOfMemory(limit); !strings.Contains(got, word) {
				t.Errorf("with limit %q: %q does not say %q", limit, got, word)
			}
		}
	}
	for _, test := range []struct {
		exit *v1.Exit
		want string
	}{
		{nil, ""},
		{&v1.Exit{Code: 3}, ""},
		{&v1.Exit{Code: 137, OomKilled: true}, "It ran out of memory (OOM)"},
		{&v1.Exit{Code: 137, OomKilled: true, Reason: OutOfMemory("64Mi")}, OutOfMemory("64Mi")},
	} {
		if got := ExitReason(test.exit); got != test.want {
			t.Errorf("%v is explained as %q, want %q", test.exit, got, test.want)
		}
	}
}
