package containerd

import (
	"io"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

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
	})
}

// A containerd that the machine has passes it too.
func TestOutside(t *testing.T) {
	opts := testOptions(t)
	root, state := startOutside(t, &opts)
	t.Cleanup(func() { mustPurge(t, opts) })
	drivertest.Run(t, drivertest.Harness{
		Open:           func(t *testing.T) drivertest.Driver { return mustOpen(t, opts) },
		Import:         importArchive,
		UnknownImage:   unknownImage,
		LateLogs:       true,
		KillSupervisor: func(t *testing.T, _ drivertest.Driver, id string) { killStockShim(t, opts, id) },
		Traces:         func(t *testing.T) []string { return traces(t, opts, root, state) },
	})
	d := mustOpen(t, opts)
	defer d.Close()
	if len(d.Capabilities().Missing) == 0 {
		t.Error("what the stock shim cannot do is not said")
	}
}

// startOutside runs the machine's containerd with folders of the test's own.
func startOutside(t *testing.T, opts *Options) (root, state string) {
	t.Helper()
	program, err := exec.LookPath("containerd")
	if err != nil {
		t.Fatalf("this test needs a containerd in PATH; install the package containerd: %v", err)
	}
	dir := t.TempDir()
	root, state = filepath.Join(dir, "root"), filepath.Join(dir, "state")
	opts.Address = filepath.Join(dir, "containerd.sock")
	daemon := exec.Command(program, "--config", "/dev/null", "--root", root, "--state", state, "--address", opts.Address, "--log-level", "warn")
	daemon.Stdout, daemon.Stderr = io.Discard, testWriter{t}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		daemon.Process.Kill()
		daemon.Wait()
	})
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		d, err := Open(t.Context(), *opts)
		if err == nil {
			d.Close()
			return root, state
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v", program, err)
		}
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
