package maintenance

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/datadir/datadirtest"
	"github.com/cloudless/cloudless/internal/must"
)

func TestMain(m *testing.M) {
	datadirtest.Main()
	m.Run()
}

func quiet(string) {}

func TestDownWithoutAnythingDoesNothing(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	for _, purge := range []bool{false, true} {
		err := Down(t.Context(), local.DownOptions{DataDir: path, Progress: quiet, Purge: purge})
		if !errors.Is(err, local.ErrNoCloud) || must.List(t, path) != "" {
			t.Errorf("said %v and left %q", err, must.List(t, path))
		}
	}
}

// The tests that remove a cloud from /run run alone: they remove /run/cloudless as well if no other cloud is there.

// A failed first start leaves no folder behind, even if the client configuration cannot be read.
func TestFailedStartLeavesNoFolderDespiteABrokenConfiguration(t *testing.T) {
	path, config := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(config, nil, 0o644))
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	must.Succeed(t, f.Update(func(id *datadir.Record) { id.Cluster = "c-1" }))
	must.Succeed(t, os.MkdirAll(f.Path("server", "raft"), 0o700))
	if err := Abandon(t.Context(), f, config, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("abandoned with %v", err)
	}
	f.Release()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s", must.List(t, path))
	}
}

func TestPurgeRemovesOnlyOurFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	must.Succeed(t, f.Update(func(id *datadir.Record) { id.Cluster = "c-1" }))
	for _, name := range []string{"server", "server/raft", "logs", "shim"} {
		must.Succeed(t, os.MkdirAll(f.Path(name, "deep"), 0o700))
	}
	must.Succeed(t, os.WriteFile(f.Path("thesis.txt"), []byte("mine"), 0o600))
	must.Succeed(t, os.MkdirAll(f.RunDir(), 0o700))
	neighbour := datadir.RunDir("test-neighbour-" + f.ID)
	must.Succeed(t, os.MkdirAll(neighbour, 0o700))
	t.Cleanup(func() {
		_ = os.RemoveAll(neighbour)
		_ = os.Remove(filepath.Dir(neighbour))
	})
	config := filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, client.UpdateConfig(config, func(c *client.Config) error {
		c.Set(client.Context{Name: "ours", Cluster: "c-1", Addresses: []string{"127.0.0.1:1"}})
		c.Set(client.Context{Name: "theirs", Cluster: "c-2", Addresses: []string{"127.0.0.1:2"}})
		return nil
	}))
	f.Release()

	must.Succeed(t, Down(t.Context(), local.DownOptions{
		DataDir: path, Progress: quiet, LogLevel: slog.LevelError, Purge: true, ConfigPath: config,
	}))
	if got := must.List(t, path); got != "thesis.txt" {
		t.Errorf("left in the folder: %s", got)
	}
	if _, err := os.Stat(f.RunDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", f.RunDir())
	}
	if _, err := os.Stat(neighbour); err != nil {
		t.Errorf("the folder of another cloud: %v", err)
	}
	must.Succeed(t, client.UpdateConfig(config, func(c *client.Config) error {
		if len(c.Contexts) != 1 || c.Contexts[0].Name != "theirs" {
			t.Errorf("the configuration has %v", c.Contexts)
		}
		return nil
	}))
	must.Succeed(t, os.Remove(filepath.Join(path, "thesis.txt")))
	f, err = datadir.Open(path)
	must.Succeed(t, err)
	must.Succeed(t, purge(t.Context(), f, "", slog.New(slog.DiscardHandler)))
	f.Release()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("an empty folder is left")
	}
}

// Purging a copy of a folder that is in use on the same machine is refused before it touches what runs.
func TestPurgeOfACopyOnTheSameMachineIsRefused(t *testing.T) {
	f, err := datadir.Open(filepath.Join(t.TempDir(), "data"))
	must.Succeed(t, err)
	defer f.Release()
	t.Cleanup(func() { _ = os.RemoveAll(f.RunDir()) })
	must.Succeed(t, f.LockMachine())
	copied := t.TempDir()
	data, err := os.ReadFile(f.Path("cloud.json"))
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(filepath.Join(copied, "cloud.json"), data, 0o600))
	other, err := datadir.Open(copied)
	must.Succeed(t, err)
	defer other.Release()
	if err := purge(t.Context(), other, "", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "is a copy of another one, which is in use on this machine") {
		t.Errorf("purged with %v", err)
	}
	if _, err := os.Stat(f.RunDir()); err != nil {
		t.Errorf("what is in use is gone: %v", err)
	}
}
