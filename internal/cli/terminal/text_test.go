package terminal

import "testing"

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 KB", 999_960: "1.0 MB", 12_345_678_901: "12.3 GB", 1<<63 - 1: "9.2 EB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
}
