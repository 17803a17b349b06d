package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	workReplicas = 60
	workRest     = 2 * time.Minute // after the last replica is gone
)

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
