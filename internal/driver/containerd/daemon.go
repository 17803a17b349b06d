package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"

	"github.com/cloudless/cloudless/internal/lockfile"
)

// daemon is containerd inside this process. It serves the same API as an outside one, on a
// socket that only root can open. So the driver talks to both in the same way, and the
// usual tools can look inside.
type daemon struct {
	opts    Options
	logs    *logHook
	lock    *lockfile.Lock
	cancel  context.CancelFunc
	plugins *plugin.Set
	grpc    *grpc.Server
	ttrpc   *ttrpc.Server
	serving sync.WaitGroup
}

// startDaemon returns once the daemon answers. It takes over the tasks of an earlier daemon
// on the same folders.
func startDaemon(opts Options) (_ *daemon, err error) {
	d := &daemon{opts: opts, logs: routeLogs(opts.Log), plugins: plugin.NewPluginSet()}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	for _, dir := range []string{opts.rootDir(), opts.stateDir(), opts.socketDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make a folder of the embedded containerd: %w", err)
		}
	}
	if d.lock, err = lockDir(opts.rootDir()); err != nil {
		return nil, err
	}
	if err := d.load(ctx); err != nil {
		return nil, err
	}
	if err := d.serve(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// lockDir keeps a second daemon away from the folder. Without it the second one
// would wait forever for the database.
func lockDir(dir string) (*lockfile.Lock, error) {
	lock, err := lockfile.Hold(filepath.Join(dir, "lock"))
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return nil, fmt.Errorf("the folder %s is in use by another process; stop that one or choose another data folder", dir)
	case err != nil:
		return nil, fmt.Errorf("lock the folder of the embedded containerd: %w", err)
	}
	return lock, nil
}

// load starts the plugins in dependency order.
func (d *daemon) load(ctx context.Context) error {
	registrations, err := d.registrations()
	if err != nil {
		return err
	}
	for _, registration := range registrations {
		id := registration.URI()
		init := plugin.NewContext(ctx, d.plugins, map[string]string{
			plugins.PropertyRootDir:      filepath.Join(d.opts.rootDir(), id),
			plugins.PropertyStateDir:     filepath.Join(d.opts.stateDir(), id),
			plugins.PropertyGRPCAddress:  d.opts.address(),
			plugins.PropertyTTRPCAddress: d.opts.ttrpcAddress(),
		})
		init.Config = registration.Config
		result := registration.Init(init)
		if err := result.Err(); err != nil {
			return fmt.Errorf("start %s of the embedded containerd: %w", id, err)
		}
		if err := d.plugins.Add(result); err != nil {
			return fmt.Errorf("start %s of the embedded containerd: %w", id, err)
		}
	}
	return nil
}

// serve opens the two sockets: one for clients, one for the events of shims.
func (d *daemon) serve(ctx context.Context) error {
	var err error
	d.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize),
		grpc.WaitForHandlers(true),
	)
	if d.ttrpc, err = ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser())); err != nil {
		return fmt.Errorf("make the event server of the embedded containerd: %w", err)
	}
	if err := d.register(); err != nil {
		return err
	}
	clients, err := listen(d.opts.address())
	if err != nil {
		return err
	}
	shims, err := listen(d.opts.ttrpcAddress())
	if err != nil {
		clients.Close()
		return err
	}
	d.goServe("API", func() error { return d.grpc.Serve(clients) })
	d.goServe("event", func() error { return d.ttrpc.Serve(ctx, shims) })
	return nil
}

func (d *daemon) register() error {
	for _, loaded := range d.plugins.GetAll() {
		instance, err := loaded.Instance()
		if err != nil {
			return err
		}
		if service, ok := instance.(interface{ Register(*grpc.Server) error }); ok {
			if err := service.Register(d.grpc); err != nil {
				return fmt.Errorf("register %s: %w", loaded.Registration.URI(), err)
			}
		}
		if service, ok := instance.(interface{ RegisterTTRPC(*ttrpc.Server) error }); ok {
			if err := service.RegisterTTRPC(d.ttrpc); err != nil {
				return fmt.Errorf("register %s: %w", loaded.Registration.URI(), err)
			}
		}
	}
	return nil
}

func (d *daemon) goServe(what string, serve func() error) {
	d.serving.Go(func() {
		if err := serve(); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
			d.opts.Log.Error("A server of the embedded containerd ended.", "server", what, "error", err)
		}
	})
}

// listen creates a socket that only this user can open. The folder is closed to others, so
// that the socket is never open to them.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for clients of the embedded containerd: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("protect the socket of the embedded containerd: %w", err)
	}
	return listener, nil
}

// Close ends the daemon and leaves every task running.
func (d *daemon) Close() error {
	if d.grpc != nil {
		d.grpc.Stop()
	}
	if d.ttrpc != nil {
		d.ttrpc.Close()
	}
	d.serving.Wait()
	d.releaseShims()
	d.cancel()
	var errs []error
	for _, loaded := range slices.Backward(d.plugins.GetAll()) {
		instance, err := loaded.Instance()
		if err != nil {
			continue
		}
		if closer, ok := instance.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				errs = append(errs, fmt.Errorf("close %s: %w", loaded.Registration.URI(), err))
			}
		}
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	return errors.Join(errs...)
}
