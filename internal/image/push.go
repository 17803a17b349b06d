package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// PushOptions say how to reach the registry and where to report progress.
type PushOptions struct {
	// Transport carries the requests, which go to https://<registry of the name>. For the cluster's registry, whose
	// host name no resolver knows, it also decides where to connect, and it authenticates the caller. Nil means
	// http.DefaultTransport.
	Transport http.RoundTripper

	// Progress is called with how many bytes the registry has and how many it will have in the end, without manifests.
	// It is never called concurrently, nor after Push has returned. It may be nil.
	Progress func(done, total int64)
}

// parallelBlobs is how many blobs are sent at once.
const parallelBlobs = 4

// If a part of the image is missing in the end, the whole push is repeated: the part may have been collected since, or
// the server that had it was lost and another one answers. pushAgain bounds the repetitions without progress, and
// pushMost all repetitions, for a registry that stores nothing.
const (
	pushAgain = 3
	pushMost  = 50
)

// Push sends an image or an index with all its images to the registry under the given name, and returns its digest.
// Blobs that the registry has are not sent, several are sent at once, and one whose connection breaks resumes. When
// Push ends early, the registry keeps the complete blobs and nothing of the others.
func Push(ctx context.Context, what Content, to Name, opts PushOptions) (string, error) {
	parts, err := takeApart(what)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", to, err)
	}
	reference, err := referenceOf(to, parts.digest)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", to, err)
	}
	transport := opts.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	u := &uploader{http: transport, to: to, meter: newMeter(parts.blobs, opts.Progress)}
	defer u.meter.end()
	err = u.push(ctx, parts, reference)
	for total, idle := 1, 0; blobMissing(err) && total < pushMost && idle < pushAgain; total++ {
		before := u.taken.Load()
		u.meter.reset()
		err = u.push(ctx, parts, reference)
		if idle++; u.taken.Load() > before {
			idle = 0
		}
	}
	if err != nil {
		return "", fmt.Errorf("push %s: %w", to, err)
	}
	return parts.digest, nil
}

// blobMissing reports whether the registry lacks something that it had or claimed to have.
func blobMissing(err error) bool {
	r, refused := errors.AsType[*refusal](err)
	return refused && strings.HasSuffix(r.code, "BLOB_UNKNOWN") // also MANIFEST_BLOB_UNKNOWN
}

func (u *uploader) push(ctx context.Context, parts parts, reference string) error {
	g, sending := errgroup.WithContext(ctx)
	g.SetLimit(parallelBlobs)
	for _, b := range parts.blobs {
		g.Go(func() error { return u.blob(sending, b) })
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	for i, m := range parts.manifests {
		under := m.digest
		if i == len(parts.manifests)-1 {
			under = reference
		}
		if err := u.manifest(ctx, m, under); err != nil {
			return err
		}
	}
	return nil
}

// referenceOf is the tag or digest under which the image is pushed.
func referenceOf(n Name, digest string) (string, error) {
	if n.Digest != "" && n.Digest != digest {
		return "", fmt.Errorf("the image has the digest %s: give the name a tag instead of another image's digest", digest)
	}
	if n.Tag != "" {
		return n.Tag, nil
	}
	return n.Digest, nil
}

// meter counts what the registry has.
type meter struct {
	report func(done, total int64) // may be nil
	total  int64

	mu    sync.Mutex
	done  int64
	ended bool
}

func newMeter(blobs []blob, report func(done, total int64)) *meter {
	m := &meter{report: report}
	for _, b := range blobs {
		m.total += b.size
	}
	return m
}

// sent is what has been counted of one blob.
type sent struct{ bytes int64 }

func (m *meter) add(s *sent, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || n == 0 {
		return
	}
	s.bytes += n
	m.done += n
	if m.report != nil && n > 0 {
		m.report(m.done, m.total)
	}
}

// set corrects the count to what the registry says that it has.
func (m *meter) set(s *sent, bytes int64) {
	m.mu.Lock()
	n := bytes - s.bytes
	m.mu.Unlock()
	m.add(s, n)
}

func (m *meter) takeBack(s *sent) { m.set(s, 0) }

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = 0
}

func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
}

// countingBody is the content of a blob in flight. net/http may keep reading it after it has given up on the request,
// until stop.
type countingBody struct {
	meter *meter
	sent  *sent

	mu      sync.Mutex
	content io.Reader // nil once stopped
	err     error     // why the content could not be read
}

func (b *countingBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.content == nil {
		return 0, io.ErrClosedPipe
	}
	n, err := b.content.Read(p)
	b.meter.add(b.sent, int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// stop ends all reading and returns a read error, if there was one.
func (b *countingBody) stop() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.content = nil
	return b.err
}
