package sessions

import (
	"context"
	"errors"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestCallerThatLeavesIsNoLongerWaiting(t *testing.T) {
	s := unitSessions()
	s.connected.enter(t.Context(), "n1", "", func() {})
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, _, err := s.Open(ctx, "n1", &v1.Open{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	if n := len(s.attachments.waiting); n != 0 {
		t.Errorf("%d callers are still waiting", n)
	}
}
