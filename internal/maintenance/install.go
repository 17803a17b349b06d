package maintenance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/systemd"
)

// Install installs a systemd service. It stops a process that was started by hand on the same data folder; the
// containers keep running.
func Install(ctx context.Context, o local.InstallOptions) (string, error) {
	unit := systemd.Unit{Binary: filepath.Join(o.BinDir, "cloudless"), Args: o.Args, DataDir: o.DataDir}
	if o.DryRun {
		text, err := unit.Text()
		return strings.TrimSuffix(text, "\n"), err
	}
	i, err := installer(o.ServiceOptions)
	if err != nil {
		return "", err
	}
	if o.Root == "/" && o.Args[0] == "agent" {
		if _, err := os.Stat(filepath.Join(o.DataDir, "agent", "identity.pem")); errors.Is(err, os.ErrNotExist) {
			return "", enroll.NotJoined(o.DataDir)
		}
	}
	i.BeforeStart = func(ctx context.Context) error { return stopOther(ctx, i.Manager, o) }
	o.Progress("installing and starting the service")
	result, err := i.Install(ctx, o.Program, unit)
	if err != nil {
		return "", fmt.Errorf("install the service %s: %w", o.Name, err)
	}
	switch {
	case !result.Started:
		return fmt.Sprintf("service %s is in %s and starts with the machine", o.Name, o.Root), nil
	case result.Upgraded:
		return fmt.Sprintf("service %s is upgraded and runs again; containers were not touched", o.Name), nil
	}
	return fmt.Sprintf("service %s runs and starts with the machine\nits log is read with: journalctl -u %s", o.Name, o.Name), nil
}

func installer(o local.ServiceOptions) (systemd.Installer, error) {
	i := systemd.Installer{Service: o.Name, Root: o.Root, Manager: systemd.Systemctl{}}
	if o.Root != "/" {
		return i, nil
	}
	if os.Geteuid() != 0 {
		return i, errors.New("only root may change the services of this machine: use sudo")
	}
	return i, systemd.Running()
}

// stopOther stops the process that holds the data folder, unless it is the service itself, which systemd stops.
func stopOther(ctx context.Context, manager systemd.Manager, o local.InstallOptions) error {
	if manager.Do(ctx, "is-active", "--quiet", o.Name+".service") == nil {
		return nil
	}
	f, ran, err := datadir.TakeOver(ctx, o.DataDir, o.Progress)
	ran.Close()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop what runs on %s: %w", o.DataDir, err)
	}
	f.Release()
	return nil
}

// Uninstall removes a systemd service, and with Purge its containers and data.
func Uninstall(ctx context.Context, o local.UninstallOptions) (string, error) {
	if o.Purge && o.Root != "/" {
		return "", errors.New("--purge is for this machine: nothing runs below --root, so leave one of them out")
	}
	i, err := installer(o.ServiceOptions)
	if err != nil {
		return "", err
	}
	o.Progress("stopping the service")
	unit, err := i.Uninstall(ctx, func(u systemd.Unit) error {
		if !o.Purge {
			return nil
		}
		err := Down(ctx, local.DownOptions{DataDir: u.DataDir, Purge: true, ConfigPath: o.ConfigPath, Progress: o.Progress})
		if errors.Is(err, local.ErrNoCloud) {
			return nil // the service never ran, or was purged before
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("uninstall the service %s: %w", o.Name, err)
	}
	if o.Purge {
		return fmt.Sprintf("service %s, its containers and data folder %s are gone", o.Name, unit.DataDir), nil
	}
	return fmt.Sprintf("service %s is gone; containers go on running and the data stays in %s\ntake both back with: cloudless install\nend both with: cloudless down --purge --data-dir %s",
		o.Name, unit.DataDir, unit.DataDir), nil
}
