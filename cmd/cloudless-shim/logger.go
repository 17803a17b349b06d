package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/logfile"
)

// The files that a stock shim passes to its logging binary.
const (
	loggerStdout = 3
	loggerStderr = 4
	loggerReady  = 5
)

// runLogger writes the output of a container of a stock shim to the log, until both streams
// have ended. The stock shim sends it a signal to terminate when it has closed its own ends
// of the pipes. The rest of their content is written first, so signals are ignored.
func runLogger(uri string) error {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	dir, limits, err := logfile.ParseURI(uri)
	if err != nil {
		return err
	}
	w, err := logfile.Open(dir, logfile.WriterOptions{Limits: limits})
	if err != nil {
		return err
	}
	stdout, err := inheritedPipe(loggerStdout)
	if err != nil {
		return err
	}
	stderr, err := inheritedPipe(loggerStderr)
	if err != nil {
		return err
	}
	if err := signalReady(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var outErr, errErr error
	wg.Go(func() { outErr = w.Pump(logfile.Stdout, stdout) })
	wg.Go(func() { errErr = w.Pump(logfile.Stderr, stderr) })
	wg.Wait()
	return errors.Join(outErr, errErr, w.Close())
}

// inheritedPipe opens a pipe so that reads can have a deadline.
func inheritedPipe(fd int) (*os.File, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("take over the container's output on file %d: %w", fd, err)
	}
	return os.NewFile(uintptr(fd), "output"), nil
}

// signalReady lets the container start. Closing the file is enough for some shims; others
// need a byte, to distinguish readiness from a crash.
func signalReady() error {
	ready := os.NewFile(loggerReady, "ready")
	_, err := ready.Write([]byte{1})
	return errors.Join(err, ready.Close())
}
