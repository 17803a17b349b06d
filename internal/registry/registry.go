package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

// Options configures a registry.
type Options struct {
	Dir    string       // holds everything, and no other files; created if missing
	Logger *slog.Logger // gets errors, and at debug level every request

	// KeepDeleted is how long an image that is deleted now can be restored; nil means a
	// day.
	KeepDeleted func() time.Duration
	// Grace is how long a push may take between a layer and the manifest that names it
	// without losing the layer to a collection; 0 means an hour.
	Grace time.Duration
}

// Registry is an open registry. It is safe for concurrent use.
type Registry struct {
	dir         string
	keepDeleted func() time.Duration
	grace       time.Duration

	app       *handlers.App
	images    catalog
	reaches   reaches
	digests   digests
	offers    offers
	pushes    pushes
	log       logBridge
	closed    <-chan struct{}
	closeOnce func()

	// changing is held by deletions, restores and collections. It guards the rest.
	changing sync.Mutex
	known    map[string]node   // manifests that were read
	released map[imageRef]bool // manifests to remove at once; true even if they are in use
}

const (
	defaultKeepDeleted = 24 * time.Hour
	defaultGrace       = time.Hour
)

// release makes the next collection remove a manifest, whatever its age, and if forced,
// even if it is in use. The caller holds changing.
func (r *Registry) release(key imageRef, forced bool) {
	if r.released == nil {
		r.released = map[imageRef]bool{}
	}
	r.released[key] = forced
}

// catalog is the part of the storage that is read without going through HTTP.
type catalog interface {
	distribution.Namespace
	distribution.RepositoryEnumerator
}

// Open opens the registry in its folder. The context is only for opening; the registry
// lives until Close.
func Open(ctx context.Context, opts Options) (*Registry, error) {
	if opts.Dir == "" {
		return nil, errors.New("open registry: no folder was given: set Dir")
	}
	if opts.Logger == nil {
		return nil, errors.New("open registry: no logger was given: set Logger")
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	secret, err := loadSecret(filepath.Join(opts.Dir, "upload-secret"))
	if err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	log := newLogBridge(opts.Logger)
	lifetime, cancel := context.WithCancel(log.context(context.WithoutCancel(ctx)))
	images, err := openCatalog(lifetime, opts.Dir)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open registry: %w", err)
	}

	r := &Registry{
		dir:         opts.Dir,
		keepDeleted: opts.KeepDeleted,
		grace:       cmp.Or(opts.Grace, defaultGrace),

		app:    handlers.NewApp(lifetime, config(opts.Dir, secret)),
		images: images,
		log:    log,
		closed: lifetime.Done(),
	}
	if r.keepDeleted == nil {
		r.keepDeleted = func() time.Duration { return defaultKeepDeleted }
	}
	r.pushes.tidy = r.tidyUpload
	var running sync.WaitGroup
	running.Go(func() { purgeUploads(lifetime, opts.Dir, opts.Logger) })
	r.closeOnce = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		closeEvents(r.app)
	})
	return r, nil
}

// Close ends the registry's goroutines and waits for them. The server that serves Handler
// should have been shut down before; later requests get a 503.
func (r *Registry) Close() error {
	r.closeOnce()
	return r.app.Shutdown()
}

// Handler serves the OCI distribution API under /v2/. It does not check permissions: every
// request may read, write and delete everything.
func (r *Registry) Handler() http.Handler {
	return withRoom(r.dir, r.digests.forgetting(r.pushes.guard(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case <-r.closed:
			http.Error(w, "the registry is shutting down: try again", http.StatusServiceUnavailable)
		default:
			r.app.ServeHTTP(w, req.WithContext(r.log.context(req.Context())))
		}
	}))))
}

func openCatalog(ctx context.Context, dir string) (catalog, error) {
	parameters := filesystem.DriverParameters{RootDirectory: dir, MaxThreads: storageThreads}
	namespace, err := storage.NewRegistry(ctx, filesystem.New(parameters), storage.EnableDelete, storage.TagLookupConcurrencyLimit(lookups))
	if err != nil {
		return nil, err
	}
	images, ok := namespace.(catalog)
	if !ok {
		return nil, fmt.Errorf("the storage (%T) cannot list its repositories", namespace)
	}
	return images, nil
}

// storageThreads bounds the number of threads that wait for the disk at once.
const storageThreads = 100

// lookups is how many tags are read at once to find those of a digest.
const lookups = 8

func config(dir, secret string) *configuration.Configuration {
	c := &configuration.Configuration{
		Storage: configuration.Storage{
			"filesystem": configuration.Parameters{"rootdirectory": dir, "maxthreads": storageThreads},
			"delete":     configuration.Parameters{"enabled": true},
			// Its purger cannot be waited for; purgeUploads does the same.
			"maintenance": configuration.Parameters{"uploadpurging": map[any]any{"enabled": false}},
		},
	}
	c.HTTP.Secret = secret
	// Absolute ones would repeat whatever host the client claims to talk to.
	c.HTTP.RelativeURLs = true
	// Without these, a list of repositories is always empty.
	c.Catalog.MaxEntries, c.Tags.MaxTags = listed, listed
	return c
}

// listed is how many repositories, or tags, are on one page of a list.
const listed = 1000
