package agent

import (
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
)

// missedSigns is how many signs of life a server may miss in a row before it is
// taken for one that hangs.
const missedSigns = 2

// lookout notices when a server says nothing any more that has promised to give
// signs of life. It may hang while its machine keeps all connections open: those
// tell of it only when it is too late, and the node is taken for offline.
type lookout struct {
	hangs func()
	// quiet is how long not even a part of a message has come: on a slow line a sign
	// of life waits behind long ones. It may be nil.
	quiet func() time.Duration

	mu      sync.Mutex
	promise time.Duration // 0 until there is one
	timer   *time.Timer
}

// promised takes a server's word on how often it gives signs of life, which is
// empty where nothing is new.
func (l *lookout) promised(text string) error {
	if text == "" {
		return nil
	}
	every, err := spec.ParseDuration(text)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.promise = every
	l.mu.Unlock()
	l.heard()
	return nil
}

// heard is called with every message.
func (l *lookout) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch patience := missedSigns * l.promise; {
	case patience <= 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(patience, l.look)
	default:
		l.timer.Reset(patience)
	}
}

// look is called when there was no message for as long as patience lasts.
func (l *lookout) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.promise <= 0 {
		return // it rests
	}
	if l.quiet != nil {
		if left := missedSigns*l.promise - l.quiet(); left > 0 {
			l.timer.Reset(left)
			return
		}
	}
	l.hangs()
}

// stop lets it rest.
func (l *lookout) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.promise = 0
	if l.timer != nil {
		l.timer.Stop()
	}
}
