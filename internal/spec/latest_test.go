package spec

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestMissingTagMeansLatest(t *testing.T) {
	image := func(name string) *v1.WorkloadSpec { return &v1.WorkloadSpec{Image: name} }
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"hello", "hello:latest", true},
		{"example.com:5000/hello", "example.com:5000/hello:latest", true},
		{"hello", "hello:1", false},
		{"hello", "hello@sha256:00", false},
		{"", ":latest", false},
	} {
		a, b := image(test.a), image(test.b)
		if Equal(a, b) != test.same || ReplacesNone(a, b) != test.same || (len(Diff(a, b)) == 0) != test.same {
			t.Errorf("%q and %q: equal %v, replaces none %v, differ in %v; want the same: %v", test.a, test.b, Equal(a, b), ReplacesNone(a, b), Diff(a, b), test.same)
		}
	}
}
