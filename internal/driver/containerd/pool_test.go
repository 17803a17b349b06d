package containerd

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// score is the oom_score_adj of a process.
func score(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// A container without a limit that eats all memory of the containers is killed. Its neighbour and this process are not.
// The scores say so to the kernel: that of a task is its own, and that of the shim is next to this process.
func TestContainersCannotTakeTheWholeMachine(t *testing.T) {
	const limit = 96 << 20
	opts := testOptions(t)
	opts.MemoryLimit = limit
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	defer d.Close()
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	start := func(id string, score int, script string) (driver.Task, driver.Status) {
		task := counter(t, ref, id)
		task.Command, task.Args = []string{"sh", "-c", script}, nil
		task.Resources.OOMScore = score
		status, err := d.Start(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		return task, status
	}

	quiet, running := start("quiet", 123, "echo ready; trap 'exit 6' TERM; while true; do sleep 0.05; done")
	waitForLine(t, quiet, "ready")
	if got := score(t, running.PID); got != "123" {
		t.Errorf("the program has the score %s", got)
	}
	shim, err := parentOf(running.PID)
	if err != nil {
		t.Fatal(err)
	}
	if got, own := score(t, shim), score(t, os.Getpid()); got != own && got != plusOne(t, own) {
		t.Errorf("its shim has the score %s, and this process %s", got, own)
	}
	var out bytes.Buffer
	process, err := d.Exec(t.Context(), "quiet", driver.Exec{
		Command: []string{"sh", "-c", "cat /proc/self/oom_score_adj /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null"}, Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.Wait(t.Context()); err != nil || out.String() != "123\n"+strconv.Itoa(limit)+"\n" {
		t.Errorf("a further process sees its score and its limit as %q, %v", out.String(), err)
	}

	start("hungry", 900, "exec tail /dev/zero")
	exit, err := d.Wait(t.Context(), "hungry")
	if err != nil || exit.Code != 128+9 {
		t.Errorf("the hungry task ended with %+v, %v", exit, err)
	}
	pool, err := d.Pool()
	if err != nil || pool.Limit != limit || pool.Used <= 0 || pool.Used >= limit {
		t.Errorf("the containers share %+v, %v", pool, err)
	}
	if err := d.Stop(t.Context(), "quiet", "SIGTERM", time.Minute); err != nil {
		t.Fatal(err)
	}
	if exit, err := d.Wait(t.Context(), "quiet"); err != nil || exit.Code != 6 {
		t.Errorf("the other task ended with %+v, %v", exit, err)
	}
}

func plusOne(t *testing.T, score string) string {
	t.Helper()
	n, err := strconv.Atoi(score)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(n + 1)
}

// A machine with many CPUs runs more than one thread of its containers while other programs are busy.
func TestContainersTogetherHaveAShareOfEachCPU(t *testing.T) {
	opts := testOptions(t)
	opts.MemoryLimit = 96 << 20
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	defer d.Close()
	file, want := "cpu.shares", 1024*runtime.NumCPU()
	if d.cgroups.unified != "" {
		file, want = "cpu.weight", 100*runtime.NumCPU()
	}
	text, err := os.ReadFile(filepath.Join(d.cgroups.dir("cpu", opts.cgroupParent()), file))
	if err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(want) {
		t.Errorf("%s is %q, %v; want %d", file, text, err, want)
	}
}

// A limit below what the containers use would make the kernel kill them, so it is not set.
func TestLimitBelowTheUseIsNotSet(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	defer d.Close()
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	task := counter(t, ref, "running")
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, task, "line 5")
	if err := d.cgroups.limitMemory(opts.cgroupParent(), 4096); err == nil || !strings.Contains(err.Error(), "use") {
		t.Errorf("limiting to one page: %v", err)
	}
	if pool, err := d.Pool(); err != nil || pool.Limit != 0 || pool.Used == 0 {
		t.Errorf("the containers share %+v, %v", pool, err)
	}
}
