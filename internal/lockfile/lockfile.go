// Package lockfile lets one process at a time hold a path. The kernel releases the lock when the process ends.
//
// It does not know what the lock protects, nor how callers report a conflict.
package lockfile

import (
	"errors"
	"os"
	"syscall"
)

// ErrHeld means that another process, or another part of this one, holds the path.
var ErrHeld = errors.New("the lock is held already")

// Lock is a held path. The holder can describe itself in the file.
type Lock struct{ *os.File }

// Hold locks a path until [Lock.Close], or fails with [ErrHeld]. It creates a missing file with mode 0600 and follows no
// link.
func Hold(path string) (*Lock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrHeld
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return &Lock{file}, nil
}

// Close releases the lock at once. Closing the file would not be enough: a child process has it open, too, between fork
// and exec.
func (l *Lock) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}
