package drivertest

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
)

func recovery(t *testing.T, s *suite) {
	t.Run("tasks go on while the driver is closed", func(t *testing.T) {
		task := s.shell(t, `i=0; trap 'echo last; exit 6' TERM; while true; do i=$((i+1)); echo line $i; sleep 0.01; done`)
		s.start(t, task)
		s.logUntil(t, task, "line 5")
		before, _ := s.status(t, task.ID)
		s.close(t)
		s.logUntil(t, task, fmt.Sprintf("line %d", 5+len(s.logUntil(t, task, "line 5"))+50))
		s.open(t)
		after, found := s.status(t, task.ID)
		if !found || after.State != driver.StateRunning || after.PID != before.PID || !after.StartedAt.Equal(before.StartedAt) {
			t.Fatalf("before %+v, after %+v", before, after)
		}
		if after.Labels["test"] != t.Name() {
			t.Errorf("labels: got %v", after.Labels)
		}
		if again := s.startAgain(t, task); again.PID != before.PID { // it runs: nothing to do
			t.Errorf("started again as %+v", again)
		}
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGTERM", hangs))
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if exit.Code != 6 {
			t.Errorf("got %+v", exit)
		}
		for i, line := range s.logUntil(t, task, "last") {
			if want := fmt.Sprintf("line %d", i+1); line != want && line != "last" {
				t.Fatalf("line %q where %q should be", line, want)
			}
		}
	})
	t.Run("an exit while the driver is closed keeps its code", func(t *testing.T) {
		task := s.shell(t, "trap 'echo ending; exit 11' USR1; echo ready; while true; do sleep 0.05; done")
		s.endWhileClosed(t, task)
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if exit.Code != 11 || exit.Reason != "" {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("running out of memory while the driver is closed is reported", func(t *testing.T) {
		task := s.shell(t, "trap 'echo ending; exec tail /dev/zero' USR1; echo ready; while true; do sleep 0.05; done")
		task.Resources.MemoryLimit = 16 << 20
		s.endWhileClosed(t, task)
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if !exit.OOMKilled {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("a supervisor killed while the driver is closed is noticed", func(t *testing.T) {
		before := s.Traces(t)
		task := s.shell(t, "echo ready; exec sleep 100000")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		d := s.driver
		s.close(t)
		s.KillSupervisor(t, d, task.ID)
		s.open(t)
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if exit.Reason == "" {
			t.Errorf("got %+v", exit)
		}
		must(t, s.driver.Remove(s.ctx(t), task.ID))
		s.sameTraces(t, before)
	})
	t.Run("an exited task is still there", func(t *testing.T) {
		task := s.shell(t, "exit 12")
		first := s.run(t, task)
		s.close(t)
		s.open(t)
		again, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if again.Code != 12 || !again.At.Equal(first.At) {
			t.Errorf("first %+v, then %+v", first, again)
		}
	})
}

// endWhileClosed starts a task that ends on SIGUSR1 and sends it that while the driver is
// closed. The driver is open again when the task is dead.
func (s *suite) endWhileClosed(t *testing.T, task driver.Task) {
	t.Helper()
	s.start(t, task)
	s.logUntil(t, task, "ready")
	status, _ := s.status(t, task.ID)
	s.close(t)
	handle, err := unix.PidfdOpen(status.PID, 0)
	must(t, err)
	defer unix.Close(handle)
	must(t, unix.PidfdSendSignal(handle, unix.SIGUSR1, nil, 0))
	poll := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	for n := 0; n == 0; {
		if n, err = unix.Poll(poll, int(hangs.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		} else if n == 0 && err == nil {
			t.Fatal("the task does not end")
		}
	}
	s.logUntil(t, task, "ending")
	s.open(t)
}
