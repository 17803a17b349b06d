package machine

import (
	"fmt"
	"strconv"
	"strings"
)

// readPIDs is how many processes and threads there may be, and are.
func readPIDs(root root, limits limits) (amount, error) {
	var machine amount
	for _, path := range []string{"proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"} {
		text, err := root.line(path)
		if err != nil {
			return amount{}, fmt.Errorf("read the number of processes allowed: %w", err)
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return amount{}, fmt.Errorf("read the number of processes allowed: %s: %w", path, err)
		}
		if machine.total == 0 || n < machine.total {
			machine.total = n
		}
	}
	load, err := root.line("proc/loadavg")
	if err != nil {
		return amount{}, fmt.Errorf("read the number of processes: %w", err)
	}
	if machine.used, err = entities(load); err != nil {
		return amount{}, err
	}
	group, limited, err := limits.pids(root)
	if err != nil {
		return amount{}, fmt.Errorf("read the process limit of this process: %w", err)
	}
	if limited && group.total < machine.total {
		return group, nil
	}
	return machine, nil
}

// entities extracts the number of all threads from "0.50 0.40 0.30 2/431 9876".
func entities(load string) (int64, error) {
	fields := strings.Fields(load)
	if len(fields) < 4 {
		return 0, fmt.Errorf("read the number of processes: proc/loadavg is %q", load)
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the number of processes: proc/loadavg is %q: %w", load, err)
	}
	return n, nil
}
