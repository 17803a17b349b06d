package spec_test

import (
	"errors"
	"testing"

	"github.com/cloudless/cloudless/internal/spec"
)

func TestSelector(t *testing.T) {
	web := map[string]string{"app": "web", "disk": "ssd", "example.com/tier": ""}
	for text, want := range map[string]bool{
		"":                        true,
		"  ":                      true,
		"app=web":                 true,
		"app==web":                true,
		"app=db":                  false,
		"app!=db":                 true,
		"app!=web":                false,
		"missing!=x":              true,
		"missing=":                false,
		"example.com/tier=":       true,
		"disk":                    true,
		"!disk":                   false,
		"!missing":                true,
		"app=web, disk, !missing": true,
		"app=web,disk=hdd":        false,
	} {
		s, err := spec.ParseSelector(text)
		if err != nil {
			t.Errorf("selector %q: %v", text, err)
		} else if got := s.Matches(web); got != want {
			t.Errorf("selector %q matches: %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{",", "a=b,", "=b", "!", "a=b=c", "a b", "!a=b", "-a", "a=ü"} {
		_, err := spec.ParseSelector(text)
		if _, ok := errors.AsType[*spec.Error](err); !ok {
			t.Errorf("selector %q gives %v, want a refusal", text, err)
		}
	}
}

func FuzzSelector(f *testing.F) {
	for _, s := range []string{"", "a=b", "a!=b,c,!d", "a==b", "example.com/a=b", "!!a", "a=,b"} {
		f.Add(s)
	}
	labels := map[string]string{"a": "b", "c": ""}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := spec.ParseSelector(text)
		if err != nil {
			return
		}
		again, err := spec.ParseSelector(s.String())
		if err != nil || again.String() != s.String() || again.Matches(labels) != s.Matches(labels) || again.Empty() != s.Empty() {
			t.Errorf("%q became %q and then %q: %v", text, s, again, err)
		}
	})
}
