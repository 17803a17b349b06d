package auth

import (
	"testing"
	"time"
)

func TestFewAuthenticatedCalls(t *testing.T) {
	var w MemberCalls
	now := time.Now()
	for _, look := range []struct {
		calls int
		after time.Duration
		want  bool
	}{
		{0, 0, true},
		{1000, 500 * time.Millisecond, true}, // too soon to tell
		{1000, 5 * time.Second, false},
		{499, 5 * time.Second, true},
		{501, 5 * time.Second, false},
	} {
		now = now.Add(look.after)
		for range look.calls {
			w.add()
		}
		if got := w.AreFew(now); got != look.want {
			t.Errorf("%d calls after %s: few is %v", look.calls, look.after, got)
		}
	}
}
