package image

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// PushOptions say how to reach the registry and whom to tell about progress.
type PushOptions struct {
	// Transport carries the requests, which go to https://<registry of the
	// name>. For the cluster's registry, whose host name no resolver knows, it
	// also decides where to connect. Nil means http.DefaultTransport.
	Transport http.RoundTripper

	// Auth identifies the caller. Nil means that the transport does.
	Auth authn.Authenticator

	// Progress is told how many bytes the registry has and how many it will
	// have in the end, manifest not counted. It is never called by two
	// goroutines at once, nor after Push has returned. It may be nil.
	Progress func(done, total int64)
}

// Push sends the image to the registry under the given name, except for the
// layers that the registry has already, and returns the image's digest.
func Push(ctx context.Context, img v1.Image, to Name, opts PushOptions) (string, error) {
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("push %s: compute the digest: %w", to, err)
	}
	ref, err := remoteName(to, digest)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", to, err)
	}
	transport := opts.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	auth := opts.Auth
	if auth == nil {
		auth = authn.Anonymous
	}
	finish := func(error) {}
	if opts.Progress != nil {
		m, err := newMeter(img, transport, opts.Progress)
		if err != nil {
			return "", fmt.Errorf("push %s: %w", to, err)
		}
		transport, finish = m, m.finish
	}
	err = remote.Write(ref, img,
		remote.WithContext(ctx),
		remote.WithTransport(transport),
		remote.WithAuth(auth),
		remote.WithUserAgent("cloudless"))
	finish(err)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", to, err)
	}
	return digest.String(), nil
}

// remoteName converts the name. Repository names of one letter, which that
// library's own parser refuses, are fine.
func remoteName(n Name, digest v1.Hash) (name.Reference, error) {
	registry, err := name.NewRegistry(n.Registry, name.StrictValidation)
	if err != nil {
		return nil, err
	}
	repository := registry.Repo(n.Repository)
	if n.Digest == "" {
		return repository.Tag(n.Tag), nil
	}
	if n.Digest != digest.String() {
		return nil, fmt.Errorf("the image has the digest %s: give the name a tag instead of another image's digest", digest)
	}
	if n.Tag != "" {
		return repository.Tag(n.Tag), nil
	}
	return repository.Digest(n.Digest), nil
}

// meter is a RoundTripper that sees which blobs are sent and which are there
// already. The client library has a progress report of its own, but it sends
// on a channel that it closes when a push ends, and net/http may go on reading
// a request body after that.
type meter struct {
	next   http.RoundTripper
	report func(done, total int64)
	sizes  map[string]int64 // of blobs, by digest
	total  int64

	mu    sync.Mutex
	done  int64
	ended bool
}

func newMeter(img v1.Image, next http.RoundTripper, report func(done, total int64)) (*meter, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	m := &meter{next: next, report: report, sizes: map[string]int64{manifest.Config.Digest.String(): manifest.Config.Size}}
	for _, l := range manifest.Layers {
		m.sizes[l.Digest.String()] = l.Size
	}
	for _, size := range m.sizes {
		m.total += size
	}
	return m, nil
}

func (m *meter) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case req.Method == http.MethodPatch && req.Body != nil:
		return m.upload(req)
	case req.Method == http.MethodHead && strings.Contains(req.URL.Path, "/blobs/"):
		resp, err := m.next.RoundTrip(req)
		if err == nil && resp.StatusCode == http.StatusOK {
			m.add(&sent{}, m.sizes[path.Base(req.URL.Path)])
		}
		return resp, err
	default:
		return m.next.RoundTrip(req)
	}
}

// upload counts the body, and takes back what it counted when the attempt
// fails and the body will be sent again.
func (m *meter) upload(req *http.Request) (*http.Response, error) {
	current := &sent{}
	counted := req.WithContext(req.Context())
	counted.Body = &countingBody{ReadCloser: req.Body, meter: m, sent: current}
	if req.GetBody != nil {
		counted.GetBody = func() (io.ReadCloser, error) {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			m.takeBack(current)
			current = &sent{}
			return &countingBody{ReadCloser: body, meter: m, sent: current}, nil
		}
	}
	resp, err := m.next.RoundTrip(counted)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		m.takeBack(current)
	}
	return resp, err
}

// sent is what one attempt has sent of a blob.
type sent struct {
	bytes int64
	void  bool
}

func (m *meter) add(s *sent, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || s.void || n == 0 {
		return
	}
	s.bytes += n
	m.done += n
	m.report(m.done, m.total)
}

func (m *meter) takeBack(s *sent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done -= s.bytes
	s.bytes, s.void = 0, true
}

func (m *meter) finish(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	if err == nil && m.done != m.total {
		m.report(m.total, m.total)
	}
}

type countingBody struct {
	io.ReadCloser
	meter *meter
	sent  *sent
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.meter.add(b.sent, int64(n))
	return n, err
}
