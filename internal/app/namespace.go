package app

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/cli/local"
)

// namespace is the network namespace of a process, nil for our own: who stops a
// cloud need not be where it was started, but its network is there.
type namespace struct{ file *os.File }

// networkOf is the network namespace of the process that holds a data folder, nil if
// that has just ended.
func networkOf(held *local.AlreadyRunningError) *namespace {
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", held.PID))
	if err != nil {
		return nil
	}
	if !hasOpen(held.PID, lockPath(held.DataDir)) { // the number is another's by now
		_ = file.Close()
		return nil
	}
	return &namespace{file}
}

// do does something in the namespace.
func (n *namespace) do(f func() error) error {
	if n == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and nobody else gets it
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace of the cloud: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

func (n *namespace) close() {
	if n != nil {
		_ = n.file.Close()
	}
}
