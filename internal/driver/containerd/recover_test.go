package containerd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// A process started by exec ends with its caller, even after kill -9, and leaves nothing
// behind. The task itself goes on.
func TestExecsEndWithAKilledCaller(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	task := counter(t, ref, "host")
	// It fills its pipe, which has no reader any more.
	runAndKill(t, opts, task, "sh", "-c", "while true; do echo left over; done")
	if len(leftOver(t, opts)) != 1 {
		t.Fatalf("kill -9 has ended the exec by itself: %v", processes(t, opts))
	}
	pipes, err := filepath.Glob(filepath.Join(opts.fifoDir(), "*", "*", "*"+stdoutPipe))
	if err != nil || len(pipes) != 1 {
		t.Fatalf("pipes: %v, %v", pipes, err)
	}

	d = mustOpen(t, opts)
	defer d.Close()
	if left := leftOver(t, opts); len(left) != 0 {
		t.Errorf("still there: %v", left)
	}
	d.work.Wait() // until the shim has forgotten it
	exec := strings.TrimSuffix(filepath.Base(pipes[0]), stdoutPipe)
	_, err = d.client.TaskService().Get(t.Context(), &tasks.GetRequest{ContainerID: task.ID, ExecID: exec})
	if !errdefs.IsNotFound(native(err)) {
		t.Errorf("the shim still knows of it: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(pipes[0])); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its pipes: %v", err)
	}
	if all, err := d.List(t.Context()); err != nil || len(all) != 1 || all[0].State != driver.StateRunning {
		t.Errorf("the task is %+v, %v", all, err)
	}
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(opts.fifoDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("left after the task: %v, %v", left, err)
	}
}

// The caller was killed while the shim waited for a reader: the process runs, but its start
// has failed and the shim may not know it.
func TestStartingExecEndsWithAKilledCaller(t *testing.T) {
	for name, outside := range map[string]bool{"embedded": false, "outside": true} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(t)
			if outside {
				startOutside(t, &opts)
			}
			t.Cleanup(func() { mustPurge(t, opts) })
			d := mustOpen(t, opts)
			ref, archive := drivertest.Image(t)
			importArchive(t, d, archive)
			task := counter(t, ref, "host")
			if _, err := d.Start(t.Context(), task); err != nil {
				t.Fatal(err)
			}
			startUnread(t, d, task.ID, "sh", "-c", "sleep 100000; echo left over")
			// The shell may appear twice, while it forks.
			if left := leftOver(t, opts); len(left) == 0 {
				t.Fatal("want a process whose start has failed, got none")
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = mustOpen(t, opts)
			defer d.Close()
			if left := leftOver(t, opts); len(left) != 0 {
				t.Errorf("still there: %v", left)
			}
			d.work.Wait()
			if left, err := filepath.Glob(filepath.Join(opts.pipeDir(task.ID), "*")); err != nil || len(left) > 0 {
				t.Errorf("its pipes: %v, %v", left, err)
			}
			if all, err := d.List(t.Context()); err != nil || len(all) != 1 || all[0].State != driver.StateRunning {
				t.Errorf("the task is %+v, %v", all, err)
			}
		})
	}
}

// startUnread starts a process whose pipes have no reader, and gives up.
func startUnread(t *testing.T, d *Driver, task string, command ...string) {
	t.Helper()
	container, err := d.container(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := d.execSpec(t.Context(), container, driver.Exec{Command: command})
	if err != nil {
		t.Fatal(err)
	}
	description, err := typeurl.MarshalAnyToProto(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(d.opts.pipeDir(task), "unread")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "exec-unread"+stdoutPipe)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	service := d.client.TaskService()
	_, err = service.Exec(t.Context(), &tasks.ExecProcessRequest{ContainerID: task, ExecID: "exec-unread", Stdout: pipe, Spec: description})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan error, 1)
	go func() {
		_, err := service.Start(ctx, &tasks.StartRequest{ContainerID: task, ExecID: "exec-unread"})
		started <- err
	}()
	for len(leftOver(t, d.opts)) == 0 {
		select {
		case err := <-started:
			t.Fatalf("the start has ended before there was a process: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-started; err == nil {
		t.Fatal("the start has succeeded without a reader")
	}
}

// leftOver are the processes of the test that exec has started.
func leftOver(t *testing.T, opts Options) (found []string) {
	t.Helper()
	for _, line := range processes(t, opts) {
		if strings.Contains(line, "left over") && !strings.Contains(line, "runc") {
			found = append(found, line)
		}
	}
	return found
}

// After a crash right after a start, the record is missing. The task still counts as
// started, even when its shim is killed later.
func TestCrashBeforeRecord(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	task := counter(t, ref, "unrecorded")
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.records.remove(task.ID); err != nil {
		t.Fatal(err)
	}
	d = mustOpen(t, opts)
	defer d.Close()
	killOwnShim(t, opts, task.ID)
	exit, err := d.Wait(t.Context(), task.ID)
	if err != nil || !strings.Contains(exit.Reason, "supervisor was killed") {
		t.Errorf("got %+v, %v", exit, err)
	}
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
}

// A daemon that is killed right after it has started a shim has not stored its address.
// Removing the task still leaves nothing of it.
func TestCrashBeforeTheShimIsKnown(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	task := counter(t, ref, "unknown")
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(opts.stateDir(), "io.containerd.runtime.v2.task", opts.namespace(), task.ID)
	if err := os.Remove(filepath.Join(bundle, "bootstrap.json")); err != nil {
		t.Fatal(err)
	}
	d = mustOpen(t, opts)
	defer d.Close()
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	for _, process := range processes(t, opts) {
		t.Errorf("left: %s", process)
	}
	if _, err := os.Stat(d.shimSocket(task.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its socket: %v", err)
	}
}

// A crash at the end of a removal leaves only the container. The exit is lost, and Wait
// says so instead of blocking.
func TestCrashAtTheEndOfARemoval(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	defer d.Close()
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	task := counter(t, ref, "half")
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if err := d.end(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.records.remove(task.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context(), task.ID, "SIGTERM", time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := d.Wait(t.Context(), task.ID); !errors.Is(err, driver.ErrNotRunning) {
		t.Errorf("waiting for what is left: %v", err)
	}
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
}
