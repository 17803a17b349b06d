package containerd

import (
	"context"
	"time"

	runtime "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/timeout"
	"github.com/containerd/containerd/v2/plugins"
)

// shimCleanup is containerd's limit for cleaning up after a shim that has gone
// away, and the value it starts with.
const (
	shimCleanup        = "io.containerd.timeout.shim.cleanup"
	shimCleanupDefault = 5 * time.Second
)

// releaseShims closes the connections to all shims and leaves them running.
//
// containerd treats a closed connection as a dead shim and kills the rest of its container.
// Its own daemon never closes a connection before the process ends. Here the daemon may end
// before the process, so the time for that cleanup is set to zero while the connections are
// closed.
func (d *daemon) releaseShims() {
	loaded := d.plugins.Get(plugins.RuntimePluginV2, "task")
	if loaded == nil {
		return
	}
	instance, err := loaded.Instance()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shimCleanupDefault)
	defer cancel()
	tasks, err := instance.(*runtime.TaskManager).Tasks(ctx, true)
	if err != nil {
		d.opts.Log.Error("The shims of the embedded containerd cannot be listed.", "error", err)
		return
	}
	timeout.Set(shimCleanup, -1)
	defer timeout.Set(shimCleanup, shimCleanupDefault)
	d.logs.muted.Store(true) // it would complain that it cannot clean up
	defer d.logs.muted.Store(false)
	for _, task := range tasks {
		shim, ok := task.(runtime.ShimInstance)
		if !ok {
			continue
		}
		shim.Close()
		if client, ok := shim.Client().(interface{ UserOnCloseWait(context.Context) error }); ok {
			if err := client.UserOnCloseWait(ctx); err != nil {
				d.opts.Log.Error("A shim was not let go in time.", "task", task.ID(), "error", err)
			}
		}
	}
}
