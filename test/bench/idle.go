package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	idleSettle = 30 * time.Second // before anything is measured
	idleTime   = 60 * time.Second // over which the CPU is measured
	// ticksPerSecond is USER_HZ, the unit of CPU times in Linux on every architecture that
	// we build for.
	ticksPerSecond = 100
)

// measureIdleRSS measures a whole idle cloud in one process.
func measureIdleRSS(ctx context.Context, l *lab) (result, error) {
	return l.idle(ctx, "idle-rss", func(pid int) (float64, []string, error) {
		m, err := memoryOf(pid)
		return m.resident, []string{m.String()}, err
	})
}

// measureIdleCPU measures the same for a minute.
func measureIdleCPU(ctx context.Context, l *lab) (result, error) {
	return l.idle(ctx, "idle-cpu", func(pid int) (float64, []string, error) {
		before, err := cpuTicks(pid)
		if err != nil {
			return 0, nil, err
		}
		began := time.Now()
		if err := sleep(ctx, idleTime); err != nil {
			return 0, nil, err
		}
		after, err := cpuTicks(pid)
		used := float64(after-before) / ticksPerSecond
		return 100 * used / time.Since(began).Seconds(), nil, err
	})
}

// idle lets a new cloud become idle, and then measures its one process.
func (l *lab) idle(ctx context.Context, name string, measure func(pid int) (float64, []string, error)) (result, error) {
	c, err := l.newCloud(ctx, name)
	if err != nil {
		return result{}, err
	}
	defer c.close()
	pid, err := c.pid()
	if err != nil {
		return result{}, err
	}
	if err := sleep(ctx, idleSettle); err != nil {
		return result{}, err
	}
	value, notes, err := measure(pid)
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

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
