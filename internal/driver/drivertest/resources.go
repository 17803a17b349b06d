package drivertest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
)

// eat allocates more memory than the tests allow.
const eat = `x=$(dd if=/dev/zero bs=1M count=400 2>/dev/null | tr '\0' x); echo survived`

func resources(t *testing.T, s *suite) {
	t.Run("limits are seen from inside", func(t *testing.T) {
		task := s.shell(t, `
			cd /sys/fs/cgroup
			if [ -e memory.max ]; then cat memory.max; cat cpu.max; cat pids.max
			else cat memory/memory.limit_in_bytes; echo $(cat cpu/cpu.cfs_quota_us) $(cat cpu/cpu.cfs_period_us); cat pids/pids.max
			fi`)
		task.Resources = driver.Resources{CPURequest: 250, CPULimit: 1500, MemoryLimit: 64 << 20, PIDLimit: 77}
		if got, want := s.output(t, task), "67108864\n150000 100000\n77"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("the view of limits cannot be written", func(t *testing.T) {
		task := s.shell(t, `for f in $(ls -d /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null); do (echo max >$f) 2>/dev/null && echo wrote; done; true`)
		if got := s.output(t, task); got != "" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("too many processes are refused", func(t *testing.T) {
		task := s.shell(t, `for i in $(seq 40); do sleep 1000 & done`)
		task.Resources.PIDLimit = 16 // the threads of runc's own init count, too, and are more on a busy machine
		if exit := s.run(t, task); exit.Code == 0 {
			t.Errorf("got %+v, want a failure to fork", exit)
		}
	})
	t.Run("running out of memory is reported", func(t *testing.T) {
		task := s.shell(t, "exec tail /dev/zero")
		task.Resources.MemoryLimit = 16 << 20
		exit := s.run(t, task)
		if !exit.OOMKilled || exit.Code != 128+9 {
			t.Errorf("got %+v, want OOM and 137", exit)
		}
		status, _ := s.status(t, task.ID)
		if status.Exit == nil || !status.Exit.OOMKilled {
			t.Errorf("listed as %+v with exit %+v", status, status.Exit)
		}
	})
	t.Run("a failure after a child ran out of memory says so", func(t *testing.T) {
		task := s.shell(t, `(`+eat+`); exit 3`)
		task.Resources.MemoryLimit = 16 << 20
		if exit := s.run(t, task); exit.Code != 3 || exit.OOMKilled || !exit.ChildOOMKilled {
			t.Errorf("got %+v, want 3 and that a process was killed for memory", exit)
		}
	})
	t.Run("a child that ran out of memory is not the task", func(t *testing.T) {
		task := s.shell(t, `(`+eat+`); echo child $?; trap 'exit 0' TERM; echo ready; while true; do sleep 0.05; done`)
		task.Resources.MemoryLimit = 16 << 20
		s.start(t, task)
		if lines := s.logUntil(t, task, "ready"); strings.Contains(strings.Join(lines, "\n"), "survived") {
			t.Fatalf("the child was not killed: %q", lines)
		}
		stats, err := s.driver.Stats(s.ctx(t), task.ID)
		must(t, err)
		if stats.OOMKills == 0 {
			t.Errorf("the kill is not in %+v", stats)
		}
		must(t, s.driver.Stop(s.ctx(t), task.ID, "SIGKILL", 0))
		exit, err := s.driver.Wait(s.ctx(t), task.ID)
		must(t, err)
		if exit.OOMKilled || exit.Code != 128+9 {
			t.Errorf("got %+v, want 137 without OOM", exit)
		}
	})
	t.Run("use is measured", func(t *testing.T) { measured(t, s) })
}

func measured(t *testing.T, s *suite) {
	task := s.shell(t, `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo ready; exec sleep 1000`)
	task.Resources.MemoryLimit = 64 << 20
	task.Resources.CPULimit = 500
	s.start(t, task)
	s.logUntil(t, task, "ready")
	stats, err := s.driver.Stats(s.ctx(t), task.ID)
	must(t, err)
	if stats.CPUNanos < uint64(10*time.Millisecond) {
		t.Errorf("CPU time: %d ns", stats.CPUNanos)
	}
	if stats.MemoryBytes == 0 || stats.MemoryBytes > 64<<20 {
		t.Errorf("memory: %d bytes", stats.MemoryBytes)
	}
	if stats.MemoryLimit != 64<<20 {
		t.Errorf("memory limit: %d bytes", stats.MemoryLimit)
	}
	if stats.PIDs != 1 {
		t.Errorf("processes: %d", stats.PIDs)
	}
	if age := time.Since(stats.At); age < 0 || age > hangs {
		t.Errorf("measured at %v", stats.At)
	}
	must(t, s.driver.Remove(s.ctx(t), task.ID))
	if _, err := s.driver.Stats(s.ctx(t), task.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("after removal: %v", err)
	}
}
