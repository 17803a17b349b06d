package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/logfile"
)

// tasks is what a machine runs. It outlives agents; the test plays the programs. It keeps
// the promises of the driver contract that an agent relies on: verbs may be repeated, an
// exit can be waited for any number of times, output is on disk before the exit is seen,
// and Remove leaves nothing.
type tasks struct {
	mu      sync.Mutex
	byID    map[string]*task
	changed *sync.Cond
	starts  []string   // ids of all tasks ever started
	stops   []string   // "id signal grace" of every stop
	signals []string   // "id signal" of every signal
	execs   []*process // every further process

	unknown  string                                   // a signal that is refused
	busy     error                                    // error of Remove; nil succeeds
	ending   time.Duration                            // how long a task runs after it was asked to stop
	prepare  func(context.Context, driver.Task) error // nil succeeds
	stats    func(id string) driver.Stats             // nil means that nothing can be measured
	written  map[string]int64                         // what tasks have written, by id
	images   []driver.StoredImage
	progress driver.Progress // of every pull; none if its total is 0
	root     string          // root folder of every task
	hold     chan struct{}   // if set, Start does its work but returns only when this is closed
}

type task struct {
	driver.Task
	status driver.Status
	ended  chan struct{}
}

func newTasks() *tasks {
	t := &tasks{byID: map[string]*task{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

func (t *tasks) started() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.starts)
}

func (t *tasks) stopped() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.stops)
}

// environment is the environment of a task.
func (t *tasks) environment(id string) map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id].Env
}

// ids lists all tasks that exist.
func (t *tasks) ids() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []string
	for id := range t.byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// exit ends the task's program.
func (t *tasks) exit(id string, exit driver.Exit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(t.byID[id], exit)
}

func (t *tasks) end(task *task, exit driver.Exit) {
	if task.status.State == driver.StateExited {
		return
	}
	exit.At = time.Now()
	task.status.State, task.status.PID, task.status.Exit = driver.StateExited, 0, &exit
	close(task.ended)
}

// removePartly leaves what an interrupted removal leaves: only the fact that the task was created.
func (t *tasks) removePartly(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[id].status.State, t.byID[id].status.PID = driver.StateCreated, 0
}

// setBusy makes Remove fail with err, or succeed again if nil.
func (t *tasks) setBusy(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy = err
}

// lose makes the task vanish, as if removed by another program.
func (t *tasks) lose(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
}

// reboot ends every program and loses the exits.
func (t *tasks) reboot() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, task := range t.byID {
		t.end(task, driver.Exit{Code: 255, Reason: "lost"})
	}
}

// release unblocks a held Start.
func (t *tasks) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hold != nil {
		close(t.hold)
		t.hold = nil
	}
}

// awaitStart returns when the task exists.
func (t *tasks) awaitStart(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.byID[id] == nil {
		t.changed.Wait()
	}
}

// print writes a line to the task's log.
func (t *tasks) print(tb testing.TB, id, line string) {
	tb.Helper()
	t.mu.Lock()
	dir := t.byID[id].LogDir
	t.mu.Unlock()
	w, err := logfile.Open(dir, logfile.WriterOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.Pump(logfile.Stdout, strings.NewReader(line+"\n")); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
}

// handle is one agent's driver: its access to the tasks, until it is cut.
type handle struct {
	*tasks
	once sync.Mutex
	dead bool
}

func (h *handle) cut() {
	h.once.Lock()
	defer h.once.Unlock()
	h.dead = true
}

func (h *handle) check() error {
	h.once.Lock()
	defer h.once.Unlock()
	if h.dead {
		return errCut
	}
	return nil
}

func (h *handle) Name() string { return "container" }

func (h *handle) Capabilities() driver.Capabilities { return driver.Capabilities{Version: "memory 1"} }

func (h *handle) Prepare(ctx context.Context, task driver.Task) error {
	h.mu.Lock()
	prepare := h.prepare
	h.mu.Unlock()
	if prepare == nil {
		return h.check()
	}
	return prepare(ctx, task)
}

func (h *handle) Start(_ context.Context, described driver.Task) (driver.Status, error) {
	if err := h.check(); err != nil {
		return driver.Status{}, err
	}
	if described.Owner != nil {
		if err := described.Owner(driver.User{UID: os.Getuid(), GID: os.Getgid()}); err != nil {
			return driver.Status{}, err
		}
	}
	h.mu.Lock()
	hold := h.hold
	if h.byID[described.ID] == nil {
		h.starts = append(h.starts, described.ID)
		status := driver.Status{
			ID: described.ID, Labels: described.Labels,
			State: driver.StateRunning, PID: 1000 + len(h.starts), StartedAt: time.Now(),
		}
		h.byID[described.ID] = &task{Task: described, status: status, ended: make(chan struct{})}
		h.changed.Broadcast()
	}
	status := h.byID[described.ID].status
	h.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return status, h.check()
}

func (h *handle) get(id string) (*task, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.byID[id]
	if found == nil {
		return nil, fmt.Errorf("task %s: %w", id, driver.ErrNotFound)
	}
	return found, h.check()
}

func (h *handle) Wait(ctx context.Context, id string) (driver.Exit, error) {
	found, err := h.get(id)
	if err != nil {
		return driver.Exit{}, err
	}
	h.mu.Lock()
	made := found.status.State == driver.StateCreated
	h.mu.Unlock()
	if made {
		return driver.Exit{}, fmt.Errorf("task %s was never started: %w", id, driver.ErrNotRunning)
	}
	select {
	case <-ctx.Done():
		return driver.Exit{}, ctx.Err()
	case <-found.ended:
		h.mu.Lock()
		defer h.mu.Unlock()
		return *found.status.Exit, h.check()
	}
}

func (h *handle) Stop(_ context.Context, id, signal string, grace time.Duration) error {
	found, err := h.get(id)
	if err != nil {
		return err
	}
	time.Sleep(h.ending)
	h.mu.Lock()
	defer h.mu.Unlock()
	if unix.SignalNum(signal) == 0 || signal == h.unknown {
		return fmt.Errorf("stop task %s by %s: %w", id, signal, driver.ErrInvalid)
	}
	if found.status.State == driver.StateCreated {
		return nil
	}
	h.stops = append(h.stops, fmt.Sprint(id, " ", signal, " ", grace))
	h.end(found, driver.Exit{Code: 143})
	return nil
}

// Signal notes the signal.
func (h *handle) Signal(_ context.Context, id, signal string) error {
	if _, err := h.get(id); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.signals = append(h.signals, id+" "+signal)
	return nil
}

func (h *handle) Remove(_ context.Context, id string) error {
	if err := h.check(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy != nil {
		return h.busy
	}
	if found := h.byID[id]; found != nil {
		h.end(found, driver.Exit{Code: 137})
		delete(h.byID, id)
	}
	return nil
}

func (h *handle) List(context.Context) ([]driver.Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []driver.Status
	for _, found := range h.byID {
		list = append(list, found.status)
	}
	return list, h.check()
}

func (h *handle) Stats(_ context.Context, id string) (driver.Stats, error) {
	if err := h.check(); err != nil {
		return driver.Stats{}, err
	}
	if _, err := h.get(id); err != nil {
		return driver.Stats{}, err
	}
	h.tasks.mu.Lock()
	defer h.tasks.mu.Unlock()
	if h.tasks.stats == nil {
		return driver.Stats{}, driver.ErrNotRunning
	}
	return h.tasks.stats(id), nil
}

func (h *handle) DiskUsage(_ context.Context, id string) (int64, error) {
	h.tasks.mu.Lock()
	defer h.tasks.mu.Unlock()
	return h.tasks.written[id], nil
}

func (h *handle) Images(context.Context) ([]driver.StoredImage, error) {
	h.tasks.mu.Lock()
	defer h.tasks.mu.Unlock()
	return slices.Clone(h.tasks.images), nil
}

func (h *handle) RemoveImage(_ context.Context, ref string) error {
	h.tasks.mu.Lock()
	defer h.tasks.mu.Unlock()
	h.tasks.images = slices.DeleteFunc(h.tasks.images, func(i driver.StoredImage) bool { return i.Ref == ref })
	return nil
}

func (h *handle) Exec(ctx context.Context, id string, e driver.Exec) (driver.Process, error) {
	if _, err := h.get(id); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, e.Command[0], e.Command[1:]...)
	cmd.Stdout, cmd.Stderr = e.Stdout, e.Stderr
	cmd.Env = os.Environ()
	for key, value := range e.Env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	p := &process{cmd: cmd, cancel: cancel, sizes: make(chan [2]uint16, 16), ended: make(chan struct{})}
	if e.Stdin != nil {
		stdin, err := cmd.StdinPipe()
		if err != nil {
			cancel()
			return nil, err
		}
		go func() {
			_, _ = io.Copy(stdin, e.Stdin)
			stdin.Close()
		}()
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.execs = append(h.execs, p)
	return p, nil
}

// Root opens the folder that the test has made.
func (h *handle) Root(_ context.Context, id string) (driver.Root, error) {
	if _, err := h.get(id); err != nil {
		return driver.Root{}, err
	}
	dir, err := os.Open(h.root)
	return driver.Root{Dir: dir, UID: os.Getuid(), GID: os.Getgid()}, err
}

// Dial connects on this machine: the network of every task is that of the test, without the task's own addresses.
func (h *handle) Dial(ctx context.Context, id, network string, address netip.AddrPort) (net.Conn, error) {
	if _, err := h.get(id); err != nil {
		return nil, err
	}
	if !address.Addr().IsLoopback() {
		return nil, unix.ECONNREFUSED
	}
	return (&net.Dialer{}).DialContext(ctx, network, address.String())
}

type process struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	sizes  chan [2]uint16
	ended  chan struct{} // closed when the process is dead
}

func (p *process) Wait(ctx context.Context) (int, error) {
	defer p.cancel()
	defer context.AfterFunc(ctx, p.cancel)()
	err := p.cmd.Wait()
	close(p.ended)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		if status := failed.Sys().(syscall.WaitStatus); status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return failed.ExitCode(), nil
	}
	return 0, err
}

func (p *process) Resize(_ context.Context, width, height uint16) error {
	p.sizes <- [2]uint16{width, height}
	return nil
}

func (p *process) Signal(_ context.Context, signal string) error {
	known := map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM}
	return p.cmd.Process.Signal(known[signal])
}
