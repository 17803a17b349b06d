package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/agent/secrets"
	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/containerd"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Down stops the process on a data folder and then its containers, which outlive processes on purpose, each with the
// signal and grace period of its workload. It also works if the process died long ago.
func Down(ctx context.Context, o local.DownOptions) error {
	f, ran, err := datadir.TakeOver(ctx, o.DataDir, o.Progress)
	defer ran.Close()
	if errors.Is(err, fs.ErrNotExist) {
		return local.ErrNoCloud
	}
	if err != nil {
		return err
	}
	defer f.Release()
	log, err := os.OpenFile(f.Path(datadir.LogName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	logger := telemetry.NewLogger(log, o.LogLevel, telemetry.LogText) // the runtime logs too much for the terminal
	if _, err := os.Stat(f.Path("agent")); err == nil {
		o.Progress("stopping containers")
		if err := stopTasks(ctx, f, logger); err != nil {
			return err
		}
		if err := ran.Do(func() error { return enroll.ClearNetwork(ctx, f, logger) }); err != nil {
			return err
		}
	}
	if !o.Purge {
		return nil
	}
	o.Progress("removing everything")
	return purge(ctx, f, o.ConfigPath, logger)
}

// leaveConfig removes from the client configuration what this folder's server has written there. It does nothing if
// configPath is empty.
func leaveConfig(f *datadir.Folder, configPath string) error {
	if f.Cluster == "" || configPath == "" || !f.HasServer() { // a node writes no context
		return nil
	}
	return client.UpdateConfig(configPath, func(c *client.Config) error { return leaveContexts(f, c) })
}

// leaveContexts removes this folder's server from the contexts, and the contexts that have no other server.
func leaveContexts(f *datadir.Folder, c *client.Config) error {
	if f.Listen == "" && f.Founds() { // it listened on a random port
		c.RemoveCluster(f.Cluster)
		return nil
	}
	c.RemoveServer(f.Cluster, f.Listen, spec.LoopbackAddress(f.Listen), f.Advertise)
	return nil
}

// stopTasks stops and removes every container of this cloud, so that the next start does not count them as failed.
func stopTasks(ctx context.Context, f *datadir.Folder, logger *slog.Logger) error {
	facts, err := machine.New(machine.Options{DataDir: f.Path()})
	if err != nil {
		return err
	}
	d, err := containerd.Open(ctx, DriverOptions(f, f.ContainerdAddress, nil, logger))
	if err != nil {
		return fmt.Errorf("open the container runtime to stop its containers: %w", err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			logger.Error("close driver", "error", err)
		}
	}()
	return agent.Down(ctx, agent.DownOptions{
		DataDir: f.Path(), Drivers: []driver.Driver{d}, BootID: facts.BootID(), Logger: logger,
	})
}

// purge removes every trace of the cloud from this machine.
func purge(ctx context.Context, f *datadir.Folder, configPath string, logger *slog.Logger) error {
	return purgeBut(ctx, f, configPath, logger, nil)
}

// Abandon removes what a failed first start has created: an unused cluster would be in the way of the next start. It
// keeps the log.
func Abandon(ctx context.Context, f *datadir.Folder, configPath string, logger *slog.Logger) error {
	if !f.New() {
		return nil
	}
	var network error
	if _, err := os.Stat(f.Path("agent")); err == nil {
		network = enroll.ClearNetwork(ctx, f, logger)
	}
	return errors.Join(network, leaveConfig(f, configPath),
		purgeBut(ctx, f, "", logger, append(f.Preexisting(), datadir.LogName, datadir.OlderLogName)))
}

// purgeBut is purge, but keeps some files of the data folder.
func purgeBut(ctx context.Context, f *datadir.Folder, configPath string, logger *slog.Logger, keep []string) error {
	if _, err := os.Stat(f.RunDir()); err == nil { // a copy of the folder has no containers of its own
		if err := f.LockMachine(); err != nil {
			return err
		}
	}
	if ranContainers(f, keep) {
		if err := containerd.Purge(ctx, DriverOptions(f, f.ContainerdAddress, nil, logger)); err != nil {
			return err
		}
	}
	if err := leaveConfig(f, configPath); err != nil {
		return err
	}
	if err := secrets.Unmount(f.SecretsDir()); err != nil {
		return err
	}
	if err := os.RemoveAll(f.RunDir()); err != nil {
		return err
	}
	_ = os.Remove("/run/cloudless") // succeeds when this was the last cloud
	// Only our files: the folder may have held others before.
	ours, _ := filepath.Glob(f.Path(atomicfile.Prefix + "*")) // left by a crash during a write
	for _, name := range []string{"server", "agent", "logs", "containerd", "shim", "network", datadir.LogName, datadir.OlderLogName, "cloud.json", "lock"} {
		if !slices.Contains(keep, name) {
			ours = append(ours, f.Path(name))
		}
	}
	for _, path := range ours {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	_ = os.Remove(f.Path()) // succeeds when nothing else is in it
	return nil
}

// ranContainers reports whether a container runtime has used the folder, and all of its files may be deleted.
func ranContainers(f *datadir.Folder, keep []string) bool {
	ran := false
	for _, name := range []string{"agent", "containerd", "shim"} {
		_, err := os.Lstat(f.Path(name))
		ran = ran || err == nil
		if slices.Contains(keep, name) {
			return false
		}
	}
	return ran
}

// DriverOptions are those of the container runtime of a data folder. The client reaches the cluster's registry; it may be
// nil if no image is pulled.
func DriverOptions(f *datadir.Folder, address string, registry *http.Client, logger *slog.Logger) containerd.Options {
	return containerd.Options{
		ID: f.ID, DataDir: f.Path(), RunDir: f.RunDir(), Address: address, Log: logger,
		Registries: map[string]*http.Client{image.ClusterRegistry: registry},
	}
}
