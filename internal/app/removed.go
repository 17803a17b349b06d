package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/enroll"
)

// wasRemoved says that this machine's node was removed, and how the machine becomes a node again.
func wasRemoved(f *datadir.Folder, m *member) error {
	return fmt.Errorf("this machine was node %s of cluster %s and has been removed from it, and nothing of it runs here any more: "+
		"make it a new one with a new token and: cloudless join ADDRESS --data-dir %s; or clear it with: cloudless down --purge --data-dir %s",
		m.name, f.Cluster, f.Path(), f.Path())
}

// clearNetworkIfRemoved removes the node's network at the end, after the agent has closed it, if leaves was called.
func clearNetworkIfRemoved(ctx context.Context, f *datadir.Folder, logger *slog.Logger, u *undo) (leaves func()) {
	removed := false
	ctx = context.WithoutCancel(ctx) // it runs at the end
	u.add(func() {
		if removed {
			logError(logger, "clear the network of the removed node", enroll.ClearNetwork(ctx, f, logger))
		}
	})
	return func() { removed = true }
}
