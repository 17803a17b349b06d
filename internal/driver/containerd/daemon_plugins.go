package containerd

import (
	"encoding/json"
	"fmt"
	"slices"

	runtime "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	copying "github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

// The snapshotters that the driver uses, by their names in containerd.
const (
	overlayfs  = "overlayfs"
	nativeCopy = "native"
)

// registrations are the plugins of the daemon, each after those it needs, with
// the configuration of this cloud.
func (d *daemon) registrations() ([]plugin.Registration, error) {
	all := slices.Concat(d.snapshotters(), registry.Graph(func(*plugin.Registration) bool { return false }))
	for i := range all {
		switch all[i].Type {
		case plugins.ShimPlugin:
			all[i].Config = &runtime.ShimConfig{SocketDir: d.opts.socketDir()}
		case plugins.GCPlugin:
			if err := collectAfterEveryRemoval(all[i].Config); err != nil {
				return nil, fmt.Errorf("configure the garbage collector of the embedded containerd: %w", err)
			}
		}
	}
	return all, nil
}

// collectAfterEveryRemoval makes the garbage collector remove the files of a removed task
// at once. Otherwise it would wait for a hundred changes. The type of its configuration is
// not exported, but its fields are.
func collectAfterEveryRemoval(config any) error {
	return json.Unmarshal([]byte(`{"DeletionThreshold": 1}`), config)
}

// snapshotters are registered by hand because containerd's own registration of overlayfs
// probes at every start for features that are not used here.
func (d *daemon) snapshotters() []plugin.Registration {
	return []plugin.Registration{
		snapshotter(overlayfs, openOverlay),
		snapshotter(nativeCopy, copying.NewSnapshotter),
	}
}

// openOverlay makes overlayfs show images with other owners to tasks in user namespaces, if the kernel can. Newer kernels
// are recognized by their version.
func openOverlay(root string) (snapshots.Snapshotter, error) {
	if able, err := overlayutils.SupportsIDMappedMounts(); err != nil || !able {
		return overlay.NewSnapshotter(root)
	}
	return overlay.NewSnapshotter(root, overlay.WithRemapIDs)
}

func snapshotter(id string, open func(root string) (snapshots.Snapshotter, error)) plugin.Registration {
	return plugin.Registration{
		Type: plugins.SnapshotPlugin,
		ID:   id,
		InitFn: func(init *plugin.InitContext) (any, error) {
			init.Meta.Platforms = append(init.Meta.Platforms, platforms.DefaultSpec())
			return open(init.Properties[plugins.PropertyRootDir])
		},
	}
}

// snapshotter chooses overlayfs if the data folder's filesystem supports it, and plain
// copies otherwise.
func (d *daemon) snapshotter() string {
	if err := overlayutils.Supported(d.opts.rootDir()); err != nil {
		d.opts.Log.Warn("Overlayfs does not work on the data folder; root filesystems are copied, which is slow and takes space.",
			"folder", d.opts.rootDir(), "error", err)
		return nativeCopy
	}
	return overlayfs
}
