package machine

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/cloudless/cloudless/internal/agent/pressure"
)

// readMemory is the machine's memory, or that of our cgroup if it is smaller.
func readMemory(root root, limits limits) (amount, error) {
	info, err := root.read("proc/meminfo")
	if err != nil {
		return amount{}, fmt.Errorf("read the memory of this machine: %w", err)
	}
	total, err := kibibytes(info, "MemTotal:")
	if err != nil {
		return amount{}, err
	}
	available, err := kibibytes(info, "MemAvailable:")
	if err != nil {
		return amount{}, err
	}
	machine := amount{total: total, used: total - available}
	group, limited, err := limits.memory(root)
	if err != nil {
		return amount{}, fmt.Errorf("read the memory limit of this process: %w", err)
	}
	if limited && group.total < machine.total {
		return group, nil
	}
	return machine, nil
}

// Memory is the memory that this process and its replicas share, and the share of stalled time in percent.
func (m *Machine) Memory() (room pressure.Room, stalled float64, err error) {
	memory, err := readMemory(m.root, m.limits)
	if err != nil {
		return pressure.Room{}, 0, err
	}
	file, err := m.root.read("proc/pressure/memory")
	if err == nil { // a kernel may not have it
		stalled = pressure.Stalled(file)
	}
	return pressure.Room{Total: memory.total, Available: memory.total - memory.used}, stalled, nil
}

// kibibytes is a field of proc/meminfo, in bytes.
func kibibytes(info []byte, name string) (int64, error) {
	text, found := field(info, name)
	if !found {
		return 0, fmt.Errorf("read the memory of this machine: proc/meminfo has no %s", strings.TrimSuffix(name, ":"))
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(text, " kB"), 10, 52)
	if err != nil {
		return 0, fmt.Errorf("read the memory of this machine: proc/meminfo: %s %w", name, err)
	}
	return n << 10, nil
}

// field is the text after name on the line that begins with it.
func field(file []byte, name string) (string, bool) {
	for line := range bytes.Lines(file) {
		if rest, found := bytes.CutPrefix(line, []byte(name)); found {
			return strings.TrimSpace(string(rest)), true
		}
	}
	return "", false
}
