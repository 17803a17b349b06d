// Package images handles the images of the cluster's own registry and of others: the digests of tags, the workloads
// that use an image, the copies on every server, and the HTTP side of the registry.
//
// It guarantees that a push is answered only when a majority of the servers has the image. All it knows of workloads is
// which images they use.
package images

import (
	"context"
	"net/http"
	"path"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Images handles the images of one server.
type Images struct {
	*core.Core
	registry *registry.Registry
	sealer   *identity.Sealer
	foreign  *foreign
	peers    *relay.Conns
	router   *relay.Router
	// peerConfig authenticates this server to the others, and address is where it listens.
	peerConfig peers.Config
	address    string
	stopping   context.Context
	mirrors    mirrors
	failures   telemetry.Failures
	// Patience limits the time to copy one image from one server to another.
	Patience time.Duration
}

// Options are the parts of Images.
type Options struct {
	Core     *core.Core
	Registry *registry.Registry
	// Sealer opens the passwords of registries.
	Sealer *identity.Sealer
	// Foreign carries requests to registries outside the cluster; nil means a transport with the proxy settings of the
	// environment, which connects to private addresses only where the configuration says so.
	Foreign http.RoundTripper
	Conns   *relay.Conns
	Router  *relay.Router
	// PeerConfig authenticates this server to the others.
	PeerConfig peers.Config
	// Address is the address that this server listens on.
	Address string
	// Stopping ends when the server stops.
	Stopping context.Context
}

// New makes the images of a server.
func New(o Options) *Images {
	return &Images{
		Core: o.Core, registry: o.Registry, sealer: o.Sealer, foreign: newForeign(o.Foreign, o.Core.Now, func() []string {
			return o.Core.Store.Snapshot().Cluster().GetSpec().GetSecurity().GetPrivateRegistries()
		}),
		peers: o.Conns, router: o.Router, peerConfig: o.PeerConfig, address: o.Address, stopping: o.Stopping,
		mirrors: mirrors{transports: map[string]*http.Transport{}}, Patience: copyPatience,
	}
}

// Resolve returns the image that a name stands for, from another server if necessary.
func (s *Images) Resolve(ctx context.Context, snap *state.Snapshot, name image.Name) (registry.Descriptor, error) {
	digest := DigestIn(snap, name.Repository, name.Reference())
	if digest == "" {
		return registry.Descriptor{}, registry.ErrNotFound
	}
	if s.promised(snap, name.Repository, digest) {
		if err := s.Have(ctx, name.Repository, digest); err != nil {
			return registry.Descriptor{}, err
		}
	}
	found, err := s.registry.Resolve(ctx, name.Repository, digest)
	if t := snap.Tag(name.Repository, name.Tag); err == nil && t.GetDigest() == digest {
		found.PushTime = t.GetPushTime().AsTime()
	}
	return found, err
}

// DeletedImage returns the image that was last deleted under the name, if it can be restored.
func (s *Images) DeletedImage(snap *state.Snapshot, name image.Name) *registry.Deleted {
	for _, d := range s.DeletedIn(snap) {
		if deletedAs(d, name.Repository, name.Reference()) {
			return &d
		}
	}
	return nil
}

// unpushedImage says what to do about an image that a workload cannot use.
func (s *Images) unpushedImage(snap *state.Snapshot, from string, name image.Name) error {
	if deleted := s.DeletedImage(snap, name); deleted != nil {
		return core.Refuse(codes.FailedPrecondition, "image %s was deleted; restore it with: cloudless image restore %s", from, from)
	}
	if near := Nearest(snap, from); near != "" {
		return core.Refuse(codes.FailedPrecondition, "image %s is not in the cluster's registry; did you mean %s?", from, near)
	}
	return core.Refuse(codes.FailedPrecondition,
		"image %s is not in the cluster's registry; push it first (cloudless run ./%s does), or name the registry it is in, such as %s",
		from, path.Base(name.Repository), name.Public())
}

func ParseName(field, from string) (image.Name, error) {
	name, err := image.ParseName(from)
	if err != nil {
		return image.Name{}, &spec.Error{Violations: []spec.Violation{{Field: field, Message: err.Error()}}}
	}
	return name, nil
}

// maxImageCandidates limits how many tags are compared with a misspelled name.
const maxImageCandidates = 20_000

// Nearest returns the name in the cluster's own registry that the caller may mean, if any.
func Nearest(snap *state.Snapshot, name string) string {
	return suggest.To(name, func(yield func(string) bool) {
		looked := 0
		for t := range snap.Tags() {
			if looked++; looked > maxImageCandidates {
				return
			}
			if t.GetDigest() == "" {
				continue
			}
			repository, tag := TagName(t)
			if tag == image.DefaultTag && !yield(repository) || !yield(repository+":"+tag) {
				return
			}
		}
	})
}

// collectInterval is how often unused blobs are removed.
const collectInterval = time.Hour

// Prune regularly removes what no image needs.
func (s *Images) Prune(ctx context.Context) error {
	ticker := time.NewTicker(collectInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		freed, err := s.registry.Collect(ctx, registry.CollectOptions{Keep: s.Keep(s.Store.Snapshot())})
		if err != nil && ctx.Err() == nil {
			s.Logger.WarnContext(ctx, "images could not be collected, will try again", "error", err, "in", collectInterval)
		}
		if freed > 0 {
			s.Logger.InfoContext(ctx, "removed what no image needs", "bytes", freed)
		}
	}
}
