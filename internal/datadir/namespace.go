package datadir

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is the network namespace of a process, nil for our own. The process that stops a cloud may run in another
// namespace than the cloud, whose network must be cleared where it is.
type Namespace struct{ file *os.File }

// networkOf is the network namespace of the process that holds a data folder, nil if it has just ended.
func networkOf(held *AlreadyRunningError) *Namespace {
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", held.PID))
	if err != nil {
		return nil
	}
	if !hasOpen(held.PID, lockPath(held.DataDir)) { // another process has the number by now
		_ = file.Close()
		return nil
	}
	return &Namespace{file}
}

// Do calls f in the namespace.
func (n *Namespace) Do(f func() error) error {
	if n == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine and is not reused
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace of the cloud: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Close lets the namespace go.
func (n *Namespace) Close() {
	if n != nil {
		_ = n.file.Close()
	}
}
