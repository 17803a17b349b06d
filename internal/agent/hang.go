package agent

import (
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
)

// missedKeepalives is how many signs of life a server may miss in a row before it counts as
// hanging.
const missedKeepalives = 2

// hangDetector detects a hanging server, which promised to send signs of life and no longer
// does. Its kernel may keep all connections open, which would break only after the node
// counts as offline.
type hangDetector struct {
	onHang func()
	// silence is how long not a single byte has come: on a slow line a sign of life waits
	// behind long messages. It may be nil.
	silence func() time.Duration

	mu       sync.Mutex
	interval time.Duration // 0 until there is one
	timer    *time.Timer
}

// setInterval sets how often the server sends signs of life. Empty text changes nothing.
func (l *hangDetector) setInterval(text string) error {
	if text == "" {
		return nil
	}
	every, err := spec.ParseDuration(text)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.interval = every
	l.mu.Unlock()
	l.received()
	return nil
}

// received is called with every message.
func (l *hangDetector) received() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch patience := missedKeepalives * l.interval; {
	case patience <= 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(patience, l.expired)
	default:
		l.timer.Reset(patience)
	}
}

// expired is called when no message came in time.
func (l *hangDetector) expired() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.interval <= 0 {
		return // stopped
	}
	if l.silence != nil {
		if left := missedKeepalives*l.interval - l.silence(); left > 0 {
			l.timer.Reset(left)
			return
		}
	}
	l.onHang()
}

// stop ends the detection.
func (l *hangDetector) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interval = 0
	if l.timer != nil {
		l.timer.Stop()
	}
}
