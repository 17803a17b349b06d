package containerd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// The embedded daemon passes the conformance suite.
func TestEmbedded(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	drivertest.Run(t, drivertest.Harness{
		Open:           func(t *testing.T) drivertest.Driver { return mustOpen(t, opts) },
		Import:         importArchive,
		UnknownImage:   unknownImage,
		KillSupervisor: func(t *testing.T, _ drivertest.Driver, id string) { killOwnShim(t, opts, id) },
		Traces:         func(t *testing.T) []string { return traces(t, opts) },
		Files:          func(t *testing.T) []string { return files(t, opts) },
	})
}

// A containerd of the machine passes it, too.
func TestOutside(t *testing.T) {
	opts := testOptions(t)
	root, state := startOutside(t, &opts)
	t.Cleanup(func() { mustPurge(t, opts) })
	drivertest.Run(t, drivertest.Harness{
		Open:           func(t *testing.T) drivertest.Driver { return mustOpen(t, opts) },
		Import:         importArchive,
		UnknownImage:   unknownImage,
		LateLogs:       true,
		NoSecretEnv:    true,
		KillSupervisor: func(t *testing.T, _ drivertest.Driver, id string) { killStockShim(t, opts, id) },
		Traces:         func(t *testing.T) []string { return traces(t, opts, root, state) },
		Files:          func(t *testing.T) []string { return files(t, opts, root, state) },
	})
	d := mustOpen(t, opts)
	defer d.Close()
	if len(d.Capabilities().Missing) == 0 {
		t.Error("what the stock shim cannot do is not said")
	}
}

// An outside daemon may start later, when the machine boots or both are upgraded. A killed
// one leaves its socket.
func TestOpenWaitsForTheOutsideDaemon(t *testing.T) {
	dir := t.TempDir()
	opts := testOptions(t)
	opts.Address = filepath.Join(dir, "containerd.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: opts.Address, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // with the usual overhead
	defer cancel()
	if _, err := Open(ctx, opts); err == nil || !strings.Contains(err.Error(), "no containerd answers at "+opts.Address+": start it (connection error") {
		t.Errorf("without one it says %v", err)
	}
	opened := make(chan error, 1)
	go func() {
		d, err := Open(t.Context(), opts)
		if err == nil {
			err = d.Close()
		}
		opened <- err
	}()
	time.Sleep(500 * time.Millisecond)
	t.Cleanup(launchOutside(t, opts, filepath.Join(dir, "root"), filepath.Join(dir, "state")))
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// A process started by exec survives a restart of the outside daemon, and stays connected
// to its caller. If the caller leaves meanwhile, it ends.
func TestExecSurvivesARestartOfTheOutsideDaemon(t *testing.T) {
	dir := t.TempDir()
	root, state := filepath.Join(dir, "root"), filepath.Join(dir, "state")
	opts := testOptions(t)
	opts.Address = filepath.Join(dir, "containerd.sock")
	kill := launchOutside(t, opts, root, state)
	t.Cleanup(func() {
		mustPurge(t, opts)
		kill()
	})
	d := mustOpen(t, opts)
	defer d.Close()
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	task := counter(t, ref, "host")
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	input, typed := io.Pipe()
	var output bytes.Buffer
	spoken, err := d.Exec(t.Context(), task.ID, driver.Exec{
		Command: []string{"sh", "-c", "read line; echo got $line; exit 7"}, Stdin: input, Stdout: &output,
	})
	if err != nil {
		t.Fatal(err)
	}
	left, err := d.Exec(t.Context(), task.ID, driver.Exec{Command: []string{"sh", "-c", "sleep 100000; echo left over"}})
	if err != nil {
		t.Fatal(err)
	}
	kill()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	ended := make(chan error, 1)
	go func() {
		_, err := left.Wait(ctx)
		ended <- err
	}()
	time.Sleep(200 * time.Millisecond)
	kill = launchOutside(t, opts, root, state)
	if err := <-ended; !errors.Is(err, context.Canceled) || len(leftOver(t, opts)) != 0 {
		t.Errorf("left by its caller, it ended with %v, and there are %v", err, leftOver(t, opts))
	}
	if _, err := io.WriteString(typed, "on\n"); err != nil {
		t.Fatal(err)
	}
	typed.Close()
	if code, err := spoken.Wait(t.Context()); code != 7 || err != nil || output.String() != "got on\n" {
		t.Errorf("it ended with %d, %v and said %q", code, err, output.String())
	}
}

// startOutside runs the machine's containerd with folders of the test's own.
func startOutside(t *testing.T, opts *Options) (root, state string) {
	t.Helper()
	dir := t.TempDir()
	root, state = filepath.Join(dir, "root"), filepath.Join(dir, "state")
	opts.Address = filepath.Join(dir, "containerd.sock")
	t.Cleanup(launchOutside(t, *opts, root, state))
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		d, err := Open(t.Context(), *opts)
		if err == nil {
			d.Close()
			return root, state
		}
		if time.Now().After(deadline) {
			t.Fatalf("containerd does not answer: %v", err)
		}
	}
}

// launchOutside does not wait until containerd answers.
func launchOutside(t *testing.T, opts Options, root, state string) (kill func()) {
	t.Helper()
	program, err := exec.LookPath("containerd")
	if err != nil {
		t.Fatalf("this test needs a containerd in PATH; install the package containerd: %v", err)
	}
	daemon := exec.Command(program, "--config", "/dev/null", "--root", root, "--state", state, "--address", opts.Address, "--log-level", "warn")
	daemon.Stdout, daemon.Stderr = io.Discard, testWriter{t}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		daemon.Process.Kill()
		daemon.Wait()
	}
}

func killOwnShim(t *testing.T, opts Options, id string) {
	t.Helper()
	if err := killShims(opts.shimDir(), id); err != nil {
		t.Fatal(err)
	}
}

func mustPurge(t *testing.T, opts Options) {
	t.Helper()
	opts.Log = quiet
	if err := Purge(withoutCancel(t), opts); err != nil {
		t.Error(err)
	}
}
