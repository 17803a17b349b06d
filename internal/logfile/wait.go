package logfile

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// lookAgain is the polling interval when the machine has no inotify watches left.
const lookAgain = 500 * time.Millisecond

// waiter wakes a reader when its log may have changed.
type waiter struct {
	dir      string
	done     <-chan struct{}
	until    *time.Timer // nil if there is no end
	watcher  *fsnotify.Watcher
	watched  string       // the log or, until it exists, the nearest directory above it
	ticker   *time.Ticker // used if there is no watcher
	finished bool         // nothing more can come
}

func newWaiter(dir string, opts Options) *waiter {
	w := &waiter{dir: filepath.Clean(dir), done: opts.Done}
	if !opts.Until.IsZero() {
		w.until = time.NewTimer(time.Until(opts.Until))
	}
	var err error
	if w.watcher, err = fsnotify.NewWatcher(); err != nil {
		w.watcher = nil
		w.ticker = time.NewTicker(lookAgain)
		return w
	}
	w.watch()
	return w
}

func (w *waiter) close() {
	if w.until != nil {
		w.until.Stop()
	}
	if w.ticker != nil {
		w.ticker.Stop()
	}
	if w.watcher != nil {
		w.watcher.Close()
	}
}

// watch watches the log, or the nearest existing directory above it.
func (w *waiter) watch() {
	for w.watched != w.dir {
		target := nearest(w.dir)
		if target == w.watched {
			return
		}
		if err := w.add(target); err != nil {
			if _, statErr := os.Stat(target); statErr != nil {
				continue // it was removed in between
			}
			w.watcher.Close()
			w.watcher = nil
			w.ticker = time.NewTicker(lookAgain)
			return
		}
		if w.watched != "" && w.watched != filepath.Dir(w.dir) {
			_ = w.watcher.Remove(w.watched) // it may itself be gone
		}
		// Repeat: something nearer may have appeared before the watch.
		w.watched = target
	}
}

// add watches the target and, if that is the log, also its parent: the log itself does not
// report its removal while a file of it is open.
func (w *waiter) add(target string) error {
	if target == w.dir {
		if err := w.watcher.Add(filepath.Dir(w.dir)); err != nil {
			return err
		}
	}
	return w.watcher.Add(target)
}

// nearest is dir or, if that does not exist, the nearest existing one above.
func nearest(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return dir
		}
		dir = parent
	}
}

// wait returns when the log may have changed or when nothing more can come.
func (w *waiter) wait(ctx context.Context) error {
	var (
		until, tick <-chan time.Time
		events      <-chan fsnotify.Event
		overflows   <-chan error
	)
	if w.until != nil {
		until = w.until.C
	}
	if w.ticker != nil {
		tick = w.ticker.C
	}
	if w.watcher != nil {
		events, overflows = w.watcher.Events, w.watcher.Errors
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.done:
		w.finished = true
	case <-until:
		w.finished = true
	case <-tick:
	case <-overflows: // events were lost, which is itself one
	case event := <-events:
		w.handle(event)
		w.handlePending()
	}
	return nil
}

// handlePending consumes the queued events: one look covers them all.
func (w *waiter) handlePending() {
	for w.watcher != nil {
		select {
		case event := <-w.watcher.Events:
			w.handle(event)
		default:
			return
		}
	}
}

func (w *waiter) handle(event fsnotify.Event) {
	gone := event.Name == w.watched && event.Has(fsnotify.Remove|fsnotify.Rename)
	if w.watched == w.dir {
		w.finished = w.finished || gone
		return
	}
	if gone {
		w.watched = ""
	}
	w.watch()
}
