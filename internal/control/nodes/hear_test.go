package nodes

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A heartbeat that has arrived when a node's time is up counts, even if this
// server has so much to do that it has not come to it.
func TestWhatHasArrivedIsHeardBeforeSilenceIsJudged(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as if others had all cores but one
	err := lead(t, stateReady, nil, func(t *testing.T, l *Loop, state func() string, proposals func() int) {
		l.Connected("n", here, &v1.NodeStatus{})
		before := proposals()
		for range 10 {
			time.Sleep(3 * time.Second) // to the very moment
			for range 3 {               // it changes hands
				runtime.Gosched()
			}
			l.Heartbeat("n", &v1.Heartbeat{})
			want(t, state, stateReady)
		}
		if made := proposals() - before; made != 0 {
			t.Errorf("the node was taken for offline meanwhile: %d changes were made", made)
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
