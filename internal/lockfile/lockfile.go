// Package lockfile lets one process at a time hold a path. A process that ends, however it does, holds nothing any more.
//
// It knows nothing of what is held by it, nor of what to say to who comes second.
package lockfile

import (
	"errors"
	"os"
	"syscall"
)

// ErrHeld is that another process, or another part of this one, has the path.
var ErrHeld = errors.New("somebody else holds it")

// Lock is a path that is held, and the file there, for what others should know of who holds it.
type Lock struct{ *os.File }

// Hold takes a path until [Lock.Close], or is refused with [ErrHeld]. It makes the file if there is none, private to its
// owner, and follows no link.
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

// Close lets the path go at once. To close the file alone would not: a process that is being started has it, too, until
// it has become another program.
func (l *Lock) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}
