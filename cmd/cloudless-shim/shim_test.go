package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	eventsapi "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	taskstate "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/logfile"
)

func TestAllOutputIsOnDiskWhenWaitReturns(t *testing.T) {
	const count = 1_000_000
	c := newContainer(t, fmt.Sprintf("seq 1 %d; exit 7", count), nil).run()
	c.wait(7)
	next := 1
	c.eachLine(t.Context(), logfile.Options{Tail: -1}, func(line string) bool {
		if want := fmt.Sprintf("stdout: %d", next); line != want {
			t.Fatalf("got line %q, want %q", line, want)
		}
		next++
		return true
	})
	if next != count+1 {
		t.Errorf("%d lines are on disk, want %d", next-1, count)
	}
}

func TestExitEventComesAfterTheOutput(t *testing.T) {
	const count = 100_000
	c := newContainer(t, fmt.Sprintf("seq 1 %d; exit 3", count), nil)
	c.events.onExit = func(*eventsapi.TaskExit) {
		if got := len(c.lines()); got != count {
			t.Errorf("%d lines are on disk at the event, want %d", got, count)
		}
	}
	c.run()
	if e := <-c.events.exits; e.ExitStatus != 3 || e.ID != c.id() {
		t.Errorf("got %v", e)
	}
	c.wait(3)
}

func TestLongLine(t *testing.T) {
	const size = 5_000_000
	c := newContainer(t, fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; echo; echo end`, size), nil).run()
	c.wait(0)
	lines := c.lines()
	if len(lines) != 2 || lines[0] != "stdout: "+strings.Repeat("x", size) || lines[1] != "stdout: end" {
		t.Errorf("got %d lines, the first with %d bytes", len(lines), len(lines[0]))
	}
}

func TestLogDistinguishesStreams(t *testing.T) {
	c := newContainer(t, "echo out; echo err >&2; printf 'no newline'; exit 42", nil).run()
	c.wait(42)
	got := c.lines()
	slices.Sort(got) // the order of the streams is not kept
	want := []string{"stderr: err", "stdout: no newline", "stdout: out"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Clients see the log's URI, never the pipe behind it.
func TestClientsSeeTheLogURI(t *testing.T) {
	c := newContainer(t, "exec sleep 1000", nil).run()
	state, err := c.State(c.ctx, &taskapi.StateRequest{ID: c.id()})
	c.must(err)
	if state.Stdout != c.uri || state.Stderr != c.uri {
		t.Errorf("the state names %q and %q, want %q", state.Stdout, state.Stderr, c.uri)
	}
	if e := <-c.events.created; e.IO.Stdout != c.uri || e.IO.Stderr != c.uri {
		t.Errorf("the event names %q and %q, want %q", e.IO.Stdout, e.IO.Stderr, c.uri)
	}
}

func TestSecondCreateIsRefused(t *testing.T) {
	c := newContainer(t, "read x </go; echo alive", nil)
	start := c.fifo("go")
	c.run()
	_, err := c.Create(c.ctx, &taskapi.CreateTaskRequest{ID: c.id(), Bundle: c.bundle, Stdout: c.uri, Stderr: c.uri})
	if err == nil {
		t.Error("a second container of the same id was created")
	}
	fmt.Fprintln(start)
	c.wait(0)
	if got := c.lines(); !slices.Equal(got, []string{"stdout: alive"}) {
		t.Errorf("got %q", got)
	}
}

func TestFailedCreateCanBeRetried(t *testing.T) {
	c := newContainer(t, "echo fine", nil)
	config := filepath.Join(c.bundle, "config.json")
	good, err := os.ReadFile(config)
	c.must(err)
	c.must(os.WriteFile(config, []byte(strings.Replace(string(good), "/bin/sh", "/bin/missing", 1)), 0o600))
	if _, err := c.Create(c.ctx, &taskapi.CreateTaskRequest{ID: c.id(), Bundle: c.bundle, Stdout: c.uri, Stderr: c.uri}); err == nil {
		t.Error("a program that does not exist was created")
	}
	c.must(os.WriteFile(config, good, 0o600))
	c.run().wait(0)
	if got := c.lines(); !slices.Equal(got, []string{"stdout: fine"}) {
		t.Errorf("got %q", got)
	}
}

// A child that outlives the container's first process, in a container without process
// namespace, does not delay its end.
func TestOrphanedChildDoesNotDelayTheExit(t *testing.T) {
	c := newContainer(t, "setsid sleep 1000 & echo started; exit 3", func(s *specs.Spec) {
		s.Linux.Namespaces = s.Linux.Namespaces[1:]
	}).run()
	c.wait(3)
	if got := c.lines(); !slices.Equal(got, []string{"stdout: started"}) {
		t.Errorf("got %q", got)
	}
}

// A process outside the container that keeps its output open delays the end only for a
// limited time, and its output is still logged.
func TestPipeHeldOpenByAnotherProcess(t *testing.T) {
	c := newContainer(t, "echo started; exec sleep 1000", nil).run()
	c.waitForLine("stdout: started")
	held, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", c.pid), os.O_WRONLY, 0)
	c.must(err)
	defer held.Close()
	c.kill()
	c.wait(137)
	fmt.Fprintln(held, "late")
	c.waitForLine("stdout: late")
	held.Close()
	resp, err := c.Delete(c.ctx, &taskapi.DeleteRequest{ID: c.id()})
	c.must(err)
	if resp.ExitStatus != 137 {
		t.Errorf("deleted with status %d", resp.ExitStatus)
	}
}

// A full disk never blocks the container, and the log says what is missing.
func TestFullDisk(t *testing.T) {
	c := newContainer(t, "seq 1 1000000; echo >/written; read x </go; echo after", nil)
	written, proceed := c.fifo("written"), c.fifo("go")
	c.must(os.Mkdir(c.logs, 0o755))
	// When the container has written everything, there is room for the rest in the pipe:
	// timestamps make a log of short lines much longer.
	c.must(unix.Mount("tmpfs", c.logs, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { unix.Unmount(c.logs, unix.MNT_DETACH) })
	ballast := filepath.Join(c.logs, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 16<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	c.run()
	if _, err := written.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	c.must(os.Remove(ballast))
	fmt.Fprintln(proceed)
	c.wait(0)
	lines := c.lines()
	if last := lines[len(lines)-1]; last != "stdout: after" {
		t.Errorf("the last line is %q", last)
	}
	lost := func(line string) bool {
		return strings.Contains(line, "of output were lost here: no space left on device")
	}
	if !slices.ContainsFunc(lines, lost) {
		t.Errorf("none of the %d lines says that output was lost", len(lines))
	}
	c.must(unix.Unmount(c.logs, unix.MNT_DETACH))
}

// containerd crashes, and the container continues and exits before it is back: no line and
// no exit code is lost.
func TestNothingIsLostWhileContainerdIsDown(t *testing.T) {
	c := newContainer(t, `while read line && [ "$line" != end ]; do echo "$line"; done </in; exit 5`, nil)
	in := c.fifo("in")
	c.run()
	for i := range 100 {
		fmt.Fprintln(in, i)
	}
	c.waitForLine("stdout: 99")
	c.disconnect()
	for i := range 100 {
		fmt.Fprintln(in, 100+i)
	}
	fmt.Fprintln(in, "end")
	waitForEnd(t, int(c.pid))
	c.connect()

	pids, err := c.Pids(c.ctx, &taskapi.PidsRequest{ID: c.id()})
	c.must(err)
	if len(pids.Processes) != 1 || pids.Processes[0].Pid != c.pid {
		t.Errorf("the processes are %v, want the first one, %d: without it containerd drops the shim", pids.Processes, c.pid)
	}
	c.wait(5)
	state, err := c.State(c.ctx, &taskapi.StateRequest{ID: c.id()})
	c.must(err)
	if state.Status != taskstate.Status_STOPPED || state.ExitStatus != 5 {
		t.Errorf("the state is %v with status %d", state.Status, state.ExitStatus)
	}
	lines := c.lines()
	for i, line := range lines {
		if want := fmt.Sprintf("stdout: %d", i); line != want {
			t.Fatalf("got line %q, want %q", line, want)
		}
	}
	if len(lines) != 200 {
		t.Errorf("got %d lines, want 200", len(lines))
	}
}

// A killed shim leaves a running container, its runc state, its cgroup, and a socket. The
// delete command, which containerd runs when the connection breaks, removes all of that but
// the socket.
func TestKilledShim(t *testing.T) {
	c := newContainer(t, "echo before; exec sleep 1000", nil).run()
	c.waitForLine("stdout: before")
	c.must(unix.Kill(c.shimPID, unix.SIGKILL))
	waitForEnd(t, c.shimPID)
	c.must(c.command("delete").Run())
	waitForEnd(t, int(c.pid))
	if got := c.lines(); !slices.Equal(got, []string{"stdout: before"}) {
		t.Errorf("got %q", got)
	}
	left, err := filepath.Glob(filepath.Join(c.dir, "runc", namespace, "*"))
	c.must(err)
	if len(left) != 0 {
		t.Errorf("runc still has %v", left)
	}
	for _, cgroups := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
		left, err := filepath.Glob(cgroups + "/cloudless-shim-test-" + c.id())
		c.must(err)
		if len(left) != 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	}
	if _, err := os.Stat(c.address); err != nil {
		t.Errorf("the socket: %v; if it is removed now, the driver need not", err)
	}
}

func TestTerminalIsLogged(t *testing.T) {
	c := newContainer(t, "tty; echo err >&2", func(s *specs.Spec) { s.Process.Terminal = true })
	c.create(true)
	_, err := c.Start(c.ctx, &taskapi.StartRequest{ID: c.id()})
	c.must(err)
	c.wait(0)
	want := []string{"stdout: /dev/pts/0\r", "stdout: err\r"}
	if got := c.lines(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Further processes do not use the log: their streams are the client's own pipes, with and
// without a terminal.
func TestExecBehavesAsInTheStockShim(t *testing.T) {
	c := newContainer(t, "exec sleep 1000", nil).run()
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal=%v", terminal), func(t *testing.T) {
			code, out := c.exec(t, "tty; echo hello; exit 9", terminal)
			want := "not a tty\nhello\n"
			if terminal {
				want = "/dev/pts/0\r\nhello\r\n"
			}
			if code != 9 || out != want {
				t.Errorf("got %d and %q, want 9 and %q", code, out, want)
			}
		})
	}
	if got := c.lines(); len(got) != 0 {
		t.Errorf("logged %q", got)
	}
}

// exec runs a script in the container and returns its exit code and output.
func (c *container) exec(t *testing.T, script string, terminal bool) (code uint32, out string) {
	t.Helper()
	id := fmt.Sprintf("exec-%v", terminal)
	process, err := typeurl.MarshalAnyToProto(&specs.Process{
		Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/", Terminal: terminal,
	})
	c.must(err)
	request := &taskapi.ExecProcessRequest{ID: c.id(), ExecID: id, Terminal: terminal, Spec: process}
	for _, path := range []*string{&request.Stdin, &request.Stdout, &request.Stderr} {
		*path = filepath.Join(t.TempDir(), "fifo")
		c.must(unix.Mkfifo(*path, 0o600))
	}
	output := make(chan string, 1)
	go func() {
		f, err := os.Open(request.Stdout)
		if err != nil {
			output <- err.Error()
			return
		}
		defer f.Close()
		b, _ := io.ReadAll(f)
		output <- string(b)
	}()
	stdin, err := os.OpenFile(request.Stdin, os.O_RDWR, 0)
	c.must(err)
	defer stdin.Close()
	stderr, err := os.OpenFile(request.Stderr, os.O_RDWR, 0)
	c.must(err)
	defer stderr.Close()
	_, err = c.Exec(c.ctx, request)
	c.must(err)
	_, err = c.Start(c.ctx, &taskapi.StartRequest{ID: c.id(), ExecID: id})
	c.must(err)
	resp, err := c.Wait(c.ctx, &taskapi.WaitRequest{ID: c.id(), ExecID: id})
	c.must(err)
	_, err = c.Delete(c.ctx, &taskapi.DeleteRequest{ID: c.id(), ExecID: id})
	c.must(err)
	return resp.ExitStatus, <-output
}

// After Delete and Shutdown nothing is left of the shim.
func TestDeleteAndShutdownLeaveNothingBehind(t *testing.T) {
	c := newContainer(t, "echo done", nil).run()
	c.wait(0)
	_, err := c.Delete(c.ctx, &taskapi.DeleteRequest{ID: c.id()})
	c.must(err)
	_, _ = c.Shutdown(c.ctx, &taskapi.ShutdownRequest{ID: c.id()}) // the answer may be lost with the shim
	waitForEnd(t, c.shimPID)
	if _, err := os.Stat(c.address); err == nil {
		t.Errorf("the socket %s is left", c.address)
	}
}

// This test only prints the resident memory. The benchmark enforces its limit.
func TestShimIsSmall(t *testing.T) {
	c := newContainer(t, "echo up; exec sleep 1000", nil).run()
	c.waitForLine("stdout: up")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.shimPID))
	c.must(err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "Rss") {
			t.Log(strings.TrimSpace(line))
		}
	}
	info, err := os.Stat(program)
	c.must(err)
	t.Logf("program: %d bytes", info.Size())
	if limit := int64(12 << 20); info.Size() > limit {
		t.Errorf("the program has %d bytes, more than %d: check what it links", info.Size(), limit)
	}
}
