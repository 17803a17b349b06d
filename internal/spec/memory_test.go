package spec

import (
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

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
