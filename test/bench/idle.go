package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	idleSettle = 30 * time.Second // before anything is measured
	idleTime   = 60 * time.Second // over which the CPU is measured
	// ticksPerSecond is USER_HZ, the unit of CPU times in Linux on every architecture that
	// we build for.
	ticksPerSecond = 100

	workReplicas = 60
	workRest     = 2 * time.Minute // after the last replica is gone
)

// measureIdleRSS measures all processes of an idle cloud.
func measureIdleRSS(ctx context.Context, l *lab) (result, error) {
	return l.idle(ctx, "idle-rss", func(c *cloud, pid int) (total float64, notes []string, err error) {
		others, err := c.helpers(pid)
		if err != nil {
			return 0, nil, err
		}
		for _, one := range append([]int{pid}, others...) {
			m, err := memoryOf(one)
			if err != nil {
				return 0, nil, err
			}
			name, err := procName(one)
			if err != nil {
				return 0, nil, err
			}
			total += m.resident
			notes = append(notes, name+": "+m.String())
		}
		return total, notes, nil
	})
}

func procName(pid int) (string, error) {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(name)), err
}

// helpers are the other processes of the cloud: their command lines name its data folder.
func (c *cloud) helpers(pid int) (pids []int, err error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, path := range lines {
		one, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || one == pid {
			continue
		}
		if line, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(line), c.data+"/") { // it may have ended
			pids = append(pids, one)
		}
	}
	return pids, nil
}

// measureIdleCPU measures the same for a minute.
func measureIdleCPU(ctx context.Context, l *lab) (result, error) {
	return l.idle(ctx, "idle-cpu", func(_ *cloud, pid int) (float64, []string, error) {
		before, err := cpuTicks(pid)
		if err != nil {
			return 0, nil, err
		}
		began := time.Now()
		if err := sleep.For(ctx, idleTime); err != nil {
			return 0, nil, err
		}
		after, err := cpuTicks(pid)
		used := float64(after-before) / ticksPerSecond
		return 100 * used / time.Since(began).Seconds(), nil, err
	})
}

// idle lets a new cloud become idle, and then measures its one process.
func (l *lab) idle(ctx context.Context, name string, measure func(c *cloud, pid int) (float64, []string, error)) (result, error) {
	c, err := l.newCloud(ctx, name)
	if err != nil {
		return result{}, err
	}
	defer c.close()
	pid, err := c.pid()
	if err != nil {
		return result{}, err
	}
	if err := sleep.For(ctx, idleSettle); err != nil {
		return result{}, err
	}
	value, notes, err := measure(c, pid)
	return result{value: value, notes: notes}, err
}

// pid is the process that holds the cloud's data folder.
func (c *cloud) pid() (int, error) {
	data, err := os.ReadFile(filepath.Join(c.data, "lock"))
	if err != nil {
		return 0, err
	}
	var holder struct{ PID int }
	if err := json.Unmarshal(data, &holder); err != nil {
		return 0, fmt.Errorf("read who holds %s: %w", c.data, err)
	}
	return holder.PID, nil
}

// cpuTicks is the CPU time of a process so far, in user and in system mode.
func cpuTicks(pid int) (int, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name may contain anything, so count from behind it.
	fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return user + system, err
}

func megabytes(kib int) float64 { return float64(kib) * 1024 / 1e6 }

// measureBinary takes the larger of the binaries of make build-all.
func measureBinary(_ context.Context, l *lab) (result, error) {
	var r result
	for _, arch := range []string{"amd64", "arm64"} {
		info, err := os.Stat(filepath.Join(filepath.Dir(l.cloudless), "cloudless-linux-"+arch))
		if errors.Is(err, fs.ErrNotExist) {
			return result{}, fmt.Errorf("%w: run make build-all first", err)
		}
		if err != nil {
			return result{}, err
		}
		size := float64(info.Size()) / 1e6
		r.value = max(r.value, size)
		r.notes = append(r.notes, fmt.Sprintf("linux/%s: %.4g MB", arch, size))
	}
	return r, nil
}

// measureAfterWork measures the memory of one process before and after it has run replicas.
// The floor is the memory before, so that both numbers are from the same run.
func measureAfterWork(ctx context.Context, l *lab) (result, error) {
	c, err := l.newCloud(ctx, "after-work")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	pid, err := c.pid()
	if err != nil {
		return result{}, err
	}
	if err := sleep.For(ctx, idleSettle); err != nil {
		return result{}, err
	}
	before, err := memoryOf(pid)
	if err != nil {
		return result{}, err
	}
	during, err := c.comeAndGo(ctx, pid)
	if err != nil {
		return result{}, err
	}
	if err := sleep.For(ctx, workRest); err != nil {
		return result{}, err
	}
	after, err := memoryOf(pid)
	return result{value: after.resident, floor: before.resident, notes: []string{
		fmt.Sprintf("%d replicas came and went; one process is counted, which is server, agent and containerd, because shims end with their replicas", workReplicas),
		"before: " + before.String(), "with all replicas: " + during.String(), "after: " + after.String(),
	}}, err
}

// comeAndGo runs replicas, and returns when the last one is gone. Its connection is closed by then.
func (c *cloud) comeAndGo(ctx context.Context, pid int) (during memory, err error) {
	api, err := c.dial(ctx)
	if err != nil {
		return memory{}, err
	}
	defer api.Close()
	image, err := c.push(ctx, api)
	if err != nil {
		return memory{}, err
	}
	usual := workload("work", image, workReplicas)
	usual.Spec.Network = "" // as most workloads have it
	if _, err := startThis(ctx, api, usual); err != nil {
		return memory{}, err
	}
	if during, err = memoryOf(pid); err != nil {
		return memory{}, err
	}
	return during, removeWorkload(ctx, api, "work")
}

// memory is a process's memory in MB.
type memory struct{ resident, own float64 }

func memoryOf(pid int) (m memory, err error) {
	resident, err := procStatus(pid, "VmRSS")
	if err != nil {
		return memory{}, err
	}
	own, err := procStatus(pid, "RssAnon")
	return memory{megabytes(resident), megabytes(own)}, err
}

func (m memory) String() string {
	return fmt.Sprintf("%.4g MB resident, of which %.4g are the process's own and the rest are mapped files", m.resident, m.own)
}
