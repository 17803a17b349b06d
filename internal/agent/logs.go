package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/retentionclock"
)

// logs owns the folders of all replicas' logs. A folder spans every attempt of its replica
// and outlives the replica by the retention: when the replica goes, the time is marked in
// the folder, and after the retention the folder is removed.
type logs struct {
	dir  string
	keep time.Duration
	wake chan struct{} // has a token when there is a new mark
	log  *slog.Logger

	mu sync.Mutex // a folder is not removed while its replica claims it again
}

// removedMark is the file that holds the time of removal. The log's own files are named by
// numbers.
const removedMark = "removed"

func newLogs(dir string, keep time.Duration, log *slog.Logger) (*logs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of logs: %w", err)
	}
	return &logs{dir: dir, keep: keep, wake: make(chan struct{}, 1), log: log}, nil
}

func (l *logs) path(uid string) string { return filepath.Join(l.dir, uid) }

// exists reports whether the replica has a log, removed or not.
func (l *logs) exists(uid string) bool {
	_, err := os.Stat(l.path(uid))
	return err == nil
}

// claim creates the folder of a replica that is about to run.
func (l *logs) claim(uid string) (dir string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir = l.path(uid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the log's folder: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, removedMark)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("take up the log again: %w", err)
	}
	return dir, nil
}

// release marks the folder of a removed replica, if it is not yet marked.
func (l *logs) release(uid string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	mark := filepath.Join(l.path(uid), removedMark)
	if _, err := os.Stat(mark); err == nil || !l.exists(uid) {
		return nil
	}
	if err := atomicfile.Replace(mark, []byte(time.Now().UTC().Format(time.RFC3339Nano))); err != nil {
		return fmt.Errorf("mark the log of removed replica %s: %w", uid, err)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// releaseUnknown marks the folders of unknown replicas.
func (l *logs) releaseUnknown(known func(uid string) bool) error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("look for logs of removed replicas: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if !known(entry.Name()) {
			errs = append(errs, l.release(entry.Name()))
		}
	}
	return errors.Join(errs...)
}

// run removes folders when they are due, until ctx ends.
func (l *logs) run(ctx context.Context) {
	clock := retentionclock.New() // a clock that is set forward must not make every log look old
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.wake:
		}
		now := clock.Now()
		next, err := l.sweep(now)
		if err != nil {
			l.log.Warn("cannot remove old logs; trying again in a minute", "error", err)
			next = now.Add(time.Minute)
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(next.Sub(now))
		}
	}
}

// sweep removes what is due and returns when the next folder is due, or zero.
func (l *logs) sweep(now time.Time) (next time.Time, err error) {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return time.Time{}, err
	}
	var errs []error
	for _, entry := range entries {
		due, err := l.removeDue(entry.Name(), now)
		errs = append(errs, err)
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next, errors.Join(errs...)
}

// removeDue removes the folder if it is marked and due. If it is only marked, it returns
// when it will be due.
func (l *logs) removeDue(uid string, now time.Time) (due time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mark := filepath.Join(l.path(uid), removedMark)
	text, err := os.ReadFile(mark)
	if errors.Is(err, os.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	removed, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(string(text)))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s does not hold a time: %w; remove the folder by hand if its log is not needed", mark, err)
	}
	if due := removed.Add(l.keep); due.After(now) {
		return due, nil
	}
	return time.Time{}, os.RemoveAll(l.path(uid))
}
