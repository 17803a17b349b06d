package maintenance

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/datadir/datadirtest"
	"github.com/cloudless/cloudless/internal/must"
)

func serviceIn(root string) local.ServiceOptions {
	return local.ServiceOptions{Name: "cloudless", Root: root, Progress: quiet}
}

func TestDryRunShowsTheUnitAndDoesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	said, err := Install(t.Context(), local.InstallOptions{
		ServiceOptions: serviceIn(root), Program: "/bin/true", BinDir: "/usr/local/bin", DataDir: "/d",
		Args: []string{"up", "--data-dir=/d"}, DryRun: true,
	})
	must.Succeed(t, err)
	if !strings.Contains(said, "ExecStart=/usr/local/bin/cloudless up --data-dir=/d\n") || must.List(t, root) != "" {
		t.Errorf("said %s, left %s", said, must.List(t, root))
	}
}

func TestInstallAndUninstallInAnImage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs the package systemd; make test installs it")
	}
	root := t.TempDir()
	o := local.InstallOptions{
		ServiceOptions: serviceIn(root), Program: "/bin/true", BinDir: "/opt/bin", DataDir: "/d",
		Args: []string{"agent", "--data-dir=/d"},
	}
	for range 2 {
		said, err := Install(t.Context(), o)
		must.Succeed(t, err)
		if !strings.Contains(said, "starts with the machine") {
			t.Errorf("said %q", said)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "opt/bin/cloudless")); err != nil {
		t.Error(err)
	}
	if _, err := Uninstall(t.Context(), local.UninstallOptions{ServiceOptions: serviceIn(root), Purge: true}); err == nil || !strings.Contains(err.Error(), "--purge is for this machine") {
		t.Errorf("purged an image: %v", err)
	}
	said, err := Uninstall(t.Context(), local.UninstallOptions{ServiceOptions: serviceIn(root)})
	must.Succeed(t, err)
	if !strings.Contains(said, "containers go on running") {
		t.Errorf("said %q", said)
	}
	if _, err := Uninstall(t.Context(), local.UninstallOptions{ServiceOptions: serviceIn(root)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("uninstalled twice: %v", err)
	}
}

// active stands for a systemd in which the service runs, or not.
type active bool

func (a active) Do(context.Context, ...string) error {
	if a {
		return nil
	}
	return errors.New("inactive")
}

func TestInstallStopsAProcessThatWasStartedByHand(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	byHand := datadirtest.Hold(t, path)
	o := local.InstallOptions{ServiceOptions: serviceIn("/"), DataDir: path}
	must.Succeed(t, stopOther(t.Context(), active(true), o)) // it is the service itself: systemd ends it
	must.Succeed(t, byHand.Process.Signal(syscall.Signal(0)))
	must.Succeed(t, stopOther(t.Context(), active(false), o))
	if got := datadirtest.SignalOf(t, byHand); got != syscall.SIGTERM {
		t.Errorf("the process ended by %v", got)
	}
	f, err := datadir.Open(path) // and the folder is free
	must.Succeed(t, err)
	f.Release()
	must.Succeed(t, stopOther(t.Context(), active(false), local.InstallOptions{ServiceOptions: serviceIn("/"), DataDir: filepath.Join(path, "none")}))
}
