package spec

import "testing"

func TestLoopbackAddress(t *testing.T) {
	for from, want := range map[string]string{
		"127.0.0.1:7700": "127.0.0.1:7700",
		"0.0.0.0:7700":   "127.0.0.1:7700",
		"[::]:7700":      "127.0.0.1:7700",
		"192.0.2.1:7700": "192.0.2.1:7700",
		"nonsense":       "nonsense",
	} {
		if got := LoopbackAddress(from); got != want {
			t.Errorf("LoopbackAddress(%q) = %q, want %q", from, got, want)
		}
	}
}
