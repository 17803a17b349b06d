// Package images are the images of the cluster's own registry and of others: what
// tags stand for, which workloads use an image, how every server gets a copy, and
// the HTTP side of the registry.
//
// It guarantees that a push is answered only when a majority of the servers has
// the image. It knows of workloads only which images they use.
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

// Images are those of one server.
type Images struct {
	*core.Core
	registry *registry.Registry
	sealer   *identity.Sealer
	foreign  *foreign
	peers    *relay.Conns
	router   *relay.Router
	// peerConfig is what this server proves itself with to the others, and address is where it listens.
	peerConfig peers.Config
	address    string
	stopping   context.Context
	mirrors    mirrors
	failures   telemetry.Failures
	// Patience bounds the copying of one image from one server to another.
	Patience time.Duration
}

// Options is what Images are made of.
type Options struct {
	Core     *core.Core
	Registry *registry.Registry
	// Sealer opens the passwords of registries.
	Sealer *identity.Sealer
	// Foreign carries questions to registries of others; nil asks as the environment of the process says.
	Foreign http.RoundTripper
	Conns   *relay.Conns
	Router  *relay.Router
	// PeerConfig is what this server proves itself with to the others.
	PeerConfig peers.Config
	// Address is where this server listens.
	Address string
	// Stopping ends when the server does.
	Stopping context.Context
}

// New makes the images of a server.
func New(o Options) *Images {
	return &Images{
		Core: o.Core, registry: o.Registry, sealer: o.Sealer, foreign: newForeign(o.Foreign, o.Core.Now),
		peers: o.Conns, router: o.Router, peerConfig: o.PeerConfig, address: o.Address, stopping: o.Stopping,
		mirrors: mirrors{transports: map[string]*http.Transport{}}, Patience: copyPatience,
	}
}

// Resolve reads what an image name stands for, from another server if need be.
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

// DeletedImage is what was deleted last under the name, if it can be restored.
func (s *Images) DeletedImage(snap *state.Snapshot, name image.Name) *registry.Deleted {
	for _, d := range s.DeletedIn(snap) {
		if deletedAs(d, name.Repository, name.Reference()) {
			return &d
		}
	}
	return nil
}

// unpushedImage says what to do about an image that a workload cannot have.
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

// maxImageCandidates bounds how many tags are looked at for what was meant.
const maxImageCandidates = 20_000

// Nearest is the name in the cluster's own registry that may have been
// meant, if any.
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

// collectInterval is how often blobs that belong to nothing are removed.
const collectInterval = time.Hour

// Prune removes, now and then, what no image needs.
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
