package spec_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/spec"
)

func TestCPU(t *testing.T) {
	for in, want := range map[string]string{
		"1": "1", "1000m": "1", "0.5": "500m", "250m": "250m", "0.001": "1m", "2.50": "2500m",
		"0": "0", "0m": "0", "1234.567": "1234.567", "1234.5": "1234.5", "999999.999": "999999.999", "007": "7",
	} {
		millis, err := spec.ParseCPU(in)
		if err != nil || spec.FormatCPU(millis) != want {
			t.Errorf("CPU %q is %d (%q, %v), want %q", in, millis, spec.FormatCPU(millis), err, want)
		}
	}
	for _, in := range []string{"", "m", "-1", "+1", "1.2345", "0.5m", "1 ", "1e3", "1234567", "0x1", ".5", "1.", "١"} {
		if n, err := spec.ParseCPU(in); err == nil {
			t.Errorf("CPU %q was read as %d", in, n)
		}
	}
}

func TestBytes(t *testing.T) {
	for in, want := range map[string]string{
		"1024Mi": "1Gi", "128Mi": "128Mi", "1.5Gi": "1536Mi", "1000000": "1000000", "1M": "1000000",
		"1k": "1000", "1024": "1Ki", "0": "0", "0Gi": "0", "0.001k": "1", "8Pi": "8Pi",
		"1.3Gi": "1395864372", // A fraction of a byte is rounded up.
		"1.5":   "2",
	} {
		n, err := spec.ParseBytes(in)
		if err != nil || spec.FormatBytes(n) != want {
			t.Errorf("bytes %q are %d (%q, %v), want %q", in, n, spec.FormatBytes(n), err, want)
		}
	}
	for _, in := range []string{"", "Mi", "-1", "1KiB", "1 Mi", "9Pi", "9999999999999999Pi", "12345678901234567", "1.2345Gi"} {
		if n, err := spec.ParseBytes(in); err == nil {
			t.Errorf("bytes %q were read as %d", in, n)
		}
	}
}

func TestDuration(t *testing.T) {
	for in, want := range map[string]string{
		"60s": "1m", "90s": "1m30s", "1500ms": "1s500ms", "0s": "0s", "1h30m": "1h30m", "36h": "36h", "1s1s": "2s",
	} {
		d, err := spec.ParseDuration(in)
		if err != nil || spec.FormatDuration(d) != want {
			t.Errorf("duration %q is %v (%q, %v), want %q", in, d, spec.FormatDuration(d), err, want)
		}
	}
	for _, in := range []string{"", "0", "-1s", "1.5s", "1us", "1d", "s", "999999999h"} {
		if d, err := spec.ParseDuration(in); err == nil {
			t.Errorf("duration %q was read as %v", in, d)
		}
	}
}

// A formatted amount is read back as the same amount.
func TestQuantitiesSurviveFormatting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		millis := rapid.Int64Range(0, 999_999_999).Draw(t, "millis")
		if got, err := spec.ParseCPU(spec.FormatCPU(millis)); err != nil || got != millis {
			t.Fatalf("%d millis come back as %d: %v", millis, got, err)
		}
		n := rapid.Int64Range(0, 8<<50).Draw(t, "bytes")
		if got, err := spec.ParseBytes(spec.FormatBytes(n)); err != nil || got != n {
			t.Fatalf("%d bytes come back as %d: %v", n, got, err)
		}
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64/int64(time.Millisecond)).Draw(t, "ms")) * time.Millisecond
		if got, err := spec.ParseDuration(spec.FormatDuration(d)); err != nil || got != d {
			t.Fatalf("%v comes back as %v: %v", d, got, err)
		}
	})
}

// Every accepted amount has a canonical form, which is a fixed point, and is never
// negative.
func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"1", "0.5", "250m", "128Mi", "1.5Gi", "9999999999999999P", "1h30m", "500ms", "-1", "1e9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := spec.ParseCPU(s); err == nil {
			again, err := spec.ParseCPU(spec.FormatCPU(n))
			if err != nil || again != n || n < 0 {
				t.Errorf("CPU %q: %d, then %d: %v", s, n, again, err)
			}
		}
		if n, err := spec.ParseBytes(s); err == nil {
			again, err := spec.ParseBytes(spec.FormatBytes(n))
			if err != nil || again != n || n < 0 {
				t.Errorf("bytes %q: %d, then %d: %v", s, n, again, err)
			}
		}
		if d, err := spec.ParseDuration(s); err == nil {
			again, err := spec.ParseDuration(spec.FormatDuration(d))
			if err != nil || again != d || d < 0 {
				t.Errorf("duration %q: %v, then %v: %v", s, d, again, err)
			}
		}
	})
}
