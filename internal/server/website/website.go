// Package website answers requests for buckets that come by routes: it serves a bucket as a web site, and passes requests for
// the S3 API on to that.
//
// It guarantees that nobody reaches a bucket by it that no route serves: whoever passes a request on, the state is asked.
// It must not know how requests find the node, its certificates or the rules of routes: the ingress has applied them.
package website

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/state"
)

// Options is what a Server is made of.
type Options struct {
	State *state.Store
	// CatchUp waits until this server has applied what the leader had committed when it was called. It may be nil.
	CatchUp func(context.Context) error
	// Bucket returns a bucket as the store needs it, or [object.ErrNoBucket].
	Bucket func(ctx context.Context, namespace, name string) (object.Bucket, error)
	// Objects opens the newest version of an object, as [object.Store] does. It is nil if this server has no objects.
	Objects Objects
	// S3 answers requests for the S3 API. It is nil if this server has none.
	S3 http.Handler
	// KeyNamespace is the namespace of an access key; empty if there is no such key. Claims returns the access key that a
	// request claims to be signed by.
	KeyNamespace func(ctx context.Context, id string) (string, error)
	Claims       func(r *http.Request) string
	Logger       *slog.Logger
}

// Objects are where content is.
type Objects interface {
	Open(ctx context.Context, b object.Bucket, key, versionID string) (object.Object, *object.Reader, error)
}

// Server answers the connections that agents pass on.
type Server struct {
	o    Options
	http *http.Server
}

// Requests that do not come, or not whole, end after these times.
const (
	headTimeout = 30 * time.Second
	idleTimeout = 2 * time.Minute
)

// New returns a server. The context is that of its requests.
func New(ctx context.Context, o Options) *Server {
	s := &Server{o: o}
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 1 << 20,
		ErrorLog:    slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConnection,
	}
	return s
}

// Serve answers connections, each of which begins with an [origin.Greeting], until Shutdown.
func (s *Server) Serve(l net.Listener) error { return s.http.Serve(connections{l}) }

// Shutdown lets requests end until ctx ends, and cuts the others.
func (s *Server) Shutdown(ctx context.Context) {
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := greetingOf(r)
	route, backend, err := s.find(r.Context(), g)
	switch {
	case err != nil:
		s.o.Logger.WarnContext(r.Context(), "a request for a bucket cannot be answered", "error", err)
		unavailable(w, "The server is behind the others.")
	case backend == nil:
		http.Error(w, "This is not served any more.", http.StatusNotFound)
	case backend.GetS3():
		s.serveS3(w, r, route.GetMetadata().GetNamespace())
	default:
		s.serveSite(w, r, route.GetMetadata().GetNamespace(), backend.GetBucket())
	}
}

// find returns the route of a greeting and its backend, or no backend if there is none such. A server that is behind the
// others catches up first.
func (s *Server) find(ctx context.Context, g origin.Greeting) (*v1.Route, *v1.RouteBackend, error) {
	route := s.o.State.Snapshot().Route(g.Route)
	backend := named(route, g)
	if backend == nil && s.o.CatchUp != nil {
		if err := s.o.CatchUp(ctx); err != nil {
			return nil, nil, err
		}
		route = s.o.State.Snapshot().Route(g.Route)
		backend = named(route, g)
	}
	return route, backend, nil
}

func named(r *v1.Route, g origin.Greeting) *v1.RouteBackend {
	for _, b := range r.GetSpec().GetBackends() {
		if g.Bucket == "" && b.GetS3() || g.Bucket != "" && b.GetBucket().GetName() == g.Bucket {
			return b
		}
	}
	return nil
}

func unavailable(w http.ResponseWriter, reason string) {
	w.Header().Set("Retry-After", "5")
	http.Error(w, reason, http.StatusServiceUnavailable)
}

// serveSite answers from a bucket. What is wrong with the store is a matter of the log, not of visitors.
func (s *Server) serveSite(w http.ResponseWriter, r *http.Request, namespace string, spec *v1.RouteBucket) {
	if s.o.Objects == nil {
		unavailable(w, "This server has no objects.")
		return
	}
	b, err := s.o.Bucket(r.Context(), namespace, spec.GetName())
	if err == nil {
		err = site{objects: s.o.Objects, bucket: b, spec: spec}.serve(w, r)
	}
	if err == nil || r.Context().Err() != nil {
		return
	}
	if errors.Is(err, object.ErrNoBucket) {
		http.Error(w, "The bucket of this site does not exist.", http.StatusNotFound)
		return
	}
	s.o.Logger.WarnContext(r.Context(), "an object of a web site cannot be read", "bucket", spec.GetName(), "namespace", namespace, "error", err)
	unavailable(w, "The content cannot be read now.")
}
