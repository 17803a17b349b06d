package drivertest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/cloudless/cloudless/internal/driver"
)

func execs(t *testing.T, s *suite) {
	task := s.shell(t, "echo ready; exec sleep 100000")
	task.Env = map[string]string{"FROM_TASK": "yes"}
	s.start(t, task)
	s.logUntil(t, task, "ready")
	run := func(t *testing.T, exec driver.Exec) (string, string, int) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		exec.Stdout, exec.Stderr = &stdout, &stderr
		process, err := s.driver.Exec(s.ctx(t), task.ID, exec)
		must(t, err)
		code, err := process.Wait(s.ctx(t))
		must(t, err)
		return stdout.String(), stderr.String(), code
	}
	t.Run("streams are apart and the code is real", func(t *testing.T) {
		stdout, stderr, code := run(t, driver.Exec{Command: []string{"sh", "-c", "echo out; echo err >&2; exit 42"}})
		if stdout != "out\n" || stderr != "err\n" || code != 42 {
			t.Errorf("got %q, %q, %d", stdout, stderr, code)
		}
	})
	t.Run("input is read to its end", func(t *testing.T) {
		input := strings.Repeat("0123456789abcdef\n", 64<<10)
		stdout, _, code := run(t, driver.Exec{Command: []string{"cat"}, Stdin: strings.NewReader(input)})
		if stdout != input || code != 0 {
			t.Errorf("got %d bytes of %d, code %d", len(stdout), len(input), code)
		}
	})
	t.Run("without input there is none", func(t *testing.T) {
		if stdout, _, code := run(t, driver.Exec{Command: []string{"cat"}}); stdout != "" || code != 0 {
			t.Errorf("got %q, code %d", stdout, code)
		}
	})
	t.Run("environment, folder and user", func(t *testing.T) {
		stdout, _, _ := run(t, driver.Exec{
			Command:    []string{"sh", "-c", "echo $FROM_IMAGE $FROM_TASK $FROM_EXEC $(pwd) $(id -u) $(id -g)"},
			Env:        map[string]string{"FROM_EXEC": "yes"},
			WorkingDir: "/etc",
			User:       "web",
		})
		if stdout != "yes yes yes /etc 1234 5678\n" {
			t.Errorf("got %q", stdout)
		}
	})
	t.Run("rights are no more than the task's", func(t *testing.T) {
		stdout, _, _ := run(t, driver.Exec{Command: []string{"sh", "-c", "for p in 1 self; do grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/$p/status; done"}})
		half := len(stdout) / 2
		if stdout == "" || stdout[:half] != stdout[half:] {
			t.Errorf("the first process and this one differ: %s", stdout)
		}
	})
	t.Run("a missing command is refused", func(t *testing.T) {
		_, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"/no/such/program"}})
		wantError(t, err, driver.ErrInvalid)
		_, err = s.driver.Exec(s.ctx(t), task.ID, driver.Exec{})
		wantError(t, err, driver.ErrInvalid)
	})
	t.Run("signals reach it", func(t *testing.T) {
		out := newWatched()
		process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{
			Command: []string{"sh", "-c", "trap 'exit 9' USR1; echo ready; while true; do sleep 0.05; done"},
			Stdout:  out,
		})
		must(t, err)
		out.until(t, s.ctx(t), "ready")
		must(t, process.Signal(s.ctx(t), "SIGUSR1"))
		if code, err := process.Wait(s.ctx(t)); err != nil || code != 9 {
			t.Errorf("got %d, %v", code, err)
		}
		wantError(t, process.Signal(s.ctx(t), "SIGNONSENSE"), driver.ErrInvalid)
	})
	t.Run("giving up kills it", func(t *testing.T) {
		out := newWatched()
		process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sh", "-c", "echo $$; exec sleep 5000"}, Stdout: out})
		must(t, err)
		pid := strings.TrimSpace(out.until(t, s.ctx(t), "\n"))
		ctx, cancel := context.WithCancel(s.ctx(t))
		cancel()
		_, err = process.Wait(ctx)
		wantError(t, err, context.Canceled)
		if stdout, _, _ := run(t, driver.Exec{Command: []string{"sh", "-c", "kill -0 " + pid + " 2>/dev/null && echo alive; true"}}); stdout != "" {
			t.Errorf("process %s is %s", pid, stdout)
		}
	})
	t.Run("giving up kills its children", func(t *testing.T) {
		out := newWatched()
		process, err := s.driver.Exec(s.ctx(t), task.ID, driver.Exec{Command: []string{"sh", "-c", "sleep 5001 & echo $!; wait"}, Stdout: out})
		must(t, err)
		child := strings.TrimSpace(out.until(t, s.ctx(t), "\n"))
		ctx, cancel := context.WithCancel(s.ctx(t))
		cancel()
		_, err = process.Wait(ctx)
		wantError(t, err, context.Canceled)
		// The first process of the task may never reap it, but it must be dead. Otherwise this waits until the test hangs.
		run(t, driver.Exec{Command: []string{"sh", "-c", "while grep -q '^State:.[RSD]' /proc/" + child + "/status 2>/dev/null; do sleep 0.05; done"}})
	})
	t.Run("a terminal", func(t *testing.T) { terminal(t, s, task.ID) })
	t.Run("an exec without a waiter ends with the task", func(t *testing.T) {
		before := s.Traces(t)
		other := s.shell(t, "echo ready; exec sleep 100000")
		s.start(t, other)
		s.logUntil(t, other, "ready")
		process, err := s.driver.Exec(s.ctx(t), other.ID, driver.Exec{Command: []string{"sleep", "100000"}})
		must(t, err)
		must(t, s.driver.Remove(s.ctx(t), other.ID))
		process.Wait(s.ctx(t)) // it ends, with any code
		s.sameTraces(t, before)
	})
	t.Run("needs a running task", func(t *testing.T) {
		dead := s.shell(t, "true")
		s.run(t, dead)
		_, err := s.driver.Exec(s.ctx(t), dead.ID, driver.Exec{Command: []string{"/bin/true"}})
		wantError(t, err, driver.ErrNotRunning)
	})
}

func terminal(t *testing.T, s *suite, id string) {
	out := newWatched()
	input, keyboard := io.Pipe()
	defer keyboard.Close()
	process, err := s.driver.Exec(s.ctx(t), id, driver.Exec{
		Command:  []string{"sh", "-c", "tty; stty size; read x; stty size; exit 5"},
		Terminal: true, Width: 101, Height: 23,
		Stdin: input, Stdout: out,
	})
	must(t, err)
	if got := out.until(t, s.ctx(t), "23 101"); !strings.Contains(got, "/dev/") {
		t.Errorf("no terminal: %q", got)
	}
	must(t, process.Resize(s.ctx(t), 132, 50))
	_, err = io.WriteString(keyboard, "go on\n")
	must(t, err)
	out.until(t, s.ctx(t), "50 132")
	if code, err := process.Wait(s.ctx(t)); err != nil || code != 5 {
		t.Errorf("got %d, %v", code, err)
	}
}

// watched is a buffer whose content can be waited for.
type watched struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

func newWatched() *watched { return &watched{changed: make(chan struct{}, 1)} }

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.text.Write(b)
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// until returns the content once it contains part.
func (w *watched) until(t *testing.T, ctx context.Context, part string) string {
	t.Helper()
	for {
		if text := w.String(); strings.Contains(text, part) {
			return text
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			t.Fatalf("no %q in %q", part, w.String())
		}
	}
}
