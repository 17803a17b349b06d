package sessions

import (
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestNoisyNodeIsLimitedAndOthersAreNot(t *testing.T) {
	r, now := newReports(), time.Now()
	many := make([]*v1.EventReport, 2*eventBurst)
	r.submitEvents("noisy", many, now)
	r.submitEvents("quiet", many[:1], now)
	taken := r.takeEvents()
	if noisy, quiet := len(taken["noisy"]), len(taken["quiet"]); noisy != eventBurst || quiet != 1 {
		t.Errorf("%d events of the noisy node are written and %d of the quiet one", noisy, quiet)
	}
	r.submitEvents("noisy", many, now.Add(3*eventEvery))
	if n := len(r.takeEvents()["noisy"]); n != 3 {
		t.Errorf("after three intervals %d more events are written", n)
	}
	r.submitEvents("noisy", many, now.Add(time.Hour))
	if n := len(r.takeEvents()["noisy"]); n != eventBurst {
		t.Errorf("after a quiet hour %d events are written", n)
	}
	if left := r.takeEvents(); len(left) != 0 {
		t.Errorf("events are written twice: %v", left)
	}
}
