package datadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/sleep"
)

// StopPatience is how long a process may take to stop before it is killed.
const StopPatience = 20 * time.Second

// TakeOver stops the process that holds the folder and holds the folder instead. It also returns the network
// namespace of that process.
func TakeOver(ctx context.Context, path string, progress func(string)) (f *Folder, ran *Namespace, err error) {
	defer func() { _ = os.Remove(downPath(path)) }()
	for deadline := time.Now().Add(StopPatience); ; {
		f, err := OpenExisting(path)
		held, ok := errors.AsType[*AlreadyRunningError](err)
		if !ok {
			return f, ran, err
		}
		if now := networkOf(held); now != nil {
			ran.Close()
			ran = now
		}
		progress(fmt.Sprintf("stopping process %d", held.PID))
		_ = os.WriteFile(downPath(path), nil, 0o600) // without it the others wait a moment longer
		err = StopHolder(ctx, held, StopPatience)
		if errors.Is(err, ErrChanging) && time.Now().Before(deadline) {
			err = sleep.For(ctx, 50*time.Millisecond)
		}
		if err != nil {
			return nil, ran, err
		}
	}
}

// downPath is a file that exists while down stops a process, which is not started again at once.
func downPath(dataDir string) string { return filepath.Join(dataDir, "resting") }

// GoingDown reports whether the process is being stopped by down.
func (f *Folder) GoingDown() bool {
	_, err := os.Stat(downPath(f.path))
	return err == nil
}

// ErrChanging is for the moment in which a process has taken the folder and has not yet said so, or has left it
// already.
var ErrChanging = errors.New("the process that holds the data folder is just starting or ending: try again")

// StopHolder stops the process that holds a data folder. It opens a descriptor of the process before it checks that
// the process holds the folder, so that a reused process id does no harm.
func StopHolder(ctx context.Context, held *AlreadyRunningError, patience time.Duration) error {
	if held.PID <= 0 {
		return ErrChanging
	}
	fd, err := unix.PidfdOpen(held.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find process %d: %w", held.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !hasOpen(held.PID, lockPath(held.DataDir)) {
		return ErrChanging
	}
	return stopProcess(ctx, fd, held.PID, patience)
}

// hasOpen reports whether a process has a file open.
func hasOpen(pid int, path string) bool {
	wanted, err := os.Stat(path)
	if err != nil {
		return false
	}
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if file, err := os.Stat(filepath.Join(folder, entry.Name())); err == nil && os.SameFile(file, wanted) {
			return true
		}
	}
	return false
}

// stopProcess stops a process: gracefully, then by force.
func stopProcess(ctx context.Context, fd, pid int, patience time.Duration) error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
		ended, err := waitProcess(ctx, fd, patience)
		if ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d does not end even when it is killed", pid)
}

func waitProcess(ctx context.Context, fd int, patience time.Duration) (ended bool, err error) {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		// Short rounds, so that Ctrl-C works.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 200)
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
	}
	return false, nil
}
