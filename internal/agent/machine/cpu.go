package machine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// readCPUs is how much CPU this process may use, in thousandths: the CPUs of its affinity,
// or its quota if that is less.
func readCPUs(root root, limits limits) (int64, error) {
	status, err := root.read("proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read the CPUs of this process: %w", err)
	}
	list, found := field(status, "Cpus_allowed_list:")
	if !found {
		return 0, errors.New("read the CPUs of this process: proc/self/status has no Cpus_allowed_list")
	}
	count, err := countCPUs(list)
	if err != nil {
		return 0, fmt.Errorf("read the CPUs of this process: %w", err)
	}
	quota, err := limits.cpuQuota(root)
	if err != nil {
		return 0, fmt.Errorf("read the CPU quota of this process: %w", err)
	}
	return min(count*1000, quota), nil
}

// countCPUs counts a list such as "0-3,8".
func countCPUs(list string) (int64, error) {
	var count int64
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("list of CPUs %q: %w", list, err)
		}
		to, err := strconv.ParseUint(last, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("list of CPUs %q: %w", list, err)
		}
		if to < from {
			return 0, fmt.Errorf("list of CPUs %q: %s runs backwards", list, part)
		}
		count += int64(to-from) + 1
	}
	return count, nil
}

// cpuTimes is how long all CPUs together were busy, out of how long, since boot. The unit
// cancels out.
type cpuTimes struct {
	busy, total uint64
	cpus        int64
}

// readCPUTimes reads the summary line of proc/stat: user, nice, system, idle, iowait, irq,
// softirq, steal; guest is within user.
func readCPUTimes(root root) (cpuTimes, error) {
	stat, err := root.read("proc/stat")
	if err != nil {
		return cpuTimes{}, fmt.Errorf("read the use of CPUs: %w", err)
	}
	var times cpuTimes
	for line := range bytes.Lines(stat) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "cpu") {
			break
		}
		if fields[0] != "cpu" {
			times.cpus++
			continue
		}
		for i, text := range fields[1:min(len(fields), 9)] {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return cpuTimes{}, fmt.Errorf("read the use of CPUs: proc/stat: %w", err)
			}
			times.total += n
			if i != 3 && i != 4 { // idle and iowait
				times.busy += n
			}
		}
	}
	if times.total == 0 {
		return cpuTimes{}, errors.New("read the use of CPUs: proc/stat has no summary")
	}
	return times, nil
}

// since is the average use between two readings, in thousandths of a CPU.
func (t cpuTimes) since(before cpuTimes) int64 {
	// iowait and steal sometimes run backwards.
	if t.total <= before.total || t.busy <= before.busy {
		return 0
	}
	share := float64(t.busy-before.busy) / float64(t.total-before.total)
	return int64(math.Round(min(share, 1) * float64(t.cpus) * 1000))
}
