package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const shimTimes = 9

// measureShim compares the parents of containers' first processes: the shim is all that
// runs for a single container.
func measureShim(ctx context.Context, l *lab) (_ result, err error) {
	c, err := l.newStage(ctx, "shim")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	for n := range shimTimes {
		if _, err := startWorkload(ctx, c.api, fmt.Sprintf("shim-%d", n), c.image); err != nil {
			return result{}, err
		}
	}
	stock, err := c.openStock(ctx)
	if err != nil {
		return result{}, err
	}
	defer stock.close()
	var theirs []int
	for n := range shimTimes {
		task, remove, startErr := stock.start(ctx, fmt.Sprintf("shim-%d", n))
		if startErr != nil {
			return result{}, startErr
		}
		defer func() { err = errors.Join(err, remove()) }()
		theirs = append(theirs, int(task.Pid()))
	}
	replicas, err := c.api.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{})
	if err != nil {
		return result{}, err
	}
	var ours []int
	for _, r := range replicas.GetItems() {
		ours = append(ours, int(r.GetStatus().GetPid()))
	}
	own, err := parentsRSS(ours)
	if err != nil {
		return result{}, err
	}
	floor, err := parentsRSS(theirs)
	if err != nil {
		return result{}, err
	}
	return result{
		value: own.median(), floor: floor.median(),
		notes: []string{own.spread("own shim"), floor.spread("stock shim")},
	}, nil
}

// parentsRSS is the resident memory of the processes' parents in megabytes.
func parentsRSS(pids []int) (sample, error) {
	var all sample
	for _, pid := range pids {
		parent, err := procStatus(pid, "PPid")
		if err != nil {
			return nil, err
		}
		rss, err := procStatus(parent, "VmRSS")
		if err != nil {
			return nil, err
		}
		all = append(all, float64(rss)*1024/1e6)
	}
	return all, nil
}

// procStatus reads a number of /proc/PID/status; sizes are in KiB there.
func procStatus(pid int, field string) (int, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name == field {
			return strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(value, "kB")))
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}
