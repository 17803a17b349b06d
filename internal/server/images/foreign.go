package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/server/core"
)

// foreign asks registries outside the cluster for the digest of a tag.
type foreign struct {
	transport http.RoundTripper
	now       func() time.Time

	mu    sync.Mutex
	known map[string]answer // by the names of the image and of the login
	// offers are the platforms of images, by registry, repository and digest.
	offers map[string][]string
	away   map[string]time.Time
	// running bounds the questions at a time.
	running chan struct{}
}

// answer is cached for a moment, so that a file with many workloads of one image asks once.
type answer struct {
	digest string
	at     time.Time
}

const (
	// foreignPatience is how long a call waits for a registry outside the cluster.
	foreignPatience = 5 * time.Second
	answerLife      = 10 * time.Second
	// awayLife is how long an unreachable registry is not asked again.
	awayLife   = 15 * time.Second
	maxAnswers = 1000
)

// errAway means that the registry could not be reached.
var errAway = errors.New("the registry cannot be reached from the server")

// newForeign uses the given transport. If that is nil, it makes one that connects to a private address only if the list names
// the registry.
func newForeign(base http.RoundTripper, now func() time.Time, named func() []string) *foreign {
	if base == nil {
		base = guarded(named)
	}
	return &foreign{
		transport: secretKeeper{base}, now: now, known: map[string]answer{}, offers: map[string][]string{}, away: map[string]time.Time{},
		running: make(chan struct{}, lookUps),
	}
}

// turn waits until few enough questions run.
func (f *foreign) turn(ctx context.Context) (done func(), err error) {
	select {
	case f.running <- struct{}{}:
		return func() { <-f.running }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// secretKeeper permits plain HTTP only to this machine: elsewhere others could read the
// password.
type secretKeeper struct{ next http.RoundTripper }

func (s secretKeeper) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !isLoopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s speaks plain HTTP, which is used with localhost only", req.URL.Host)
	}
	return s.next.RoundTrip(req)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// digest returns the digest that the tag stands for now, errAway, or the registry's
// refusal.
func (f *foreign) digest(ctx context.Context, n image.Name, login *registryLogin) (string, error) {
	key := n.String() + " " + login.user()
	f.mu.Lock()
	found, ok := f.known[key]
	away := f.now().Before(f.away[n.Registry])
	f.mu.Unlock()
	switch {
	case ok && f.now().Sub(found.at) < answerLife:
		return found.digest, nil
	case away:
		return "", errAway
	}
	done, err := f.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, foreignPatience)
	defer cancel()
	ctx, denied := withDenied(ctx)
	digest, err := f.ask(ctx, n, login)
	err = denied.err(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, errAway) {
		f.away[n.Registry] = f.now().Add(awayLife)
	}
	if err != nil {
		return "", err
	}
	if len(f.known) >= maxAnswers {
		clear(f.known)
	}
	f.known[key] = answer{digest, f.now()}
	return digest, nil
}

func (f *foreign) ask(ctx context.Context, n image.Name, login *registryLogin) (string, error) {
	registry, err := name.NewRegistry(n.Registry)
	if err != nil {
		return "", err
	}
	ref := registry.Repo(strings.Split(n.Repository, "/")...).Tag(n.Tag)
	options := f.options(ctx, login)
	head, err := remote.Head(ref, options...)
	if err == nil {
		return head.Digest.String(), nil
	}
	if refused(err) == 0 && ctx.Err() == nil { // some registries do not support HEAD requests
		got, getErr := remote.Get(ref, options...)
		if getErr == nil {
			return got.Digest.String(), nil
		}
		err = getErr
	}
	if refused(err) == 0 {
		return "", fmt.Errorf("%w: %w", errAway, err)
	}
	return "", err
}

func (f *foreign) options(ctx context.Context, login *registryLogin) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(f.transport), remote.WithAuth(login.authenticator()),
		remote.WithUserAgent("cloudless"), remote.WithRetryBackoff(remote.Backoff{Steps: 1}),
	}
}

// refused returns the status of an answer that a retry would not change, or 0.
func refused(err error) int {
	if refusal, ok := errors.AsType[*transport.Error](err); ok {
		switch refusal.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
			return refusal.StatusCode
		}
	}
	return 0
}

// pinForeign pins an image of another registry, if that can be reached.
func (s *Images) pinForeign(ctx context.Context, n image.Name) (Pinned, error) {
	login, err := s.loginFor(s.Store.Snapshot(), n.Registry)
	if err != nil {
		return Pinned{}, err
	}
	digest := n.Digest
	if digest == "" {
		digest, err = s.foreign.digest(ctx, n, login)
	}
	switch {
	case err == nil:
		platforms, err := s.foreignPlatforms(ctx, n, digest, login)
		return Pinned{Image: n.Pinned(digest), Platforms: platforms}, err
	case errors.Is(err, errPrivate):
		return Pinned{}, refusePrivateRegistry(n, err)
	case errors.Is(err, errAway):
		s.Logger.DebugContext(ctx, "an image is not pinned", "image", n.String(), "error", err)
		return Pinned{Image: n.String()}, nil
	case refused(err) == http.StatusNotFound:
		return Pinned{}, core.Refuse(codes.FailedPrecondition, "image %s does not exist in the registry %s; correct its name or tag", n, n.Registry)
	case refused(err) != 0 && login == nil:
		return Pinned{}, core.Refuse(codes.FailedPrecondition,
			"image %s may not be pulled or does not exist: the registry %s refuses it without a login; log in with: cloudless image login %s --username USER",
			n, n.Registry, n.Registry)
	case refused(err) != 0:
		return Pinned{}, core.Refuse(codes.FailedPrecondition,
			"image %s may not be pulled or does not exist: the registry %s refuses it to %s; correct the name, or log in again with: cloudless image login %s --username USER",
			n, n.Registry, login.username, n.Registry)
	}
	return Pinned{}, err
}

// refusePrivateRegistry says how to allow the registry of an image.
func refusePrivateRegistry(n image.Name, why error) error {
	return core.Refuse(codes.FailedPrecondition,
		"image %s is not used, because %v: servers ask registries at such addresses only if the configuration names them; an admin allows it with: cloudless cluster config set security.privateRegistries=%s",
		n, why, n.Registry)
}

// Unpinned reports whether the nodes still have to resolve an image.
func Unpinned(image string) bool { return !strings.Contains(image, "@") }

// PinNote says in an event that an image is not pinned.
func PinNote(image string) string {
	if Unpinned(image) {
		return "; the image is not pinned to a digest, because its registry cannot be reached from the server: each node resolves the tag itself"
	}
	return ""
}
