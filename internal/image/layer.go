package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The accounts that programs expect; without them, looking up the own user fails.
const (
	passwd = "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"
	group  = "root:x:0:\nnobody:x:65534:\n"
)

// epoch is the only time in an image: real ones would change the digest.
var epoch = time.Unix(0, 0).UTC()

// layer is a v1.Layer over a program file. It holds the few blocks around the program and
// reads the program itself from its file each time it is opened, without goroutines and
// without a second copy on disk.
type layer struct {
	program program
	head    []byte // everything before the program's content, its header included
	digest  v1.Hash
	diffID  v1.Hash
	size    int64 // compressed
}

var _ v1.Layer = (*layer)(nil)

// newLayer reads the program once to compute the digests of both forms.
func newLayer(p program) (*layer, error) {
	head, err := tarHead(p)
	if err != nil {
		return nil, fmt.Errorf("lay out the image of %s: %w", p.path, err)
	}
	l := &layer{program: p, head: head}
	plain, err := l.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	diffID, digest := sha256.New(), sha256.New()
	if l.size, err = io.Copy(digest, compress(struct {
		io.Reader
		io.Closer
	}{io.TeeReader(plain, diffID), plain})); err != nil {
		return nil, err
	}
	l.diffID, l.digest = sum(diffID), sum(digest)
	return l, nil
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// Digest is that of the compressed form, by which registries identify the layer.
func (l *layer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID is the digest of the uncompressed form.
func (l *layer) DiffID() (v1.Hash, error) { return l.diffID, nil }

// Size is the compressed size in bytes.
func (l *layer) Size() (int64, error) { return l.size, nil }

// MediaType is a tar file compressed with gzip, the one form that every runtime reads.
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

// Compressed opens the layer as it is stored in registries.
func (l *layer) Compressed() (io.ReadCloser, error) {
	plain, err := l.Uncompressed()
	if err != nil {
		return nil, err
	}
	return compress(plain), nil
}

// Uncompressed opens the layer as a tar stream.
func (l *layer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.program.path)
	if err != nil {
		return nil, fmt.Errorf("open the program: %w", err)
	}
	content := &exactReader{r: f, left: l.program.size, path: l.program.path}
	tail := make([]byte, -l.program.size&(tarBlock-1)+2*tarBlock)
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(l.head), content, bytes.NewReader(tail)), f}, nil
}

// tarBlock is the unit of tar files: content is padded to it, and two empty blocks mark the
// end.
const tarBlock = 512

// tarHead returns the tar file up to where the program's content begins.
func tarHead(p program) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range []struct {
		header  tar.Header
		content string
	}{
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}},
		{header: tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, content: passwd},
		{header: tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, content: group},
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}},
	} {
		e.header.ModTime, e.header.Size = epoch, int64(len(e.content))
		if err := w.WriteHeader(&e.header); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			return nil, err
		}
	}
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p.name, Mode: 0o755, Size: p.size, ModTime: epoch})
	return buf.Bytes(), err
}

// exactReader reads exactly as many bytes as the tar header says, or fails: a program that
// is rebuilt meanwhile must not become a broken layer.
type exactReader struct {
	r    io.Reader
	left int64
	path string
}

func (e *exactReader) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if err == io.EOF && e.left > 0 {
		err = fmt.Errorf("%s became shorter while it was read: wait until it is built, and try again", e.path)
	}
	return n, err
}

// gzipReader compresses what is read through it.
type gzipReader struct {
	src   io.ReadCloser
	w     *gzip.Writer
	ready bytes.Buffer // compressed, not yet read
	chunk []byte
	err   error // what ends the stream once ready is empty
}

func compress(src io.ReadCloser) io.ReadCloser {
	g := &gzipReader{src: src, chunk: make([]byte, 64<<10)}
	// The error is only about invalid levels. The fastest level: the program is compressed
	// several times on its way, so a smaller size is not worth it.
	g.w, _ = gzip.NewWriterLevel(&g.ready, gzip.BestSpeed)
	return g
}

func (g *gzipReader) Read(p []byte) (int, error) {
	for g.ready.Len() == 0 {
		if g.err != nil {
			return 0, g.err
		}
		g.fill()
	}
	return g.ready.Read(p)
}

// fill compresses one chunk. Writing into a buffer cannot fail.
func (g *gzipReader) fill() {
	n, err := g.src.Read(g.chunk)
	_, _ = g.w.Write(g.chunk[:n])
	if err == io.EOF {
		_ = g.w.Close()
	}
	g.err = err
}

func (g *gzipReader) Close() error { return g.src.Close() }
