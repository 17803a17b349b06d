package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/driver/containerd"
	"github.com/cloudless/cloudless/internal/maintenance"
)

// openDriver starts the container runtime. It does not need the cluster, so it may start before the machine has joined.
func openDriver(ctx context.Context, f *datadir.Folder, m local.Machine, registry *http.Client, logger *slog.Logger) (*containerd.Driver, error) {
	if err := f.LockMachine(); err != nil {
		return nil, err
	}
	address, err := containerdAddress(ctx, f, m.ContainerdAddress)
	if err != nil {
		return nil, err
	}
	options := maintenance.DriverOptions(f, address, registry, logger)
	if options.MemoryLimit, err = memoryOfContainers(f); err != nil {
		return nil, err
	}
	d, err := containerd.Open(ctx, options)
	if err != nil || address == f.ContainerdAddress {
		return d, err
	}
	if err := f.Update(func(id *datadir.Record) { id.ContainerdAddress = address }); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// memoryOfContainers is what all containers together may use: the memory of this machine without the reserve.
func memoryOfContainers(f *datadir.Folder) (int64, error) {
	facts, err := machine.New(machine.Options{DataDir: f.Path()})
	if err != nil {
		return 0, err
	}
	memory, _, err := facts.Memory()
	return memory.Total - pressure.Reserve(memory.Total), err
}

// containerdAddress is the given address, or else the one used before. It refuses a change, because containers and
// images would stay behind in the old containerd.
func containerdAddress(ctx context.Context, f *datadir.Folder, given string) (string, error) {
	_, err := os.Stat(f.Path("agent"))
	used := err == nil
	if !used && given != "" { // later, containerd may start after this process when the machine boots
		if err := answers(ctx, given); err != nil {
			return "", fmt.Errorf("no containerd answers at %s (%w): start it, or leave --containerd-address out for the built-in one", given, err)
		}
	}
	if !used || given == "" || given == f.ContainerdAddress {
		return cmp.Or(given, f.ContainerdAddress), nil
	}
	have := "the built-in containerd"
	if f.ContainerdAddress != "" {
		have = "the containerd at " + f.ContainerdAddress
	}
	return "", fmt.Errorf("what runs on data folder %s is in %s, which --containerd-address cannot change: leave it out, or start over after: cloudless down --purge --data-dir %s",
		f.Path(), have, f.Path())
}

// answers dials a socket.
func answers(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		if cause := errors.Unwrap(errors.Unwrap(err)); cause != nil {
			return cause // the caller's error names the address
		}
		return err
	}
	return conn.Close()
}

// mayRunContainers refuses early if containers cannot run here.
func mayRunContainers() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can run containers: use sudo; a server alone, cloudless server, runs as any user")
	}
	return nil
}

// openNodeDriver starts the container runtime and then enrolls the machine if it is not a node yet, so that a machine
// without a working runtime does not use up a token. If it fails, it restores a new folder to what it was.
func openNodeDriver(ctx context.Context, f *datadir.Folder, m local.Machine, link *clusterLink, enrolls func() error, logger *slog.Logger, u *undo) (*containerd.Driver, error) {
	undone := forsakeDriver(f, logger)
	d, err := openDriver(ctx, f, m, link.registryClient(), logger)
	if err != nil {
		undone()
		return nil, err
	}
	if enrolls != nil {
		if err := enrolls(); err != nil {
			logError(logger, "close driver", d.Close())
			undone()
			return nil, err
		}
		f.Keep()
	}
	u.add(func() { logError(logger, "close driver", d.Close()) })
	return d, nil
}

// forsakeDriver returns a function that removes the files of the container runtime from a folder, unless they existed
// before.
func forsakeDriver(f *datadir.Folder, logger *slog.Logger) func() {
	there := false
	for _, name := range []string{"containerd", "shim"} {
		_, err := os.Lstat(f.Path(name))
		there = there || err == nil
	}
	return func() {
		if !f.New() {
			return
		}
		if !there {
			logError(logger, "remove what the container runtime has left", containerd.Purge(context.Background(), maintenance.DriverOptions(f, "", nil, logger)))
			logError(logger, "remove what the container runtime has left", os.RemoveAll(f.RunDir()))
			_ = os.Remove(filepath.Dir(f.RunDir())) // succeeds when this was the last cloud
		}
		f.RemoveIfNew()
	}
}
