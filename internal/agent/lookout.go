package agent

import (
	"time"

	"github.com/cloudless/cloudless/internal/spec"
)

// missedSigns is how many signs of life a server may miss in a row before it is
// taken for one that hangs.
const missedSigns = 3

// lookout notices when a server says nothing any more that has promised to give
// signs of life. It may hang while its machine keeps all connections open: those
// tell of it only when it is too late, and the node is taken for offline.
type lookout struct {
	hangs   func()
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
	l.promise = every
	l.heard()
	return nil
}

// heard is called with every message.
func (l *lookout) heard() {
	switch patience := missedSigns * l.promise; {
	case patience <= 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(patience, l.hangs)
	default:
		l.timer.Reset(patience)
	}
}

func (l *lookout) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}
