// Package machine reads what the agent reports about its computer: capacity, usage, network
// interfaces, pressure, and whether it runs on battery.
//
// Amounts are what this process may really use: CPUs under the affinity and the cgroup
// quota, memory under the cgroup limit. They are read every time, so that changes of memory
// or limits are noticed. Everything is read from files below a root, which tests replace by
// a recorded one.
//
// The package must not know of sessions, replicas, drivers or servers.
package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/spec"
)

// Options says where to look.
type Options struct {
	// DataDir is the folder whose filesystem is the node's disk.
	DataDir string
	// Version is that of this program.
	Version string
	// Root is where proc and sys are found, "/" if empty.
	Root string
}

// Machine is the computer we run on. It is safe for concurrent use.
type Machine struct {
	dataDir string
	root    root
	limits  limits
	info    *v1.NodeInfo

	mu         sync.Mutex
	lastCPU    cpuTimes
	conditions map[string]*v1.Condition // the newest, by type
}

// New reads what does not change while we run.
func New(opts Options) (*Machine, error) {
	if opts.DataDir == "" {
		return nil, errors.New("machine: DataDir is missing: name a folder on the disk to measure")
	}
	m := &Machine{
		dataDir:    opts.DataDir,
		root:       root(opts.Root),
		conditions: map[string]*v1.Condition{},
	}
	if m.root == "" {
		m.root = "/"
	}
	var err error
	if m.limits, err = findLimits(m.root); err != nil {
		return nil, fmt.Errorf("find the cgroups of this process: %w", err)
	}
	if m.info, err = readInfo(m.root, opts.Version); err != nil {
		return nil, err
	}
	if m.lastCPU, err = readCPUTimes(m.root); err != nil {
		return nil, err
	}
	return m, nil
}

// BootID is unique to this boot of the machine.
func (m *Machine) BootID() string { return m.info.GetBootId() }

// Status is the machine's current capacity, usage, conditions, interfaces and info.
func (m *Machine) Status() (*v1.NodeStatus, error) {
	r, err := m.read()
	if err != nil {
		return nil, err
	}
	interfaces, err := readInterfaces()
	if err != nil {
		return nil, err
	}
	info := proto.CloneOf(m.info)
	supply := powerOf(m.root)
	info.Battery = supply.battery
	status := &v1.NodeStatus{
		Capacity: r.capacity(), Interfaces: interfaces, Info: info,
		Reserved: &v1.NodeResources{Memory: spec.FormatBytes(pressure.Reserve(r.memory.total))},
	}
	countGPUs(status, m.GPUs())
	m.mu.Lock()
	defer m.mu.Unlock()
	status.Usage = r.usage(m.cpuUsed(r))
	status.Conditions = m.assess(r, interfaces, time.Now())
	if supply.known {
		status.Conditions = append(status.Conditions, m.lowBattery(supply, time.Now()))
	}
	return status, nil
}

// readings is one reading of all amounts.
type readings struct {
	cpu          int64 // thousandths
	cpuTimes     cpuTimes
	memory, disk amount
	diskReserved int64 // for root: neither used nor available
	pids         amount
	link         int64 // bits per second; 0 if unknown
}

// amount is how much there is of something, and how much of that is used.
type amount struct{ total, used int64 }

// share is the used part, from 0 to 1.
func (a amount) share() float64 {
	if a.total <= 0 {
		return 0
	}
	return float64(a.used) / float64(a.total)
}

func (m *Machine) read() (r readings, err error) {
	if r.cpu, err = readCPUs(m.root, m.limits); err != nil {
		return readings{}, err
	}
	if r.cpuTimes, err = readCPUTimes(m.root); err != nil {
		return readings{}, err
	}
	if r.memory, err = readMemory(m.root, m.limits); err != nil {
		return readings{}, err
	}
	if r.pids, err = readPIDs(m.root, m.limits); err != nil {
		return readings{}, err
	}
	if r.disk, r.diskReserved, err = readDisk(m.dataDir); err != nil {
		return readings{}, err
	}
	r.link = readLink(m.root)
	return r, nil
}

func (r readings) capacity() *v1.NodeResources {
	has := &v1.NodeResources{
		Cpu:    spec.FormatCPU(r.cpu),
		Memory: spec.FormatBytes(r.memory.total),
		Disk:   spec.FormatBytes(r.disk.total),
		Pids:   r.pids.total,
	}
	if r.link > 0 {
		has.Bandwidth = spec.FormatBandwidth(r.link)
	}
	return has
}

func (r readings) usage(cpu int64) *v1.NodeResources {
	return &v1.NodeResources{
		Cpu:    spec.FormatCPU(cpu),
		Memory: spec.FormatBytes(r.memory.used),
		Disk:   spec.FormatBytes(r.disk.used),
		Pids:   r.pids.used,
	}
}

// cpuUsed is the average use since the last reading, in thousandths.
func (m *Machine) cpuUsed(r readings) int64 {
	used := r.cpuTimes.since(m.lastCPU)
	if r.cpuTimes.total > m.lastCPU.total {
		m.lastCPU = r.cpuTimes
	}
	return min(used, r.cpu)
}

func readInfo(root root, version string) (*v1.NodeInfo, error) {
	info := &v1.NodeInfo{Os: runtime.GOOS, Arch: runtime.GOARCH, Version: version}
	for path, field := range map[string]*string{
		"proc/sys/kernel/random/boot_id": &info.BootId,
		"proc/sys/kernel/osrelease":      &info.Kernel,
		"proc/sys/kernel/hostname":       &info.Hostname,
	} {
		var err error
		if *field, err = root.line(path); err != nil {
			return nil, fmt.Errorf("read what this machine is: %w", err)
		}
	}
	return info, nil
}

// root is the folder that contains proc and sys.
type root string

func (r root) read(path string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(r), path))
}

// line is the content of a one-line file.
func (r root) line(path string) (string, error) {
	b, err := r.read(path)
	return strings.TrimSpace(string(b)), err
}
