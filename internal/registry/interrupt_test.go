package registry_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/cloudless/cloudless/internal/image"
)

// An interrupted push removes its upload.
func TestInterruptedPushLeavesNoUpload(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, slog.New(slog.DiscardHandler))
	img, err := random.Image(4<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = image.Push(ctx, img, parse(t, "big:1"), image.PushOptions{Transport: s.transport, Progress: func(done, _ int64) {
		if done > 1<<20 {
			cancel()
		}
	}})
	if err == nil {
		t.Fatal("the push was not interrupted")
	}
	left, err := filepath.Glob(filepath.Join(dir, "docker/registry/v2/repositories/big/_uploads/*"))
	if err != nil || len(left) != 0 {
		t.Errorf("uploads are left: %v, %v", left, err)
	}
	s.push(t, "big:1", img)
	s.wantWhole(t, "big:1")
}

// A layer whose connection breaks resumes from what the registry has.
func TestPushResumesAfterABrokenConnection(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	img, err := random.Image(8<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	broken := &breaking{next: s.transport, after: 3 << 20}
	var furthest int64
	_, err = image.Push(t.Context(), img, parse(t, "big:1"), image.PushOptions{Transport: broken, Progress: func(done, total int64) {
		if done > total {
			t.Errorf("%d of %d bytes", done, total)
		}
		furthest = max(furthest, done)
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.wantWhole(t, "big:1")
	if !broken.broke.Load() {
		t.Fatal("no connection broke")
	}
	if sent, size := broken.sent.Load(), wholeSize(t, img); sent > size+1<<20 {
		t.Errorf("%d bytes were sent of an image of %d: the layer began again", sent, size)
	}
}

// breaking breaks the first upload after so many bytes.
type breaking struct {
	next  http.RoundTripper
	after int64
	broke atomic.Bool
	sent  atomic.Int64
}

func (b *breaking) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPatch {
		req = req.Clone(req.Context())
		left := int64(1) << 62
		if !b.broke.Load() {
			left = b.after
		}
		req.Body = &breakingBody{ReadCloser: req.Body, b: b, left: left}
	}
	return b.next.RoundTrip(req)
}

type breakingBody struct {
	io.ReadCloser
	b    *breaking
	left int64
}

func (b *breakingBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.b.broke.Store(true)
		return 0, errors.New("the cable was pulled")
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.b.sent.Add(int64(n))
	return n, err
}
