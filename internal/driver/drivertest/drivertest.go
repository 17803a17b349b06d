// Package drivertest is the conformance suite of the driver contract: what a driver must do
// for an agent to rely on it, tested with a real driver on a real machine.
//
// A driver's own test makes a Harness and calls Run. The suite brings its own image, made
// of a static busybox, so that it needs no registry. It must not know any driver.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/logfile"
)

// Driver is a driver that can be closed without ending its tasks.
type Driver interface {
	driver.Driver
	driver.Execer
	driver.Meter
	driver.Rooter
	driver.Dialer
	driver.Signaler
	Close() error
}

// Harness gives the suite access to a driver and to its traces on the machine.
type Harness struct {
	// Open opens the driver, each time on the same state. The suite has at most one open at
	// a time and closes it.
	Open func(t *testing.T) Driver

	// Import gives the driver an image, in the format of docker save.
	Import func(t *testing.T, d Driver, archive io.Reader)

	// UnknownImage is a reference that the driver can look for and not find.
	UnknownImage string

	// LateLogs is set for a driver whose capabilities say that the end of a log may reach
	// the disk after the exit was reported.
	LateLogs bool

	// NoSecretEnv is set for a driver whose capabilities say that tasks cannot have secrets in their environment.
	NoSecretEnv bool

	// KillSupervisor kills the process between the driver and the task, without a chance to
	// clean up.
	KillSupervisor func(t *testing.T, d Driver, id string)

	// Traces names everything on the machine that exists because of tasks: processes,
	// mounts, cgroups, sockets, files.
	Traces func(t *testing.T) []string

	// Files names all files on disks that the driver writes, also of what it runs.
	Files func(t *testing.T) []string
}

// hangs is how long the suite waits before it declares a hang. It is not a measure of
// speed.
const hangs = time.Minute

// Run tests the whole contract.
func Run(t *testing.T, h Harness) {
	s := &suite{Harness: h}
	s.open(t)
	t.Cleanup(func() { s.close(t) })
	s.importImages(t)
	// The first task unpacks the image and creates folders that stay.
	t.Run("a task runs", func(t *testing.T) { s.run(t, s.shell(t, "true")) })
	before := h.Traces(t)
	for _, group := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"lifecycle", lifecycle},
		{"images", images},
		{"resources", resources},
		{"security", security},
		{"profiles", profiles},
		{"user namespaces", userNamespaces},
		{"sandbox", sandboxes},
		{"exec", execs},
		{"secrets", secrets},
		{"root", roots},
		{"dial", dials},
		{"recovery", recovery},
	} {
		t.Run(group.name, func(t *testing.T) { group.run(t, s) })
	}
	t.Run("nothing is left", func(t *testing.T) {
		all, err := s.driver.List(s.ctx(t))
		must(t, err)
		if len(all) != 0 {
			t.Errorf("tasks are left: %+v", all)
		}
		s.sameTraces(t, before)
	})
}

type suite struct {
	Harness
	driver Driver
	tasks  int
}

func (s *suite) open(t *testing.T) {
	t.Helper()
	s.driver = s.Open(t)
}

func (s *suite) close(t *testing.T) {
	t.Helper()
	if s.driver == nil {
		return
	}
	d := s.driver
	s.driver = nil
	must(t, d.Close())
}

// ctx ends with the test, or when it hangs.
func (s *suite) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	t.Cleanup(cancel)
	return ctx
}

// shell describes a task that runs a script.
func (s *suite) shell(t *testing.T, script string) driver.Task {
	s.tasks++
	id := fmt.Sprintf("task-%d", s.tasks)
	return driver.Task{
		ID:      id,
		Labels:  map[string]string{"test": t.Name()},
		Image:   busyboxImage,
		Command: []string{"/bin/sh", "-c", script},
		Network: driver.NetworkNone,
		LogDir:  filepath.Join(t.TempDir(), "log"),
	}
}

// start starts the task and removes it when the test ends.
func (s *suite) start(t *testing.T, task driver.Task) {
	t.Helper()
	t.Cleanup(func() {
		if err := s.driver.Remove(context.WithoutCancel(t.Context()), task.ID); err != nil {
			t.Errorf("remove %s: %v", task.ID, err)
		}
	})
	must(t, s.driver.Prepare(s.ctx(t), task))
	status, err := s.driver.Start(s.ctx(t), task)
	must(t, err)
	if status.ID != task.ID || status.State != driver.StateRunning || status.PID == 0 || status.StartedAt.IsZero() {
		t.Errorf("started as %+v", status)
	}
}

// startAgain starts a task that was started before, and returns its status.
func (s *suite) startAgain(t *testing.T, task driver.Task) driver.Status {
	t.Helper()
	status, err := s.driver.Start(s.ctx(t), task)
	must(t, err)
	return status
}

// run starts the task and waits for its end.
func (s *suite) run(t *testing.T, task driver.Task) driver.Exit {
	t.Helper()
	s.start(t, task)
	exit, err := s.driver.Wait(s.ctx(t), task.ID)
	must(t, err)
	return exit
}

// output runs the task, which must succeed, and returns what it wrote.
func (s *suite) output(t *testing.T, task driver.Task) string {
	t.Helper()
	task.Command[2] += "\necho end-of-output"
	if exit := s.run(t, task); exit.Code != 0 {
		t.Fatalf("exit %+v, log:\n%s", exit, s.log(t, task))
	}
	lines := s.logUntil(t, task, "end-of-output")
	return strings.Join(lines[:len(lines)-1], "\n")
}

// logUntil follows the task's log until it has that line.
func (s *suite) logUntil(t *testing.T, task driver.Task, last string) []string {
	t.Helper()
	var lines []string
	found := errors.New("found")
	err := logfile.Read(s.ctx(t), task.LogDir, logfile.Options{Tail: -1, Follow: true}, func(e logfile.Entry) error {
		lines = append(lines, e.Line)
		if e.Line == last {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Fatalf("no line %q in the log: %v; it has %q", last, err, lines)
	}
	return lines
}

// log is the task's output so far, for failure messages.
func (s *suite) log(t *testing.T, task driver.Task) string {
	var text strings.Builder
	err := logfile.Read(s.ctx(t), task.LogDir, logfile.Options{Tail: -1}, func(e logfile.Entry) error {
		fmt.Fprintf(&text, "%s: %s\n", e.Stream, e.Line)
		return nil
	})
	if err != nil {
		t.Errorf("read the log: %v", err)
	}
	return text.String()
}

// status is the task as List shows it.
func (s *suite) status(t *testing.T, id string) (driver.Status, bool) {
	t.Helper()
	all, err := s.driver.List(s.ctx(t))
	must(t, err)
	at := slices.IndexFunc(all, func(status driver.Status) bool { return status.ID == id })
	if at < 0 {
		return driver.Status{}, false
	}
	return all[at], true
}

// sameTraces fails if there is more on the machine than before. Some of it may disappear
// shortly after.
func (s *suite) sameTraces(t *testing.T, before []string) {
	t.Helper()
	ctx := s.ctx(t)
	for {
		left := slices.DeleteFunc(s.Traces(t), func(trace string) bool { return slices.Contains(before, trace) })
		if len(left) == 0 {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("left on the machine:\n%s", strings.Join(left, "\n"))
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}
