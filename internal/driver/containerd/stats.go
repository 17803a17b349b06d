package containerd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/driver"
)

// Stats reads the task's cgroup.
func (d *Driver) Stats(ctx context.Context, id string) (driver.Stats, error) {
	stats, err := d.cgroups.stats(d.cgroupPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := d.container(ctx, id); err != nil {
			return driver.Stats{}, err
		}
		return driver.Stats{}, fmt.Errorf("measure task %s: %w", id, driver.ErrNotRunning)
	}
	if err != nil {
		return driver.Stats{}, fmt.Errorf("measure task %s: %w", id, err)
	}
	return stats, nil
}

func (c cgroups) stats(path string) (driver.Stats, error) {
	stats := driver.Stats{At: time.Now()}
	var err error
	if c.unified != "" {
		err = statsV2(&stats, filepath.Join(c.unified, path))
	} else {
		err = c.statsV1(&stats, path)
	}
	return stats, err
}

// oomKills counts the OOM-killed processes of the cgroup.
func (c cgroups) oomKills(path string) (uint64, error) {
	name := "memory.oom_control"
	if c.unified != "" {
		name = "memory.events"
	}
	values, err := readKeyed(filepath.Join(c.dir("memory", path), name))
	return values["oom_kill"], err
}

func (c cgroups) statsV1(stats *driver.Stats, path string) error {
	cpu, cpuacct := c.dir("cpu", path), c.dir("cpuacct", path)
	memory, pids, blkio := c.dir("memory", path), c.dir("pids", path), c.dir("blkio", path)
	var read reader
	stats.CPUNanos = read.number(cpuacct, "cpuacct.usage")
	throttling := read.keyed(cpu, "cpu.stat")
	stats.ThrottledPeriods, stats.ThrottledNanos = throttling["nr_throttled"], throttling["throttled_time"]
	stats.MemoryBytes = workingSet(read.number(memory, "memory.usage_in_bytes"), read.keyed(memory, "memory.stat")["total_inactive_file"])
	stats.MemoryLimit = read.number(memory, "memory.limit_in_bytes")
	if stats.MemoryLimit > math.MaxInt64/2 { // the kernel's value for none, which depends on the page size
		stats.MemoryLimit = 0
	}
	stats.OOMKills = read.keyed(memory, "memory.oom_control")["oom_kill"]
	stats.PIDs = read.number(pids, "pids.current")
	stats.BlockReadBytes, stats.BlockWriteBytes = parseBlkio(read.optional(blkio, "blkio.throttle.io_service_bytes"))
	return read.err
}

func statsV2(stats *driver.Stats, dir string) error {
	var read reader
	cpu := read.keyed(dir, "cpu.stat")
	stats.CPUNanos = cpu["usage_usec"] * 1000
	stats.ThrottledPeriods, stats.ThrottledNanos = cpu["nr_throttled"], cpu["throttled_usec"]*1000
	stats.MemoryBytes = workingSet(read.number(dir, "memory.current"), read.keyed(dir, "memory.stat")["inactive_file"])
	stats.MemoryLimit = read.number(dir, "memory.max")
	stats.OOMKills = read.keyed(dir, "memory.events")["oom_kill"]
	stats.PIDs = read.number(dir, "pids.current")
	stats.BlockReadBytes, stats.BlockWriteBytes = parseIOStat(read.optional(dir, "io.stat"))
	return read.err
}

// Pool reads the cgroup of all tasks.
func (d *Driver) Pool() (driver.Pool, error) {
	pool, err := d.cgroups.pool(d.opts.cgroupParent())
	if errors.Is(err, fs.ErrNotExist) {
		return driver.Pool{}, nil // there was no task yet
	}
	if err != nil {
		return driver.Pool{}, fmt.Errorf("measure the memory of all tasks: %w", err)
	}
	return pool, nil
}

// LimitPool limits the cgroup of all tasks. Tasks without a limit of their own that are started from now on see it.
func (d *Driver) LimitPool(bytes int64) error {
	if err := d.cgroups.limitMemory(d.opts.cgroupParent(), bytes); err != nil {
		return err
	}
	d.memoryLimit.Store(bytes)
	return nil
}

func (c cgroups) pool(path string) (driver.Pool, error) {
	var read reader
	var pool driver.Pool
	dir := c.dir("memory", path)
	if c.unified == "" {
		pool.Used = int64(workingSet(read.number(dir, "memory.usage_in_bytes"), read.keyed(dir, "memory.stat")["total_inactive_file"]))
		if limit := read.number(dir, "memory.limit_in_bytes"); limit <= math.MaxInt64/2 {
			pool.Limit = int64(limit)
		}
		return pool, read.err
	}
	pool.Used = int64(workingSet(read.number(dir, "memory.current"), read.keyed(dir, "memory.stat")["inactive_file"]))
	pool.Limit = int64(read.number(dir, "memory.max"))
	pool.Stalled = pressure.Stalled(read.optional(dir, "memory.pressure"))
	return pool, read.err
}

// workingSet leaves out what the kernel can drop at once.
func workingSet(usage, inactiveFile uint64) uint64 {
	return usage - min(usage, inactiveFile)
}

// reader reads files until the first error, which it keeps.
type reader struct{ err error }

func (r *reader) file(dir, name string) []byte {
	if r.err != nil {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	r.err = err
	return data
}

// optional reads a file that some kernels do not have.
func (r *reader) optional(dir, name string) []byte {
	if r.err != nil {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if !errors.Is(err, fs.ErrNotExist) {
		r.err = err
	}
	return data
}

// number reads a single number; "max" means no limit and becomes 0.
func (r *reader) number(dir, name string) uint64 {
	text := strings.TrimSpace(string(r.file(dir, name)))
	if r.err != nil || text == "max" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		r.err = fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	return n
}

func (r *reader) keyed(dir, name string) map[string]uint64 {
	return parseKeyed(r.file(dir, name))
}

func readKeyed(path string) (map[string]uint64, error) {
	data, err := os.ReadFile(path)
	return parseKeyed(data), err
}

// parseKeyed reads lines of a name and a number. It ignores other lines: the kernel may add
// any.
func parseKeyed(data []byte) map[string]uint64 {
	values := map[string]uint64{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			values[name] = n
		}
	}
	return values
}

// parseBlkio sums lines such as "8:0 Read 4096" over the devices.
func parseBlkio(data []byte) (read, written uint64) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			continue
		}
		n, err := strconv.ParseUint(fields[2], 10, 64)
		if err != nil {
			continue
		}
		switch fields[1] {
		case "Read":
			read += n
		case "Write":
			written += n
		}
	}
	return read, written
}

// parseIOStat sums lines such as "8:0 rbytes=4096 wbytes=0 rios=1 …" over the
// devices.
func parseIOStat(data []byte) (read, written uint64) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		for field := range strings.FieldsSeq(lines.Text()) {
			name, text, _ := strings.Cut(field, "=")
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				continue
			}
			switch name {
			case "rbytes":
				read += n
			case "wbytes":
				written += n
			}
		}
	}
	return read, written
}
