// Package storage puts the object store of one server together: the engine over the names and the disks, the loops that
// keep what it promises and tell of it by events, and its front ends. It knows what starts and ends in which order, and
// nothing of objects.
package storage

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	loops "github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/server/objects"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/server/s3"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Options is what the object store of a server is made of.
type Options struct {
	// ID is the uid of this server.
	ID     string
	Names  *names.Group
	Disks  object.Disks
	State  *state.Store
	Logger *slog.Logger
	Scrape *telemetry.Registry
	// News makes events of what the loops tell.
	News *News
	// Conn connects with another server.
	Conn func(ctx context.Context, server string) (*grpc.ClientConn, error)
	// OverQuota is called for whatever a quota refuses, and must return at once.
	OverQuota func(object.Bucket, *object.QuotaError)
}

// Storage is the object store of a server.
type Storage struct {
	*object.Store
	o       Options
	loops   *loops.Loops
	gateway *s3.Gateway // nil if another server of this process has it
}

// New opens the store. It has no front ends before Serve.
func New(o Options) (*Storage, error) {
	s := &Storage{o: o}
	var err error
	if s.loops, err = loops.New(loops.Options{
		Names: o.Names, Disks: o.Disks, Logger: o.Logger, OfflineSince: s.offlineSince, Removed: s.removed, Tell: o.News.tell,
		Settings: s.settings, Metrics: telemetry.NewObjects(o.Scrape),
	}); err != nil {
		return nil, err
	}
	s.Store, err = object.New(object.Options{Names: o.Names, Disks: o.Disks, Logger: o.Logger, OverQuota: o.OverQuota})
	return s, err
}

// Serve registers the services.
func (s *Storage) Serve(server grpc.ServiceRegistrar, directory s3.Directory) error {
	service, err := objects.New(objects.Options{Store: s.Store, Directory: directory, Disks: s.o.Disks, Logger: s.o.Logger})
	if err != nil {
		return err
	}
	v1.RegisterObjectServiceServer(server, service)
	v1.RegisterStorageServiceServer(server, objects.NewStorage(objects.StorageOptions{
		Keeper: s.loops, Disks: s.o.Disks, Store: s.o.State, Leader: s.o.Names.Leader, ID: s.o.ID, Conn: s.o.Conn,
	}))
	s.gateway, err = s3.New(s3.Options{
		Store: s.Store, Directory: vouching{directory}, Logger: s.o.Logger, Metrics: telemetry.NewS3(s.o.Scrape),
	})
	if errors.Is(err, s3.ErrServed) {
		s.o.Logger.Warn("Another server of this process answers S3 clients, and this one does not.")
		return nil
	}
	return err
}

// Handler answers S3 clients, and passes all other requests on.
func (s *Storage) Handler(others http.Handler) http.Handler {
	if s.gateway == nil {
		return others
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s3.Signed(r) && !preflight(r) {
			others.ServeHTTP(w, r)
			return
		}
		s.gateway.ServeHTTP(w, r)
	})
}

// S3 returns what answers all requests as those of S3 clients, and what finds the access key that a request claims to be
// signed by. The handler is nil if this server answers none.
func (s *Storage) S3() (handler http.Handler, claimed func(*http.Request) string) {
	if s.gateway == nil {
		return nil, s3.Claimed
	}
	return s.gateway, s3.Claimed
}

// preflight is whether a browser asks if a page may send a request. The API itself answers no pages of others.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// vouching tells the port that the caller of a connection has proved who it is.
type vouching struct{ s3.Directory }

// Verified implements s3.Verifier.
func (vouching) Verified(ctx context.Context) { oneport.StrangerOf(ctx).Authenticated() }

// Run keeps what the store promises, on the server that leads the names, until ctx ends.
func (s *Storage) Run(ctx context.Context) error { return s.o.Names.Lead(ctx, s.lead) }

// leadPause is the pause before loops that have failed begin again.
const leadPause = time.Second

func (s *Storage) lead(ctx context.Context) error {
	var telling sync.WaitGroup
	telling.Go(func() { s.o.News.run(ctx) })
	defer telling.Wait()
	for {
		err := s.loops.Run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.o.Logger.Error("the loops of the object store begin again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(leadPause):
		}
	}
}

// Close ends what the store does in the background. Requests must have ended before.
func (s *Storage) Close() {
	if s.gateway != nil {
		s.gateway.Close()
	}
	s.Store.Close()
}

// offlineSince is since when a node is offline, if it is.
func (s *Storage) offlineSince(uid string) (time.Time, bool) {
	node := s.o.State.Snapshot().Node(uid)
	if node.GetStatus().GetState() != "offline" || node.GetStatus().GetLastSeen() == nil {
		return time.Time{}, false
	}
	return node.GetStatus().GetLastSeen().AsTime(), true
}

// removed is whether a node was removed for good. A server that lags may not know a new node, but it knows no revocation
// of it either.
func (s *Storage) removed(uid string) bool {
	snap := s.o.State.Snapshot()
	return snap.Node(uid) == nil && snap.Revocation(uid) != nil
}

// settings are those of the cluster, now.
func (s *Storage) settings() spec.Storage {
	return spec.StorageOf(s.o.State.Snapshot().Cluster().GetSpec())
}
