package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/containerd"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// stopPatience is how long a process may take to stop before it is killed.
const stopPatience = 20 * time.Second

// down stops what runs on a data folder: the process first, then the
// containers, which outlive processes on purpose, each by the signal and within
// the grace of its workload. It works the same when the process died long ago.
func down(ctx context.Context, o local.DownOptions) error {
	f, ran, err := takeOver(ctx, o.DataDir, o.Progress)
	defer ran.close()
	if errors.Is(err, fs.ErrNotExist) {
		return local.ErrNoCloud
	}
	if err != nil {
		return err
	}
	defer f.release()
	log, err := os.OpenFile(f.sub(ownLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	logger := telemetry.NewLogger(log, o.LogLevel, telemetry.LogText) // the runtime's chatter is not for the terminal
	if _, err := os.Stat(f.sub("agent")); err == nil {
		o.Progress("stopping containers")
		if err := stopTasks(ctx, f, logger); err != nil {
			return err
		}
		if err := ran.do(func() error { return nodenet.Clear(networkOptions(f, logger)) }); err != nil {
			return err
		}
	}
	if !o.Purge {
		return nil
	}
	o.Progress("removing everything")
	return purge(ctx, f, o.ConfigPath, logger)
}

// leaveConfig removes from the client configuration what a server of this folder
// has written there; nothing if configPath is empty.
func (f *folder) leaveConfig(configPath string) error {
	if f.Cluster == "" || configPath == "" || !hasServer(f) { // a node has written nothing, and its cluster goes on
		return nil
	}
	return client.UpdateConfig(configPath, f.leaveContexts)
}

// leaveContexts takes this folder's server out of the contexts; those that led only
// to it go.
func (f *folder) leaveContexts(c *client.Config) error {
	if f.Listen == "" && f.founds() { // it listened on a port of nobody's choice
		c.RemoveCluster(f.Cluster)
		return nil
	}
	c.RemoveServer(f.Cluster, f.Listen, reachable(f.Listen), f.Advertise)
	return nil
}

// takeOver stops the process that holds the folder and holds it instead. It tells
// where the network of that process was.
func takeOver(ctx context.Context, path string, progress func(string)) (f *folder, ran *namespace, err error) {
	defer func() { _ = os.Remove(restPath(path)) }()
	for deadline := time.Now().Add(stopPatience); ; {
		f, err := openExistingFolder(path)
		held, ok := errors.AsType[*local.AlreadyRunningError](err)
		if !ok {
			return f, ran, err
		}
		if now := networkOf(held); now != nil {
			ran.close()
			ran = now
		}
		progress(fmt.Sprintf("stopping process %d", held.PID))
		_ = os.WriteFile(restPath(path), nil, 0o600) // without it the others wait a moment longer
		err = stopHolder(ctx, held, stopPatience)
		if errors.Is(err, errElusive) && time.Now().Before(deadline) {
			err = pause(ctx, 50*time.Millisecond)
		}
		if err != nil {
			return nil, ran, err
		}
	}
}

// restPath is of a file that is there while a process is stopped for a rest, and
// not to be started again at once.
func restPath(dataDir string) string { return filepath.Join(dataDir, "resting") }

func rests(dataDir string) bool {
	_, err := os.Stat(restPath(dataDir))
	return err == nil
}

// errElusive is for the moment in which a process has taken the folder and has
// not yet said so, or has let go of it already.
var errElusive = errors.New("the process that holds the data folder is just starting or ending: try again")

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// stopHolder ends the process that holds a data folder. The process is named
// by a descriptor from the beginning, and that it holds the folder is seen after
// that, so that a number that is used again by another process does no harm.
func stopHolder(ctx context.Context, held *local.AlreadyRunningError, patience time.Duration) error {
	if held.PID <= 0 {
		return errElusive
	}
	fd, err := unix.PidfdOpen(held.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find process %d: %w", held.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !hasOpen(held.PID, lockPath(held.DataDir)) {
		return errElusive
	}
	return stopProcess(ctx, fd, held.PID, patience)
}

// hasOpen reports whether a process has a file open.
func hasOpen(pid int, path string) bool {
	wanted, err := os.Stat(path)
	if err != nil {
		return false
	}
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if file, err := os.Stat(filepath.Join(folder, entry.Name())); err == nil && os.SameFile(file, wanted) {
			return true
		}
	}
	return false
}

// stopProcess ends a process: gracefully, then by force.
func stopProcess(ctx context.Context, fd, pid int, patience time.Duration) error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
		ended, err := waitProcess(ctx, fd, patience)
		if ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d does not end even when it is killed", pid)
}

func waitProcess(ctx context.Context, fd int, patience time.Duration) (ended bool, err error) {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		// Short rounds, so that ctrl-C is heard.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 200)
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
	}
	return false, nil
}

// stopTasks stops and removes every container of this cloud, in a way that the
// next start takes for a rest and not for a failure.
func stopTasks(ctx context.Context, f *folder, logger *slog.Logger) error {
	facts, err := machine.New(machine.Options{DataDir: f.path})
	if err != nil {
		return err
	}
	d, err := containerd.Open(ctx, driverOptions(f, f.ContainerdAddress, nil, logger))
	if err != nil {
		return fmt.Errorf("open the container runtime to stop its containers: %w", err)
	}
	defer func() { logError(logger, "close driver", d.Close()) }()
	return agent.Down(ctx, agent.DownOptions{
		DataDir: f.path, Drivers: []driver.Driver{d}, BootID: facts.BootID(), Logger: logger,
	})
}

// purge removes every trace of the cloud from this machine.
func purge(ctx context.Context, f *folder, configPath string, logger *slog.Logger) error {
	return purgeBut(ctx, f, configPath, logger, nil)
}

// abandon removes what the first start on a folder has made, if it failed: a cluster
// that nobody has used yet would be in the way of the next start. The log stays.
func (f *folder) abandon(ctx context.Context, configPath string, logger *slog.Logger) {
	if !f.fresh {
		return
	}
	if _, err := os.Stat(f.sub("agent")); err == nil {
		logError(logger, "clear the network of a start that failed", nodenet.Clear(networkOptions(f, logger)))
	}
	logError(logger, "remove the context of a start that failed", f.leaveConfig(configPath))
	logError(logger, "remove what a start that failed has made", purgeBut(ctx, f, "", logger, append(f.others, ownLog, olderLog)))
}

// purgeBut is purge, except for some files of the data folder.
func purgeBut(ctx context.Context, f *folder, configPath string, logger *slog.Logger, keep []string) error {
	if _, err := os.Stat(f.runDir()); err == nil { // of a copy, what runs here is the other one's
		if err := f.holdMachine(); err != nil {
			return err
		}
	}
	if ranContainers(f, keep) {
		if err := containerd.Purge(ctx, driverOptions(f, f.ContainerdAddress, nil, logger)); err != nil {
			return err
		}
	}
	if err := f.leaveConfig(configPath); err != nil {
		return err
	}
	if err := os.RemoveAll(f.runDir()); err != nil {
		return err
	}
	_ = os.Remove("/run/cloudless") // succeeds when this was the last cloud
	// Only what is ours: the folder may have been somebody's before.
	ours, _ := filepath.Glob(f.sub(atomicfile.Prefix + "*")) // what a crash has left of a write
	for _, name := range []string{"server", "agent", "logs", "containerd", "shim", "network", ownLog, olderLog, "cloud.json", "lock"} {
		if !slices.Contains(keep, name) {
			ours = append(ours, f.sub(name))
		}
	}
	for _, path := range ours {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	_ = os.Remove(f.path) // succeeds when nothing else is in it
	return nil
}

// ranContainers reports whether a container runtime has used the folder, and
// nothing of that name is to be kept.
func ranContainers(f *folder, keep []string) bool {
	ran := false
	for _, name := range []string{"agent", "containerd", "shim"} {
		_, err := os.Lstat(f.sub(name))
		ran = ran || err == nil
		if slices.Contains(keep, name) {
			return false
		}
	}
	return ran
}
