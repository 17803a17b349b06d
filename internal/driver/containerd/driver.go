// Package containerd runs tasks as containers with containerd and runc: with a containerd
// inside this process, or with one that the machine already has.
//
// A task is a container, its snapshot and its shim, all named by the task's id within a
// containerd namespace of this cloud. Cgroups, runc's state and the shims' sockets belong
// to this cloud, too, so that several clouds on one machine never meet. What containerd
// does not store is in a small record per task in the run folder.
//
// The embedded daemon uses Cloudless's own shim, which writes the log itself and remembers
// the exit while no daemon is connected. An outside daemon uses its stock shim;
// Capabilities says what that cannot do.
//
// The package must not know of workloads, servers, restart policies or the API.
package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/errdefs"
	"github.com/moby/locker"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/programs"
	"github.com/cloudless/cloudless/internal/spec"
)

// Driver runs tasks with containerd. Open creates it. It is safe for concurrent use.
type Driver struct {
	opts        Options
	daemon      *daemon // nil with an outside one
	client      *client.Client
	version     string
	shim        string // path of our own shim
	runc        string
	sandbox     string // the program that runs tasks in a sandbox; empty if there is none
	snapshotter string
	cgroups     cgroups
	limits      processLimits

	userNamespaces userNamespaces
	memoryLimit    atomic.Int64 // of all tasks together, 0 for none
	records        *records
	images         imageCache
	pulls          pulls
	uses           uses
	tasks          *locker.Locker // one of Start and Remove at a time per task
	bootID         string
	closed         context.Context // done once Close was called
	close          context.CancelFunc
	work           sync.WaitGroup // background work until then
}

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Execer   = (*Driver)(nil)
	_ driver.Meter    = (*Driver)(nil)
	_ driver.Pooler   = (*Driver)(nil)
	_ driver.Rooter   = (*Driver)(nil)
	_ driver.Signaler = (*Driver)(nil)
)

// Open starts the embedded daemon, or connects to the outside one, and reattaches to the
// tasks of an earlier run.
func Open(ctx context.Context, opts Options) (_ *Driver, err error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	d := &Driver{opts: opts, tasks: locker.New(), records: newRecords(opts.recordDir())}
	d.closed, d.close = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if err := d.findParts(); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	if opts.MemoryLimit > 0 {
		if err := d.LimitPool(opts.MemoryLimit); err != nil {
			opts.Log.Warn("Containers could take all memory of this machine.", "error", err)
		}
		if err := d.cgroups.shareCPU(opts.cgroupParent(), runtime.NumCPU()); err != nil {
			opts.Log.Warn("Containers get little CPU time while other programs of this machine are busy.", "error", err)
		}
	}
	if opts.embedded() {
		if d.daemon, err = startDaemon(opts); err != nil {
			return nil, fmt.Errorf("containerd driver: %w", err)
		}
	}
	if err := d.connect(ctx); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	d.userNamespaces = d.findUserNamespaces(ctx)
	if err := d.findSandbox(ctx); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	if err := d.recoverTasks(ctx); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	return d, nil
}

// findParts looks for the programs that the driver needs.
func (d *Driver) findParts() (err error) {
	if d.runc, err = findRunc(); err != nil {
		return err
	}
	if d.shim, err = programs.Shim.Extract(d.opts.shimDir()); err != nil {
		return err
	}
	if d.cgroups, err = findCgroups(); err != nil {
		return err
	}
	if d.limits, err = findProcessLimits(); err != nil {
		return err
	}
	if d.bootID, err = readBootID(); err != nil {
		return err
	}
	for _, dir := range []string{d.opts.recordDir(), d.opts.fifoDir(), d.opts.sysDirs(), d.opts.runcDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make a folder for running tasks: %w", err)
		}
	}
	return nil
}

// findRunc also looks where root's programs are, which is not always in PATH.
func findRunc() (string, error) {
	for _, name := range []string{"runc", "/usr/sbin/runc", "/usr/local/sbin/runc"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("runc is not installed; install the package runc of your distribution")
}

func (d *Driver) connect(ctx context.Context) (err error) {
	address := d.opts.address()
	d.client, err = client.New(address, client.WithDefaultNamespace(d.opts.namespace()))
	if err != nil {
		return fmt.Errorf("connect to containerd at %s: %w", address, err)
	}
	if d.daemon != nil {
		d.version, _, _ = strings.Cut(version.Version, "+")
		d.snapshotter = d.daemon.snapshotter()
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	outside, err := d.awaitOutside(ctx)
	if err != nil {
		return fmt.Errorf("no containerd answers at %s: start it (%w)", address, err)
	}
	d.version = outside.Version
	d.snapshotter, err = d.outsideSnapshotter(ctx)
	return err
}

// connectTime is how long to wait for an outside daemon: when the machine boots, it may
// start later.
const connectTime = 10 * time.Second

// awaitOutside asks the outside daemon for its version until it answers.
func (d *Driver) awaitOutside(ctx context.Context) (client.Version, error) {
	var refused error // more specific than a timeout
	for {
		found, err := d.client.Version(ctx)
		switch err = native(err); {
		case errdefs.IsUnavailable(err):
			refused = err
		case err != nil && ctx.Err() != nil:
			return client.Version{}, cmp.Or(refused, err)
		default:
			return found, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return client.Version{}, refused
		}
	}
}

// outsideSnapshotter asks the outside daemon whether its overlayfs works.
func (d *Driver) outsideSnapshotter(ctx context.Context) (string, error) {
	filter := fmt.Sprintf("type==%s", plugins.SnapshotPlugin)
	reply, err := d.client.IntrospectionService().Plugins(ctx, filter)
	if err != nil {
		return "", fmt.Errorf("ask containerd for its snapshotters: %w", err)
	}
	for _, found := range reply.Plugins {
		if found.ID == overlayfs && found.InitErr == nil {
			return overlayfs, nil
		}
	}
	return nativeCopy, nil
}

// Close disconnects from the daemon and leaves every task running.
func (d *Driver) Close() error {
	d.close()
	var errs []error
	d.work.Wait()
	if d.client != nil {
		errs = append(errs, d.client.Close())
	}
	if d.daemon != nil {
		errs = append(errs, d.daemon.Close())
	}
	return errors.Join(errs...)
}

// Name is what a workload calls this driver.
func (d *Driver) Name() string { return "container" }

// Capabilities names containerd's version and, with an outside daemon, what the
// stock shim cannot do.
func (d *Driver) Capabilities() driver.Capabilities {
	caps := driver.Capabilities{Version: "containerd " + d.version, UserNamespaces: d.userNamespaces.why == ""}
	if d.sandbox != "" {
		caps.Sandboxes = []string{spec.SandboxGVisor}
	}
	if !d.opts.embedded() {
		caps.Missing = []string{
			"The last lines of a task's log may reach the disk shortly after its exit was reported.",
			"A task blocks on its output when its logger process is stopped, and its output is lost when that is killed.",
			"The exit code of a task that ends while containerd is down is lost.",
			"Secrets cannot be in the environment of a task, only in files.",
		}
	}
	return caps
}

// scope puts the driver's namespace into ctx, where parts of containerd that
// run in this process look for it.
func (d *Driver) scope(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, d.opts.namespace())
}

// Check calls containerd to see whether it answers.
func (d *Driver) Check(ctx context.Context) error {
	if _, err := d.client.ContainerService().List(ctx, `id==""`); err != nil {
		return fmt.Errorf("containerd does not answer: %w", err)
	}
	return nil
}

// List returns every task of this cloud, also those whose shim is gone.
func (d *Driver) List(ctx context.Context) ([]driver.Status, error) {
	containers, err := d.client.ContainerService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	list := make([]driver.Status, 0, len(containers))
	for _, container := range containers {
		status, err := d.status(ctx, container)
		switch {
		case errors.Is(err, driver.ErrNotFound): // removed meanwhile
		case err != nil:
			return nil, err
		default:
			list = append(list, status)
		}
	}
	return list, nil
}

// process returns the task's first process; nil means that there is no shim.
func (d *Driver) process(ctx context.Context, id string) (*tasks.GetResponse, error) {
	reply, err := d.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err = native(err); errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the state of task %s: %w", id, err)
	}
	return reply, nil
}
