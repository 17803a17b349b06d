package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cloudless/cloudless/internal/driver"
)

// parallelLayers is how many layers of one image are fetched at once.
const parallelLayers = 4

// pull fetches and unpacks an image. It skips layers that are here. An interrupted layer
// resumes at the next attempt from what the content store has of it.
func (d *Driver) pull(ctx context.Context, task driver.Task) (images.Image, error) {
	ref, login := task.Image, task.Login
	full, err := reference.Parse(ref)
	if err != nil || full.Object == "" {
		return images.Image{}, fmt.Errorf("image %q is not a full reference such as registry.example/name:tag: %w", ref, driver.ErrImage)
	}
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: d.registryHosts(full.Hostname(), login)})
	fetching := d.pulls.begin(ref)
	defer d.pulls.end(ref)
	guarded, stop := d.guard(ctx, ref, fetching, task.MaxUnpacked)
	defer stop()
	pulled, err := d.client.Pull(guarded, ref,
		client.WithResolver(resolver),
		client.WithPlatformMatcher(platforms.OnlyStrict(platforms.DefaultSpec())),
		client.WithPullUnpack,
		client.WithPullSnapshotter(d.snapshotter),
		client.WithMaxConcurrentDownloads(parallelLayers),
		client.WithImageHandlerWrapper(fetching.observe),
	)
	if err != nil && guarded.Err() != nil && ctx.Err() == nil {
		return images.Image{}, context.Cause(guarded)
	}
	if err != nil {
		return images.Image{}, d.pullError(ctx, ref, login, resolver, err)
	}
	if size, err := d.unpackedBytes(ctx, fetching.all()); task.MaxUnpacked > 0 && err == nil && size > task.MaxUnpacked {
		err = tooLarge(ref, task.MaxUnpacked) // a small one that was quicker than the guard
		return images.Image{}, errors.Join(err, absent(d.client.ImageService().Delete(ctx, ref)))
	}
	return pulled.Metadata(), nil
}

// registryHosts says how to reach a registry: with its own client, or by the public rules,
// with a login that only this registry sees.
func (d *Driver) registryHosts(registry string, login *driver.Login) docker.RegistryHosts {
	return func(host string) ([]docker.RegistryHost, error) {
		if own, ok := d.opts.Registries[host]; ok {
			return []docker.RegistryHost{{
				Client:       own,
				Host:         host,
				Scheme:       "https",
				Path:         "/v2",
				Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
			}}, nil
		}
		transport := http.RoundTripper(docker.DefaultHTTPTransport(nil))
		if onThisMachine(host) { // where plain HTTP reveals the password to no other machine
			transport = docker.NewHTTPFallback(transport)
		}
		web := &http.Client{Transport: transport}
		authorizer := docker.NewDockerAuthorizer(docker.WithAuthClient(web), docker.WithAuthCreds(func(asking string) (string, string, error) {
			if login == nil || asking != registry && (registry != "docker.io" || asking != "registry-1.docker.io") {
				return "", "", nil
			}
			return login.Username, login.Password, nil
		}))
		return docker.ConfigureDefaultRegistries(docker.WithAuthorizer(authorizer), docker.WithClient(web))(host)
	}
}

func onThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// pullError distinguishes permanent errors from those worth a retry.
func (d *Driver) pullError(ctx context.Context, ref string, login *driver.Login, resolver remotes.Resolver, err error) error {
	status, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err)
	denied := ok && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden)
	switch {
	case denied, errors.Is(err, docker.ErrInvalidAuthorization):
		return refusedPull(ref, login, err)
	case !errdefs.IsNotFound(err):
		return fmt.Errorf("pull image %s: %w", ref, err)
	}
	// The image was not found, or a platform in it.
	_, target, resolveErr := resolver.Resolve(ctx, ref)
	if resolveErr != nil {
		return fmt.Errorf("image %s does not exist in its registry: %w: %w", ref, driver.ErrImage, err)
	}
	fetcher, fetchErr := resolver.Fetcher(ctx, ref)
	if fetchErr != nil {
		return fmt.Errorf("pull image %s: %w", ref, err)
	}
	offers := d.offered(ctx, target, func(ctx context.Context, desc imagespec.Descriptor) ([]byte, error) {
		from, err := fetcher.Fetch(ctx, desc)
		if err != nil {
			return nil, err
		}
		defer from.Close()
		return io.ReadAll(io.LimitReader(from, maxManifest))
	})
	if slices.ContainsFunc(offers, ownPlatform) { // then it was something else
		return fmt.Errorf("pull image %s: a part of it is missing in its registry: %w: %w", ref, driver.ErrImage, err)
	}
	return otherPlatform(ref, offers)
}

func refusedPull(ref string, login *driver.Login, err error) error {
	host, _, _ := strings.Cut(ref, "/")
	how := "log in with: cloudless image login " + host + " --username USER"
	if login != nil {
		how = "the login is refused; log in again with: cloudless image login " + host + " --username USER"
	}
	return fmt.Errorf("image %s may not be pulled or does not exist: the registry refuses it: %s: %w: %w", ref, how, driver.ErrImage, err)
}

// maxManifest bounds a manifest or configuration in bytes.
const maxManifest = 8 << 20

func ownPlatform(name string) bool {
	p, err := platforms.Parse(name)
	return err == nil && platforms.OnlyStrict(platforms.DefaultSpec()).Match(p)
}

// otherPlatform says which platforms an image has instead of this machine's.
func otherPlatform(ref string, offers []string) error {
	if len(offers) == 0 {
		return fmt.Errorf("image %s has nothing for this machine, which is %s: %w", ref, platforms.DefaultString(), driver.ErrImage)
	}
	return fmt.Errorf("image %s is for %s, but this machine is %s: %w", ref, strings.Join(offers, ", "), platforms.DefaultString(), driver.ErrImage)
}

// stored reads from the content store.
func (d *Driver) stored(ctx context.Context, desc imagespec.Descriptor) ([]byte, error) {
	return content.ReadBlob(ctx, d.client.ContentStore(), desc)
}

// offered lists the platforms that an image is for, as far as they can be read.
func (d *Driver) offered(ctx context.Context, target imagespec.Descriptor, read func(context.Context, imagespec.Descriptor) ([]byte, error)) []string {
	data, err := read(ctx, target)
	if err != nil {
		return nil
	}
	var body struct {
		Config    imagespec.Descriptor   `json:"config"`
		Manifests []imagespec.Descriptor `json:"manifests"`
	}
	if json.Unmarshal(data, &body) != nil {
		return nil
	}
	var offers []string
	for _, m := range body.Manifests {
		if m.Platform != nil && m.Platform.OS != "unknown" {
			offers = append(offers, platforms.Format(*m.Platform))
		}
	}
	if body.Config.Digest != "" {
		var p imagespec.Platform
		if data, err := read(ctx, body.Config); err == nil && json.Unmarshal(data, &p) == nil && p.OS != "" {
			offers = append(offers, platforms.Format(p))
		}
	}
	slices.Sort(offers)
	return slices.Compact(offers)
}

// pulls are the images that are being fetched.
type pulls struct {
	mu  sync.Mutex
	now map[string]*fetching
}

// fetching is the known content of an image.
type fetching struct {
	mu    sync.Mutex
	parts map[digest.Digest]imagespec.Descriptor
}

func (p *pulls) begin(ref string) *fetching {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now = map[string]*fetching{}
	}
	p.now[ref] = &fetching{parts: map[digest.Digest]imagespec.Descriptor{}}
	return p.now[ref]
}

func (p *pulls) end(ref string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.now, ref)
}

func (p *pulls) get(ref string) *fetching {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now[ref]
}

// observe notes what a pull is going to fetch.
func (f *fetching) observe(next images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		children, err := next.Handle(ctx, desc)
		if err != nil {
			return children, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, child := range children {
			if !images.IsManifestType(child.MediaType) && !images.IsIndexType(child.MediaType) {
				f.parts[child.Digest] = child
			}
		}
		return children, nil
	})
}

func (f *fetching) all() []imagespec.Descriptor {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []imagespec.Descriptor
	for _, part := range f.parts {
		all = append(all, part)
	}
	return all
}

// Progress says how much of an image that is being fetched is on disk.
func (d *Driver) Progress(ctx context.Context, ref string) (driver.Progress, bool) {
	pull := d.pulls.get(ref)
	if pull == nil {
		return driver.Progress{}, false
	}
	ctx = d.scope(ctx)
	var p driver.Progress
	for _, part := range pull.all() {
		p.Total += part.Size
		if under, err := d.client.ContentStore().Status(ctx, remotes.MakeRefKey(ctx, part)); err == nil {
			p.Done += min(under.Offset, part.Size)
		} else if info, err := d.client.ContentStore().Info(ctx, part.Digest); err == nil {
			p.Done += min(info.Size, part.Size)
		}
	}
	return p, true
}
