package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/logfile"
)

func lifecycle(t *testing.T, s *suite) {
	t.Run("exit codes are the process's own", func(t *testing.T) {
		for _, code := range []int{0, 1, 42, 255} {
			exit := s.run(t, s.shell(t, fmt.Sprintf("exit %d", code)))
			if exit.Code != code || exit.OOMKilled || exit.Reason != "" {
				t.Errorf("exit %d: got %+v", code, exit)
			}
		}
	})
	t.Run("a signal shows in the code", func(t *testing.T) {
		// The first process of a pid namespace is immune to its own signals.
		task := s.shell(t, "echo ready; exec sleep 1000")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGKILL", time.Hour))
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if exit.Code != 128+9 || exit.OOMKilled {
			t.Errorf("got %+v, want code 137 without OOM", exit)
		}
	})
	t.Run("the list shows a task from start to removal", func(t *testing.T) { listed(t, s) })
	t.Run("waiting works as often as one likes", func(t *testing.T) {
		task := s.shell(t, "exit 7")
		first := s.run(t, task)
		again, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if again.Code != 7 || !again.At.Equal(first.At) {
			t.Errorf("first %+v, then %+v", first, again)
		}
	})
	t.Run("waiting can be given up", func(t *testing.T) {
		task := s.shell(t, "exec sleep 1000")
		s.start(t, task)
		ctx, cancel := context.WithCancel(s.ctx(t))
		cancel()
		_, err := s.driver.Wait(ctx, task.ID)
		wantError(t, err, context.Canceled)
	})
	t.Run("an unknown task is not found", func(t *testing.T) {
		_, err := s.driver.Wait(s.ctx(t), "nobody")
		wantError(t, err, driver.ErrNotFound)
		wantError(t, s.driver.Stop(s.ctx(t), "nobody", "SIGTERM", 0), driver.ErrNotFound)
		_, err = s.driver.Exec(s.ctx(t), "nobody", driver.Exec{Command: []string{"/bin/true"}})
		wantError(t, err, driver.ErrNotFound)
		_, err = s.driver.Stats(s.ctx(t), "nobody")
		wantError(t, err, driver.ErrNotFound)
		must(t, s.driver.Remove(s.ctx(t), "nobody"))
	})
	t.Run("every verb may be repeated", func(t *testing.T) { repeated(t, s) })
	t.Run("stop", func(t *testing.T) { stops(t, s) })
	t.Run("what cannot run is refused and leaves nothing", func(t *testing.T) { refused(t, s) })
	t.Run("removing a running task leaves nothing", func(t *testing.T) {
		before := s.Traces(t)
		task := s.shell(t, "sleep 1000 & echo ready; exec sleep 1000")
		s.start(t, task)
		s.logUntil(t, task, "ready")
		must(t, s.driver.Remove(s.ctx(t), task.ID))
		s.sameTraces(t, before)
	})
	t.Run("a killed supervisor takes its task along", func(t *testing.T) { supervisorKilled(t, s) })
	t.Run("all output is in the log, by stream and in order", func(t *testing.T) { logged(t, s) })
}

func listed(t *testing.T, s *suite) {
	task := s.shell(t, `trap 'exit 3' TERM; echo ready; while true; do sleep 0.05; done`)
	task.Labels["replica"] = "a b/c"
	if _, found := s.status(t, task.ID); found {
		t.Fatal("listed before it was started")
	}
	begin := time.Now().Add(-time.Second)
	s.start(t, task)
	s.logUntil(t, task, "ready")
	status, _ := s.status(t, task.ID)
	if status.State != driver.StateRunning || status.PID <= 0 || status.Exit != nil {
		t.Errorf("running: got %+v", status)
	}
	if status.Labels["replica"] != "a b/c" || status.Labels["test"] != t.Name() || len(status.Labels) != 2 {
		t.Errorf("labels: got %v", status.Labels)
	}
	if status.StartedAt.Before(begin) || status.StartedAt.After(time.Now()) {
		t.Errorf("started at %v", status.StartedAt)
	}
	must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGTERM", hangs))
	status, _ = s.status(t, task.ID)
	if status.State != driver.StateExited || status.Exit == nil || status.Exit.Code != 3 || status.PID != 0 {
		t.Errorf("exited: got %+v with exit %+v", status, status.Exit)
	}
	must(t, s.driver.Remove(s.ctx(t), task.ID))
	if _, found := s.status(t, task.ID); found {
		t.Error("listed after it was removed")
	}
}

func repeated(t *testing.T, s *suite) {
	task := s.shell(t, "echo ready; exec sleep 1000")
	s.start(t, task)
	s.logUntil(t, task, "ready")
	before, _ := s.status(t, task.ID)
	must(t, s.driver.Prepare(s.ctx(t), task))
	after := s.startAgain(t, task)
	if before.PID != after.PID || !before.StartedAt.Equal(after.StartedAt) {
		t.Errorf("the second start made another process: %d, then %d", before.PID, after.PID)
	}
	for range 2 {
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGKILL", 0))
	}
	if status := s.startAgain(t, task); status.State != driver.StateExited { // it had its run
		t.Errorf("after the end and another start: %+v", status)
	}
	for range 2 {
		must(t, s.driver.Remove(s.ctx(t), task.ID))
	}
	s.start(t, task) // the id is free again
	must(t, s.driver.Remove(s.ctx(t), task.ID))
}

func stops(t *testing.T, s *suite) {
	const stubborn = `trap "" TERM; echo ready; while true; do sleep 0.05; done`
	const polite = `trap 'echo bye; exit 0' TERM USR1; echo ready; while true; do sleep 0.05; done`
	t.Run("gives time to the one that listens", func(t *testing.T) {
		task := s.shell(t, polite)
		s.start(t, task)
		s.logUntil(t, task, "ready")
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGTERM", hangs))
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if exit.Code != 0 {
			t.Errorf("got %+v", exit)
		}
		s.logUntil(t, task, "bye")
	})
	t.Run("kills the one that does not", func(t *testing.T) {
		task := s.shell(t, stubborn)
		s.start(t, task)
		s.logUntil(t, task, "ready")
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGTERM", 100*time.Millisecond))
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if exit.Code != 128+9 || exit.OOMKilled {
			t.Errorf("got %+v, want code 137 without OOM", exit)
		}
	})
	t.Run("uses the image's signal by default", func(t *testing.T) {
		task := s.shell(t, `trap 'exit 33' USR1; echo ready; while true; do sleep 0.05; done`)
		s.start(t, task)
		s.logUntil(t, task, "ready")
		must(t, s.driver.Stop(s.ctx(t), task.ID, "", hangs))
		if exit, err := s.driver.Wait(s.ctx(t), task.ID); err != nil || exit.Code != 33 {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
	t.Run("refuses a word that is no signal", func(t *testing.T) {
		task := s.shell(t, "exec sleep 1000")
		s.start(t, task)
		wantError(t, s.driver.Stop(s.ctx(t), task.ID, "SIGNONSENSE", 0), driver.ErrInvalid)
	})
}

func refused(t *testing.T, s *suite) {
	for name, change := range map[string]func(*driver.Task){
		"a missing command":       func(task *driver.Task) { task.Command = []string{"/no/such/program"} },
		"a command not in PATH":   func(task *driver.Task) { task.Command = []string{"no-such-program"} },
		"a file that cannot run":  func(task *driver.Task) { task.Command = []string{"/etc/not-a-program"} },
		"an unknown user":         func(task *driver.Task) { task.User = "nobody-here" },
		"an unknown group":        func(task *driver.Task) { task.User = "web:nobody-here" },
		"an unknown network":      func(task *driver.Task) { task.Network = "moon" },
		"a relative log folder":   func(task *driver.Task) { task.LogDir = "log" },
		"a relative folder":       func(task *driver.Task) { task.WorkingDir = "tmp" },
		"a negative memory limit": func(task *driver.Task) { task.Resources.MemoryLimit = -1 },
		"an id with a slash":      func(task *driver.Task) { task.ID = "a/b" },
	} {
		t.Run(name, func(t *testing.T) {
			before := s.Traces(t)
			task := s.shell(t, "true")
			change(&task)
			_, err := s.driver.Start(s.ctx(t), task)
			wantError(t, err, driver.ErrInvalid)
			if _, found := s.status(t, task.ID); found {
				t.Error("the task that did not start is in the list")
			}
			s.sameTraces(t, before)
		})
	}
}

func supervisorKilled(t *testing.T, s *suite) {
	before := s.Traces(t)
	task := s.shell(t, "echo ready; exec sleep 1000")
	s.start(t, task)
	s.logUntil(t, task, "ready")
	type result struct {
		exit driver.Exit
		err  error
	}
	waiting := make(chan result, 1)
	go func() {
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		waiting <- result{exit, err}
	}()
	s.KillSupervisor(t, s.driver, task.ID)
	got := <-waiting
	must(t, got.err)
	if got.exit.Reason == "" || got.exit.Code == 0 {
		t.Errorf("the exit does not say that the supervisor was killed: %+v", got.exit)
	}
	if status, found := s.status(t, task.ID); !found || status.State != driver.StateExited || status.Exit == nil || status.Exit.Reason == "" {
		t.Errorf("listed as %+v", status)
	}
	s.logUntil(t, task, "ready") // what was written before is still there
	must(t, s.driver.Remove(s.ctx(t), task.ID))
	s.sameTraces(t, before)
}

func logged(t *testing.T, s *suite) {
	task := s.shell(t, `i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done; printf unfinished`)
	s.run(t, task)
	if s.LateLogs {
		s.logUntil(t, task, "unfinished")
	}
	next := map[logfile.Stream]int{logfile.Stdout: 1, logfile.Stderr: 1}
	begun := map[logfile.Stream]string{}
	all := errors.New("all seen")
	err := logfile.Read(s.ctx(t), task.LogDir, logfile.Options{Tail: -1, Follow: s.LateLogs}, func(e logfile.Entry) error {
		want := fmt.Sprintf("%s %d", strings.TrimPrefix(string(e.Stream), "std"), next[e.Stream])
		if next[e.Stream] == 2001 {
			want = "unfinished"
		}
		// A line that is unfinished for long comes in parts, the last of them empty.
		line := begun[e.Stream] + e.Line
		if e.Partial && line != want {
			begun[e.Stream] = line
			return nil
		}
		if line == "" && next[e.Stream] == 2002 {
			return nil
		}
		delete(begun, e.Stream)
		if line != want {
			return fmt.Errorf("line %q where %q should be", line, want)
		}
		next[e.Stream]++
		if next[logfile.Stdout] == 2002 && next[logfile.Stderr] == 2001 {
			return all
		}
		return nil
	})
	wantError(t, err, all)
}
