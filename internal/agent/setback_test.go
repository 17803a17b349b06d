package agent

import (
	"testing"
	"time"
)

func TestClockThatIsSetBackIsNoticed(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var s setBack
	for _, step := range []struct {
		after time.Duration
		back  bool
	}{
		{0, false}, {time.Second, false}, {600 * time.Millisecond, false}, // a small correction
		{time.Hour, false}, // set forward
		{2 * time.Second, true}, {3 * time.Second, false}, // once
		{-time.Hour, true},
	} {
		if got := s.observe(start.Add(step.after)); got != step.back {
			t.Errorf("at %v: got %v, want %v", step.after, got, step.back)
		}
	}
}
