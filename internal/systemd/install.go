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

// Installer puts services in place and takes them away.
type Installer struct {
	// Service is the unit's name without .service.
	Service string
	// Root is put before every path, for the image of another machine: then
	// nothing is started or stopped. It is / for this machine.
	Root    string
	Manager Manager
	// BeforeStart is called when everything lies in place and the service does
	// not run yet. May be nil.
	BeforeStart func(ctx context.Context) error

	units string // where units lie, if not in unitDir
}

var serviceName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// Result is what an installation has done.
type Result struct {
	// UnitPath is where the unit lies.
	UnitPath string
	// Upgraded is whether the service was there before.
	Upgraded bool
	// Started is whether it runs now; not on the image of another machine.
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

// Install copies the program at source to the unit's Binary, writes the unit,
// and starts the service anew. Run again it is an upgrade. When a step fails,
// what was there before is put back.
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

// start makes the service run from what lies in place now.
func (i Installer) start(ctx context.Context, undo *[]func() error, upgraded bool) error {
	// What is taken back must be taken back although ctx may have ended.
	later := context.WithoutCancel(ctx)
	if !i.here() {
		return i.Manager.Do(ctx, i.running("enable", i.unit())...)
	}
	reload := func() error { return i.Manager.Do(later, "daemon-reload") }
	afterwards := reload
	if upgraded {
		afterwards = func() error { return errors.Join(reload(), i.Manager.Do(later, "restart", i.unit())) }
	}
	*undo = slices.Insert(*undo, 0, afterwards) // done last, when the files of before are back
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

// Installed is what an installed service says about itself; fs.ErrNotExist if
// there is none.
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

// Uninstall stops the service and takes its unit and program away. stopped is
// called in between, when the service runs no more and the program is still
// there. A second run finds nothing and says so with fs.ErrNotExist.
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
	// The unit goes last: as long as it is there, uninstall can be run again.
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

// replaceProgram puts a copy of source at path, which a running program may
// have: that one keeps its old file. Where source already is that file there is
// nothing to do.
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
