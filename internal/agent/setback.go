package agent

import (
	"context"
	"time"
)

const (
	// setBackCheck is how often the clock is compared with what it was.
	setBackCheck = time.Second
	// setBackLeast is the smallest step back that counts.
	setBackLeast = time.Second
)

// setBack notices that the machine's clock was set back. The peers of a WireGuard key refuse handshakes that are older
// than the latest one, so nobody would answer this node until its clock has caught up.
type setBack struct{ latest time.Time }

// observe reports whether the clock was set back since the last call.
func (s *setBack) observe(now time.Time) bool {
	now = now.Round(0) // without the monotonic clock, which is never set
	back := now.Before(s.latest.Add(-setBackLeast))
	if back || now.After(s.latest) {
		s.latest = now
	}
	return back
}

// replaceKeyWhenSetBack gives the node another key in the mesh whenever the clock was set back: a new key has no
// earlier handshakes.
func (a *Agent) replaceKeyWhenSetBack(ctx context.Context) {
	if a.mesh == nil {
		return
	}
	var s setBack
	ticker := time.NewTicker(setBackCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if s.observe(a.clock.now()) {
			a.log.Info("the clock was set back: this node takes another key in the mesh")
			a.ReplaceMeshKey()
		}
	}
}
