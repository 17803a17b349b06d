package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/test/sandbox"
)

// restartPause is the pause before a process that has ended by itself is restarted, as
// systemd does.
const restartPause = 500 * time.Millisecond

// machine is a server or a node: a network namespace, a disk, and a process of the binary
// that is restarted when it ends, unless it was killed.
type machine struct {
	name, address string
	data          string // where its disk is mounted
	disk          *disk
	log           string
	space         netns.NsHandle
	told          *timeline
	// again are the arguments for restarts.
	again []string

	mu      sync.Mutex
	wanted  bool
	process *os.Process
	ended   chan struct{} // closed with the end of process
	loops   sync.WaitGroup
	closed  chan struct{}
}

func newMachine(n *network, told *timeline, dir, name, address string, size int) (*machine, error) {
	m := &machine{
		name: name, address: address, told: told, closed: make(chan struct{}),
		data: filepath.Join(dir, name), log: filepath.Join(dir, name+".log"),
	}
	if err := os.Mkdir(m.data, 0o700); err != nil {
		return nil, err
	}
	var err error
	if m.disk, err = newDisk(m.data, size); err != nil {
		return nil, err
	}
	m.space, err = n.attach(name, address)
	return m, err
}

// start runs the process with the arguments and keeps it running.
func (m *machine) start(args ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wanted {
		return nil
	}
	m.wanted = true
	return m.run(args)
}

// run starts the process. The caller holds the lock.
func (m *machine) run(args []string) error {
	log, err := os.OpenFile(m.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(sandbox.Program("cloudless"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "CLOUDLESS_CONFIG="+filepath.Join(filepath.Dir(m.log), "config.yaml"))
	if err := within(m.space, cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", m.name, err)
	}
	if err := m.disk.hold(cmd.Process.Pid); err != nil {
		m.told.note("%s: %v", m.name, err)
	}
	m.process, m.ended = cmd.Process, make(chan struct{})
	process, ended := m.process, m.ended
	m.loops.Go(func() {
		err := cmd.Wait()
		close(ended)
		m.keepRunning(process, err)
	})
	return nil
}

// keepRunning restarts a process that has ended by itself.
func (m *machine) keepRunning(process *os.Process, why error) {
	m.mu.Lock()
	wanted := m.wanted
	m.mu.Unlock()
	if !wanted {
		return
	}
	m.told.note("%s ended by itself (%v): %s", m.name, why, m.lastLine())
	select {
	case <-time.After(restartPause):
	case <-m.closed:
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wanted && m.process == process { // it was not restarted meanwhile
		if err := m.run(m.again); err != nil {
			m.told.note("%v", err)
		}
	}
}

func (m *machine) lastLine() string {
	data, _ := os.ReadFile(m.log)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

// kill kills the process and those of also with SIGKILL, and waits.
func (m *machine) kill(also func() ([]int, error)) error {
	m.mu.Lock()
	m.wanted = false
	process, ended := m.process, m.ended
	m.mu.Unlock()
	if process == nil {
		return nil
	}
	if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-ended
	if also == nil {
		return nil
	}
	for { // a container may just have been starting
		pids, err := also()
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil || len(pids) == 0 {
			return err
		}
	}
}

// revive restarts it after a kill.
func (m *machine) revive() error { return m.start(m.again...) }

// signal pauses and resumes the process. One that has ended needs neither.
func (m *machine) signal(s os.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", m.name, err)
	}
	return nil
}

// close ends everything on the machine and removes its disk, so that the same test program can have another lab. What
// cannot be removed goes with the sandbox.
func (m *machine) close() {
	close(m.closed)
	_ = m.kill(m.others)
	m.loops.Wait()
	_ = m.space.Close()
	m.disk.close()
}

func (m *machine) fillerPath() string { return filepath.Join(m.data, "filler") }

// fill fills the disk except for so many bytes.
func (m *machine) fill(left uint64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(m.data, &s); err != nil {
		return err
	}
	free := s.Bavail * uint64(s.Bsize)
	if free <= left {
		return nil
	}
	filler, err := os.OpenFile(m.fillerPath(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer filler.Close()
	about, err := filler.Stat()
	if err != nil {
		return err
	}
	if err := unix.Fallocate(int(filler.Fd()), 0, about.Size(), int64(free-left)); err != nil && !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("fill the disk of %s: %w", m.name, err)
	}
	return nil
}

func (m *machine) free() error {
	if err := os.Remove(m.fillerPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// id names the machine's processes, cgroups and links.
func (m *machine) id() (string, error) {
	data, err := os.ReadFile(filepath.Join(m.data, "cloud.json"))
	if err != nil {
		return "", err
	}
	var about struct{ ID string }
	if err := json.Unmarshal(data, &about); err != nil {
		return "", fmt.Errorf("read cloud.json of %s: %w", m.name, err)
	}
	return about.ID, nil
}

// shims are the parents of the machine's containers, and containers those that run the
// program of the workload.
func (m *machine) shims() ([]int, error) {
	return m.processes(func(command, _ string) bool { return strings.HasPrefix(command, filepath.Join(m.data, "shim")+"/") })
}

func (m *machine) containers() ([]int, error) {
	id, err := m.id()
	if err != nil {
		return nil, err
	}
	return m.processes(func(_, groups string) bool { return strings.Contains(groups, sandbox.GroupOf(id)+"/") })
}

// others are all processes of a machine but the one of the binary.
func (m *machine) others() ([]int, error) {
	shims, err := m.shims()
	if err != nil {
		return nil, err
	}
	containers, err := m.containers()
	if err != nil {
		return nil, err
	}
	network, err := m.processes(func(command, _ string) bool { return strings.HasPrefix(command, filepath.Join(m.data, "network")+"/") })
	return slices.Concat(shims, containers, network), err
}

func (m *machine) processes(is func(command, groups string) bool) (pids []int, err error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		command, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(folder, "cgroup"))
		if len(command) == 0 {
			continue // it has ended
		}
		if pid, err := strconv.Atoi(filepath.Base(folder)); err == nil && is(string(command), string(groups)) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
