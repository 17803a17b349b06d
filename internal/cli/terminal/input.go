package terminal

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ReadKeys calls handle for every key that is pressed on a terminal, until it is stopped.
func ReadKeys(terminal *os.File, handle func(key byte)) (stop func(), err error) {
	wake, waker, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = wake.Close() }()
		fds := []unix.PollFd{
			{Fd: int32(terminal.Fd()), Events: unix.POLLIN},
			{Fd: int32(wake.Fd()), Events: unix.POLLIN},
		}
		var buffer [64]byte
		for {
			if _, err := unix.Poll(fds, -1); err != nil {
				if err == unix.EINTR { //nolint:errorlint // the kernel's own value
					continue
				}
				return
			}
			if fds[1].Revents != 0 {
				return
			}
			n, err := unix.Read(int(terminal.Fd()), buffer[:])
			if err != nil || n == 0 {
				return
			}
			for _, key := range buffer[:n] {
				handle(key)
			}
		}
	}()
	return func() {
		_ = waker.Close()
		<-ended
	}, nil
}

// MakeRaw puts the terminal into raw mode: every key arrives as it is pressed, and none makes a signal.
func MakeRaw(stdin any) (restore func(), err error) {
	f, ok := stdin.(*os.File)
	if !ok || !IsTerminal(f) {
		return nil, fmt.Errorf("standard input is not a terminal: leave -t out")
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), before) }, nil
}

// RelaySignals calls handle for every signal until it is stopped. When stop returns, handle is no longer called.
func RelaySignals(signals chan os.Signal, handle func(s os.Signal, done <-chan struct{})) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case s := <-signals:
				handle(s, done)
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}
