package datadir_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/datadir/datadirtest"
	"github.com/cloudless/cloudless/internal/must"
)

func TestMain(m *testing.M) {
	datadirtest.Main()
	m.Run()
}

func TestSecondProcessIsRefusedWithThePIDOfTheFirst(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	first := datadirtest.Hold(t, path)
	_, err := datadir.Open(path)
	held, ok := errors.AsType[*datadir.AlreadyRunningError](err)
	if !ok || held.PID != first.Process.Pid {
		t.Errorf("opened with %v, want AlreadyRunningError of process %d", err, first.Process.Pid)
	}
}

func TestTakeOverStopsTheProcessAndHoldsItsFolder(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	first := datadirtest.Hold(t, path)
	var said []string
	f, _, err := datadir.TakeOver(t.Context(), path, func(s string) { said = append(said, s) })
	must.Succeed(t, err)
	defer f.Release()
	if got := datadirtest.SignalOf(t, first); got != syscall.SIGTERM {
		t.Errorf("the process ended by %v", got)
	}
	if f.ID == "" || datadir.ReadHolder(path).PID != os.Getpid() || len(said) == 0 {
		t.Errorf("took over %+v, held by %+v, saying %q", f.Record, datadir.ReadHolder(path), said)
	}
}

func TestProcessThatIgnoresSIGTERMIsKilled(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	stubborn := datadirtest.HoldStubbornly(t, path)
	must.Succeed(t, datadir.StopHolder(t.Context(), &datadir.AlreadyRunningError{DataDir: path, Holder: datadir.Holder{PID: stubborn.Process.Pid}}, 50*time.Millisecond))
	if got := datadirtest.SignalOf(t, stubborn); got != syscall.SIGKILL {
		t.Errorf("the process ended by %v", got)
	}
}

func TestWaitingForAProcessEndsWithTheContext(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	stubborn := datadirtest.HoldStubbornly(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := datadir.StopHolder(ctx, &datadir.AlreadyRunningError{DataDir: path, Holder: datadir.Holder{PID: stubborn.Process.Pid}}, time.Hour)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

// The process id in the lock file may belong to another program by now.
func TestProcessThatDoesNotHoldTheFolderIsNeverStopped(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	datadirtest.Hold(t, path)
	stranger := datadirtest.Hold(t, t.TempDir())
	err := datadir.StopHolder(t.Context(), &datadir.AlreadyRunningError{DataDir: path, Holder: datadir.Holder{PID: stranger.Process.Pid}}, time.Hour)
	if !errors.Is(err, datadir.ErrChanging) {
		t.Errorf("stopping a stranger: %v", err)
	}
	must.Succeed(t, stranger.Process.Signal(syscall.Signal(0)))
	if err := datadir.StopHolder(t.Context(), &datadir.AlreadyRunningError{DataDir: path}, time.Hour); !errors.Is(err, datadir.ErrChanging) {
		t.Errorf("stopping a holder that has not said who it is: %v", err)
	}
	must.Succeed(t, stranger.Process.Kill())
	_ = stranger.Wait()
	must.Succeed(t, datadir.StopHolder(t.Context(), &datadir.AlreadyRunningError{DataDir: path, Holder: datadir.Holder{PID: stranger.Process.Pid}}, time.Hour)) // is gone already
}
