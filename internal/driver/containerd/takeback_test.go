package containerd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// What exec has started ends with the process that asked for it, also after
// kill -9, and nothing is left of it. The task itself goes on.
func TestKilledProcessTakesItsExecsAlong(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	task := counter(t, ref, "host")
	// It fills its pipe, which nobody reads any more.
	runAndKill(t, opts, task, "sh", "-c", "while true; do echo left over; done")
	running := func() (execs []string) {
		for _, line := range processes(t, opts) {
			if strings.Contains(line, "left over") {
				execs = append(execs, line)
			}
		}
		return execs
	}
	if len(running()) != 1 {
		t.Fatalf("kill -9 has ended the exec by itself: %v", processes(t, opts))
	}
	pipes, err := filepath.Glob(filepath.Join(opts.fifoDir(), "*", "*", "*"+stdoutPipe))
	if err != nil || len(pipes) != 1 {
		t.Fatalf("pipes: %v, %v", pipes, err)
	}

	d = mustOpen(t, opts)
	defer d.Close()
	if got := running(); len(got) != 0 {
		t.Errorf("still there: %v", got)
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

// A crash right after a start keeps the record from being written. The task is
// no less a started one, also when its shim is killed later.
func TestCrashBeforeRecord(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	task := counter(t, ref, "unrecorded")
	if err := d.Start(t.Context(), task); err != nil {
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
