package chaos

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/logfile"
	"github.com/cloudless/cloudless/test/sandbox"
)

const (
	ledgerName = "ledger"
	// lookPause is how often the test looks for processes of the singleton.
	lookPause = 10 * time.Millisecond
)

// life is a time in which a process of the singleton certainly ran: it was seen alive at both ends.
type life struct {
	process, node string
	epoch         uint64
	begin, end    time.Duration
}

func (l life) String() string {
	return fmt.Sprintf("%s on %s with epoch %d from %.3fs to %.3fs", l.process, l.node, l.epoch, l.begin.Seconds(), l.end.Seconds())
}

// duplicates says which processes of a singleton ran at the same time, and which one did not have a higher epoch than
// those before it. A replica that is restarted on its node keeps its epoch.
func duplicates(lives []life) (all []string) {
	lives = slices.SortedFunc(slices.Values(lives), func(a, b life) int { return cmp.Compare(a.begin, b.begin) })
	for i, later := range lives {
		for _, earlier := range lives[:i] {
			if both := min(earlier.end, later.end) - later.begin; both > 0 {
				all = append(all, fmt.Sprintf("two processes of the singleton ran at the same time for %v: %v, and %v", both, earlier, later))
			}
			if later.epoch < earlier.epoch || later.epoch == earlier.epoch && later.node != earlier.node {
				all = append(all, fmt.Sprintf("the epoch of the singleton did not grow: %v, and then %v", earlier, later))
			}
		}
	}
	return all
}

// runLedger runs the singleton.
func (l *lab) runLedger(ctx context.Context) error {
	image, err := l.pushProgram(ctx, l.admin, ledgerName, "1")
	if err != nil {
		return err
	}
	_, err = l.admin.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: ledgerName}, Spec: &v1.WorkloadSpec{Image: image, Singleton: true},
	}})
	return err
}

// census sees every process of the singleton on any machine. It asks the kernel, and neither the product nor the
// program.
type census struct {
	lab   *lab
	nodes map[string]string // names by the control group of the containers
	// known says how often a process was seen that is no program of a container yet.
	known map[int]int
	lives []life

	mu     sync.Mutex
	living map[int]*sighting
}

// sighting is a process of the singleton that lives. Its descriptor tells when it has ended, even if its number is
// used again.
type sighting struct {
	life
	descriptor int
}

func newCensus(l *lab) (*census, error) {
	c := &census{lab: l, nodes: map[string]string{}, known: map[int]int{}, living: map[int]*sighting{}}
	for _, m := range l.nodes {
		id, err := m.id()
		if err != nil {
			return nil, err
		}
		c.nodes[sandbox.GroupOf(id)+"/"] = m.name
	}
	return c, nil
}

// run looks until the context ends.
func (c *census) run(ctx context.Context) error {
	defer func() {
		for pid := range c.living {
			c.bury(pid)
		}
	}()
	for ; ctx.Err() == nil; time.Sleep(lookPause) {
		if err := c.look(); err != nil {
			return fmt.Errorf("look for processes of the singleton: %w", err)
		}
	}
	return nil
}

// home is the node on which the singleton runs; empty if it runs nowhere.
func (c *census) home() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.living {
		return s.node
	}
	return ""
}

func (c *census) bury(pid int) {
	_ = unix.Close(c.living[pid].descriptor)
	c.lives = append(c.lives, c.living[pid].life)
	delete(c.living, pid)
}

// settled is how often a process is looked at until it is clear that it stays what it is: containers' programs begin as
// a process of runc.
const settled = 100

func (c *census) look() error {
	folder, err := os.Open("/proc")
	if err != nil {
		return err
	}
	names, err := folder.Readdirnames(-1)
	_ = folder.Close()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[int]int, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || c.living[pid] != nil {
			continue
		}
		times := c.known[pid]
		if times < settled {
			command, _ := os.ReadFile("/proc/" + name + "/comm")
			switch {
			case bytes.HasPrefix(command, []byte(ledgerName)):
				if err := c.meet(pid); err != nil {
					return err
				}
				continue
			case !bytes.HasPrefix(command, []byte("runc")):
				times++
			}
		}
		known[pid] = times
	}
	c.known = known
	for pid, s := range c.living {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.descriptor), Events: unix.POLLIN}}, 0)
		switch {
		case n > 0:
			c.bury(pid)
		case err == nil:
			s.end = c.lab.told.now()
		}
	}
	return nil
}

// meet notes a process of the singleton, unless it has ended meanwhile.
func (c *census) meet(pid int) error {
	descriptor, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	seen := c.lab.told.now()
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	groups, groupsErr := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || groupsErr != nil || len(environment) == 0 {
		return unix.Close(descriptor)
	}
	s := &sighting{descriptor: descriptor, life: life{process: fmt.Sprintf("process %d", pid), begin: seen, end: seen}}
	for group, node := range c.nodes {
		if strings.Contains(string(groups), group) {
			s.node = node
		}
	}
	for _, variable := range strings.Split(string(environment), "\x00") {
		if epoch, ok := strings.CutPrefix(variable, "CLOUDLESS_EPOCH="); ok {
			s.epoch, err = strconv.ParseUint(epoch, 10, 64)
		}
	}
	c.living[pid] = s
	return err
}

// confessions are the lives that the processes of the singleton themselves tell of in the logs that the nodes still have.
// One that wrote nothing for long is not missed here: the census saw it.
func (l *lab) confessions() ([]life, error) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return nil, err
	}
	began := time.Duration(boot.Nano()) - l.told.now()
	lives := map[string]*life{}
	for _, m := range l.nodes {
		logs, err := filepath.Glob(filepath.Join(m.data, "logs", "*"))
		if err != nil {
			return nil, err
		}
		for _, dir := range logs {
			err := logfile.Read(context.Background(), dir, logfile.Options{Tail: -1}, func(e logfile.Entry) error {
				one := life{node: m.name}
				var nanos int64
				if _, err := fmt.Sscanf(e.Line, "ledger %s %d %d", &one.process, &one.epoch, &nanos); err != nil {
					return nil // another program's
				}
				at := time.Duration(nanos) - began
				if lives[one.process] == nil {
					one.begin = at
					lives[one.process] = &one
				}
				lives[one.process].end = at
				return nil
			})
			if err != nil && !os.IsNotExist(err) {
				return nil, err
			}
		}
	}
	var all []life
	for _, one := range lives {
		all = append(all, *one)
	}
	return all, nil
}

// singletonComplaints are what the census and the singleton's own heartbeats say against it.
func (l *lab) singletonComplaints(c *census) (all []string) {
	told, err := l.confessions()
	if err != nil {
		return []string{err.Error()}
	}
	var ran time.Duration
	for _, one := range c.lives {
		ran += one.end - one.begin
		l.told.note("the singleton was %v", one)
	}
	l.told.note("the singleton: %d processes ran for %v, %d of them left heartbeats", len(c.lives), ran.Round(time.Millisecond), len(told))
	if len(c.lives) == 0 || len(told) == 0 {
		all = append(all, "the singleton was not observed")
	}
	return append(all, append(duplicates(c.lives), duplicates(told)...)...)
}
