package spec

import "testing"

func TestVersionRanges(t *testing.T) {
	for _, c := range []struct {
		versions, version string
		in                bool
	}{
		{"1.2", "1.2", true},
		{"1.2", "v1.2.0", true},
		{"1.2", "1.2.1", false},
		{">=1.2, <2", "1.10", true},
		{">=1.2, <2", "2", false},
		{">=1.2, <2", "1.1.9", false},
		{">6.1", "6.1.0-18-amd64", false},
		{"<=6.1", "6.1.0-18-amd64", true},
		{"!=3", "3.0", false},
		{"!=3", "4", true},
		{">=1", "latest", false},
	} {
		r, err := ParseVersionRange(c.versions)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Contains(c.version); got != c.in {
			t.Errorf("%s in %s: %v", c.version, c.versions, got)
		}
	}
	for _, wrong := range []string{"", ">=", "new", ">=1,,<2", ">= 1..2"} {
		if _, err := ParseVersionRange(wrong); err == nil {
			t.Errorf("%q was read as versions", wrong)
		}
	}
}

func FuzzVersionRange(f *testing.F) {
	f.Add(">=1.2, <2", "1.10-rc1")
	f.Fuzz(func(t *testing.T, versions, version string) {
		r, err := ParseVersionRange(versions)
		if err == nil && r.Contains(version) {
			if _, ok := parseVersion(version); !ok {
				t.Errorf("%q is in %q and is no version", version, versions)
			}
		}
	})
}
