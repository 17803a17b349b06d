package machine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Others returns a function that says which share of the machine's CPUs other processes have used since its last call. The
// first call knows nothing yet and returns 1.
func (m *Machine) Others() func() (float64, error) {
	var mu sync.Mutex
	var before struct {
		all cpuTimes
		own uint64
	}
	return func() (float64, error) {
		mu.Lock()
		defer mu.Unlock()
		all, err := readCPUTimes(m.root)
		if err != nil {
			return 0, err
		}
		own, err := readOwnCPUTime(m.root)
		if err != nil {
			return 0, err
		}
		last := before
		before.all, before.own = all, own
		if last.all.total == 0 || all.total <= last.all.total {
			return 1, nil
		}
		busy := int64(all.busy-last.all.busy) - int64(own-last.own)
		return min(1, max(0, float64(busy)/float64(all.total-last.all.total))), nil
	}
}

// readOwnCPUTime is how long this process was busy, in the unit of proc/stat.
func readOwnCPUTime(root root) (uint64, error) {
	text, err := root.line("proc/self/stat")
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of this process: %w", err)
	}
	// The name of the program is in brackets, and may contain spaces. The fields behind it begin with the third.
	_, rest, _ := cutLast(text, ")")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("read the CPU time of this process: proc/self/stat is too short")
	}
	var sum uint64
	for _, field := range fields[11:13] { // user and system time
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of this process: proc/self/stat: %w", err)
		}
		sum += n
	}
	return sum, nil
}

func cutLast(text, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[:i], text[i+len(separator):], true
	}
	return text, "", false
}
