package app

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
)

// holdEnv makes this program hold the data folder that it names, instead of
// running tests; with stubbornEnv it does not listen to SIGTERM.
const (
	holdEnv     = "CLOUDLESS_TEST_HOLD"
	stubbornEnv = "CLOUDLESS_TEST_STUBBORN"
)

func hold(path string) {
	if os.Getenv(stubbornEnv) != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	if _, err := openFolder(path); err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("held\n")
	select {} // the parent ends it
}

// holder starts a process that holds the folder.
func holderOf(t *testing.T, path string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), holdEnv+"="+path), env...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return cmd
}

func signalOf(t *testing.T, cmd *exec.Cmd) syscall.Signal {
	t.Helper()
	err := cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("the process ended with %v", err)
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}

func quiet(string) {}

func TestSecondProcessIsRefusedWithThePIDOfTheFirst(t *testing.T) {
	path := t.TempDir()
	first := holderOf(t, path)
	_, err := openFolder(path)
	held, ok := errors.AsType[*local.AlreadyRunningError](err)
	if !ok || held.PID != first.Process.Pid {
		t.Errorf("opened with %v, want AlreadyRunningError of process %d", err, first.Process.Pid)
	}
}

func TestTakeOverStopsTheProcessAndHoldsItsFolder(t *testing.T) {
	path := t.TempDir()
	first := holderOf(t, path)
	var said []string
	f, _, err := takeOver(t.Context(), path, func(s string) { said = append(said, s) })
	must(t, err)
	defer f.release()
	if got := signalOf(t, first); got != syscall.SIGTERM {
		t.Errorf("the process ended by %v", got)
	}
	if f.ID == "" || readHolder(path).PID != os.Getpid() || len(said) == 0 {
		t.Errorf("took over %+v, held by %+v, saying %q", f.folderID, readHolder(path), said)
	}
}

func TestProcessThatDoesNotListenIsKilled(t *testing.T) {
	path := t.TempDir()
	stubborn := holderOf(t, path, stubbornEnv+"=1")
	must(t, stopHolder(t.Context(), &local.AlreadyRunningError{DataDir: path, PID: stubborn.Process.Pid}, 50*time.Millisecond))
	if got := signalOf(t, stubborn); got != syscall.SIGKILL {
		t.Errorf("the process ended by %v", got)
	}
}

func TestWaitingForAProcessEndsWithTheContext(t *testing.T) {
	path := t.TempDir()
	stubborn := holderOf(t, path, stubbornEnv+"=1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := stopHolder(ctx, &local.AlreadyRunningError{DataDir: path, PID: stubborn.Process.Pid}, time.Hour)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

// The number in the lock file may be that of a process which died long ago, and
// meanwhile of one that has nothing to do with us.
func TestProcessThatDoesNotHoldTheFolderIsNeverStopped(t *testing.T) {
	path := t.TempDir()
	holderOf(t, path)
	stranger := holderOf(t, t.TempDir())
	err := stopHolder(t.Context(), &local.AlreadyRunningError{DataDir: path, PID: stranger.Process.Pid}, time.Hour)
	if !errors.Is(err, errElusive) {
		t.Errorf("stopping a stranger: %v", err)
	}
	must(t, stranger.Process.Signal(syscall.Signal(0)))
	if err := stopHolder(t.Context(), &local.AlreadyRunningError{DataDir: path}, time.Hour); !errors.Is(err, errElusive) {
		t.Errorf("stopping a holder that has not said who it is: %v", err)
	}
	must(t, stranger.Process.Kill())
	_ = stranger.Wait()
	must(t, stopHolder(t.Context(), &local.AlreadyRunningError{DataDir: path, PID: stranger.Process.Pid}, time.Hour)) // is gone already
}

func TestDownWithoutAnythingDoesNothing(t *testing.T) {
	path := t.TempDir()
	for _, purge := range []bool{false, true} {
		err := down(t.Context(), local.DownOptions{DataDir: path, Progress: quiet, Purge: purge})
		if !errors.Is(err, local.ErrNoCloud) || entries(t, path) != "" {
			t.Errorf("said %v and left %q", err, entries(t, path))
		}
	}
}

// A first start that fails leaves no folder behind, even where the client
// configuration cannot be read.
func TestFailedStartLeavesNoFolderDespiteABrokenConfiguration(t *testing.T) {
	path, config := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, nil, 0o644))
	f, err := openFolder(path)
	must(t, err)
	must(t, f.remember(func(id *folderID) { id.Cluster = "c-1" }))
	must(t, os.MkdirAll(f.sub("server", "raft"), 0o700))
	f.abandon(t.Context(), config, slog.New(slog.DiscardHandler))
	f.release()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s", entries(t, path))
	}
}

// No cluster is founded that nobody could call.
func TestServerIsNotFoundedWithABrokenConfiguration(t *testing.T) {
	path, config := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, nil, 0o644))
	did := ""
	err := runServer(t.Context(), local.ServerOptions{
		Process:    local.Process{DataDir: path, Log: io.Discard, Progress: func(doing string) { did += doing + ";" }, Ready: quiet},
		ConfigPath: config, Reach: local.Reach{APIAddr: "127.0.0.1:0"},
	})
	if err == nil || !strings.Contains(err.Error(), "chmod 600") || did != "" {
		t.Errorf("refused with %v after %q", err, did)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s", entries(t, path))
	}
}

func TestPurgeTakesWhatIsOursAndNothingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	f, err := openFolder(path)
	must(t, err)
	must(t, f.remember(func(id *folderID) { id.Cluster = "c-1" }))
	for _, name := range []string{"server", "server/raft", "logs", "shim"} {
		must(t, os.MkdirAll(f.sub(name, "deep"), 0o700))
	}
	must(t, os.WriteFile(f.sub("thesis.txt"), []byte("mine"), 0o600))
	must(t, os.MkdirAll(f.runDir(), 0o700))
	neighbour := runDir("test-neighbour-" + f.ID)
	must(t, os.MkdirAll(neighbour, 0o700))
	t.Cleanup(func() {
		_ = os.RemoveAll(neighbour)
		_ = os.Remove(filepath.Dir(neighbour))
	})
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, client.UpdateConfig(config, func(c *client.Config) error {
		c.Set(client.Context{Name: "ours", Cluster: "c-1", Addresses: []string{"127.0.0.1:1"}})
		c.Set(client.Context{Name: "theirs", Cluster: "c-2", Addresses: []string{"127.0.0.1:2"}})
		return nil
	}))
	f.release()

	must(t, down(t.Context(), local.DownOptions{
		DataDir: path, Progress: quiet, LogLevel: slog.LevelError, Purge: true, ConfigPath: config,
	}))
	if got := entries(t, path); got != "thesis.txt" {
		t.Errorf("left in the folder: %s", got)
	}
	if _, err := os.Stat(f.runDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", f.runDir())
	}
	if _, err := os.Stat(neighbour); err != nil {
		t.Errorf("the folder of another cloud: %v", err)
	}
	must(t, client.UpdateConfig(config, func(c *client.Config) error {
		if len(c.Contexts) != 1 || c.Contexts[0].Name != "theirs" {
			t.Errorf("the configuration has %v", c.Contexts)
		}
		return nil
	}))
	must(t, os.Remove(filepath.Join(path, "thesis.txt")))
	f, err = openFolder(path)
	must(t, err)
	must(t, purge(t.Context(), f, "", slog.New(slog.DiscardHandler)))
	f.release()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("an empty folder is left")
	}
}
