package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

const unitDir = "/etc/systemd/system"

// Installer installs and uninstalls services.
type Installer struct {
	// Service is the unit's name without .service.
	Service string
	// Root is a prefix of every path: / for this machine, or the image of another machine, where nothing is started or
	// stopped.
	Root    string
	Manager Manager
	// BeforeStart is called when all files are in place and the service does not run yet. May be nil.
	BeforeStart func(ctx context.Context) error

	units string // the folder of units, if not unitDir
}

var serviceName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// Result is the outcome of an installation.
type Result struct {
	// UnitPath is the path of the unit.
	UnitPath string
	// Upgraded reports whether the service existed before.
	Upgraded bool
	// Started reports whether the service runs now. It never does in the image of another machine.
	Started bool
}

func (i Installer) validate() error {
	if !serviceName.MatchString(i.Service) {
		return fmt.Errorf("%q is no name of a service: use lower-case letters, digits and dashes", i.Service)
	}
	if !filepath.IsAbs(i.Root) || i.Manager == nil {
		return errors.New("an installer needs an absolute Root and a Manager")
	}
	return nil
}

func (i Installer) unit() string          { return i.Service + ".service" }
func (i Installer) unitPath() string      { return i.on(filepath.Join(cmp.Or(i.units, unitDir), i.unit())) }
func (i Installer) on(path string) string { return filepath.Join(i.Root, path) }
func (i Installer) here() bool            { return filepath.Clean(i.Root) == "/" }
func (i Installer) running(args ...string) []string {
	if i.here() {
		return args
	}
	return append([]string{"--root=" + i.Root}, args...)
}

// Install copies the program at source to the unit's Binary, writes the unit, and starts or restarts the service. If a
// step fails, it restores the previous state.
func (i Installer) Install(ctx context.Context, source string, u Unit) (result Result, err error) {
	if err := i.validate(); err != nil {
		return result, err
	}
	text, err := u.Text()
	if err != nil {
		return result, err
	}
	result.UnitPath = i.unitPath()
	switch old, err := os.ReadFile(result.UnitPath); {
	case err == nil:
		if _, ours := notes(string(old)); !ours {
			return result, fmt.Errorf("%s was not made by cloudless install: choose another name with --service, or remove it", result.UnitPath)
		}
		result.Upgraded = true
	case !errors.Is(err, fs.ErrNotExist):
		return result, fmt.Errorf("read the unit: %w", err)
	}
	var undo []func() error
	var settle []func()
	defer func() {
		if err != nil {
			for _, back := range slices.Backward(undo) {
				err = errors.Join(err, back())
			}
		}
		for _, forget := range settle {
			forget()
		}
	}()
	binary := i.on(u.Binary)
	for _, put := range []func() (func() error, func(), error){
		func() (func() error, func(), error) { return replaceProgram(source, binary) },
		func() (func() error, func(), error) { return replaceFile(result.UnitPath, 0o644, []byte(text)) },
	} {
		back, forget, err := put()
		if err != nil {
			return result, err
		}
		undo, settle = append(undo, back), append(settle, forget)
	}
	if err := i.start(ctx, &undo, result.Upgraded); err != nil {
		return result, err
	}
	result.Started = i.here()
	return result, nil
}

// start starts or restarts the service from the installed files.
func (i Installer) start(ctx context.Context, undo *[]func() error, upgraded bool) error {
	// The undo must run even if ctx is done.
	later := context.WithoutCancel(ctx)
	if !i.here() {
		return i.Manager.Do(ctx, i.running("enable", i.unit())...)
	}
	reload := func() error { return i.Manager.Do(later, "daemon-reload") }
	afterwards := reload
	if upgraded {
		afterwards = func() error { return errors.Join(reload(), i.Manager.Do(later, "restart", i.unit())) }
	}
	*undo = slices.Insert(*undo, 0, afterwards) // runs last, when the previous files are restored
	if err := i.Manager.Do(ctx, "daemon-reload"); err != nil {
		return err
	}
	if err := i.Manager.Do(ctx, "enable", i.unit()); err != nil {
		return err
	}
	if !upgraded {
		*undo = append(*undo, func() error { return i.Manager.Do(later, "disable", "--now", i.unit()) })
	}
	if i.BeforeStart != nil {
		if err := i.BeforeStart(ctx); err != nil {
			return err
		}
	}
	return i.Manager.Do(ctx, "restart", i.unit())
}

// Installed reads the unit of the installed service; fs.ErrNotExist if there is none.
func (i Installer) Installed() (Unit, error) {
	if err := i.validate(); err != nil {
		return Unit{}, err
	}
	text, err := os.ReadFile(i.unitPath())
	if err != nil {
		return Unit{}, fmt.Errorf("read the unit: %w", err)
	}
	u, ours := notes(string(text))
	if !ours {
		return Unit{}, fmt.Errorf("%s was not made by cloudless install: it is left alone", i.unitPath())
	}
	return u, nil
}

// Uninstall stops the service, calls stopped, and then removes the unit and the program. It returns fs.ErrNotExist if
// there is no service.
func (i Installer) Uninstall(ctx context.Context, stopped func(Unit) error) (Unit, error) {
	u, err := i.Installed()
	if err != nil {
		return u, err
	}
	stop := []string{"disable", "--now", i.unit()}
	if !i.here() {
		stop = i.running("disable", i.unit())
	}
	if err := i.Manager.Do(ctx, stop...); err != nil {
		return u, err
	}
	if err := stopped(u); err != nil {
		return u, err
	}
	// The unit is removed last: as long as it exists, uninstall can be repeated.
	if err := os.Remove(i.on(u.Binary)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, fmt.Errorf("remove the program: %w", err)
	}
	if err := os.Remove(i.unitPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, fmt.Errorf("remove the unit: %w", err)
	}
	if !i.here() {
		return u, nil
	}
	return u, i.Manager.Do(ctx, "daemon-reload")
}

func nothing() error { return nil }

// replaceProgram copies source to path. A process that runs the old file keeps it. It does nothing if source and path are
// the same file.
func replaceProgram(source, path string) (back func() error, settle func(), err error) {
	from, err := os.Open(source)
	if err != nil {
		return nil, nil, fmt.Errorf("open the program: %w", err)
	}
	defer func() { _ = from.Close() }()
	info, err := from.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("open the program: %w", err)
	}
	if there, err := os.Stat(path); err == nil && os.SameFile(info, there) {
		return nothing, func() {}, nil
	}
	return replace(path, 0o755, from)
}
