package ingress

import (
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/cloudless/cloudless/internal/ingress/http1"
)

// answerBody is where the body of an answer is written to.
type answerBody interface {
	io.Writer
	Flush() error
	Close() error
}

// plainBody is not compressed.
type plainBody struct{ answer }

func (b plainBody) Flush() error { return b.flush() }
func (b plainBody) Close() error { return nil }

// worthwhile is the smallest body that is compressed.
const worthwhile = 512

// compress decides how the body is sent, and returns the fields and the length with which it is announced.
func (x *exchange) compress(fields []http1.Field, length int64) (answerBody, []http1.Field, int64) {
	plain := plainBody{x.answer}
	if !x.route.compress || length == noLength || length >= 0 && length < worthwhile || x.method == "HEAD" || x.status == 206 || x.status < 200 || x.isGRPC() {
		return plain, fields, length
	}
	if !compressible(fields) {
		return plain, fields, length
	}
	for i, f := range fields {
		switch {
		case f.Is("vary") && http1.HasToken(f.Value, "accept-encoding"):
			fields[i].Value = ""
		case f.Is("etag") && !strings.HasPrefix(f.Value, "W/"):
			fields[i].Value = "W/" + f.Value // the bytes are others, what they mean is not
		}
	}
	kept := fields[:0]
	for _, f := range fields {
		if !f.Is("vary") || f.Value != "" {
			kept = append(kept, f)
		}
	}
	fields = append(kept, http1.Field{Name: "Vary", Value: "Accept-Encoding"})
	encoding := acceptedEncoding(x.fields)
	if encoding == "" {
		return plain, fields, length
	}
	fields = append(fields, http1.Field{Name: "Content-Encoding", Value: encoding})
	return newCompressed(encoding, x.answer), fields, http1.Chunked
}

// compressible reports whether a body with these fields becomes smaller and may be changed.
func compressible(fields []http1.Field) bool {
	kind := ""
	for _, f := range fields {
		switch {
		case f.Is("content-encoding") && !http1.Same(f.Value, "identity"), f.Is("content-range"), f.Is("cache-control") && http1.HasToken(f.Value, "no-transform"):
			return false
		case f.Is("content-type"):
			kind, _, _ = strings.Cut(strings.ToLower(f.Value), ";")
			kind = strings.TrimSpace(kind)
		}
	}
	return strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml") || strings.HasSuffix(kind, "/json") ||
		strings.HasSuffix(kind, "/javascript") || strings.HasSuffix(kind, "/xml") || kind == "application/wasm" || kind == "application/x-ndjson"
}

// acceptedEncoding is the best encoding that the client accepts, or empty.
func acceptedEncoding(fields []http1.Field) string {
	zstd, gzip := false, false
	for _, f := range fields {
		if !f.Is("accept-encoding") {
			continue
		}
		http1.Tokens(f.Value, func(token string) bool {
			name, quality, _ := strings.Cut(token, ";")
			refused := strings.TrimRight(strings.ReplaceAll(strings.ReplaceAll(quality, " ", ""), "q=", ""), "0.") == "" && quality != ""
			switch name = strings.TrimSpace(name); {
			case http1.Same(name, "zstd"):
				zstd = !refused
			case http1.Same(name, "gzip"):
				gzip = !refused
			}
			return true
		})
	}
	switch {
	case zstd:
		return "zstd"
	case gzip:
		return "gzip"
	}
	return ""
}

// compressor is a writer of one of the two formats.
type compressor interface {
	io.Writer
	Flush() error
	Close() error
	Reset(w io.Writer)
}

var (
	gzips = sync.Pool{New: func() any {
		w, _ := gzip.NewWriterLevel(nil, 5) // the level is valid
		return compressor(w)
	}}
	// The window is small because there may be many answers at a time.
	zstds = sync.Pool{New: func() any {
		w, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true)) // the options are valid
		return compressor(w)
	}}
)

// compressed compresses what is written to it.
type compressed struct {
	compressor
	to   answer
	pool *sync.Pool
}

func newCompressed(encoding string, to answer) *compressed {
	pool := &gzips
	if encoding == "zstd" {
		pool = &zstds
	}
	c := &compressed{compressor: pool.Get().(compressor), to: to, pool: pool}
	c.Reset(to)
	return c
}

func (c *compressed) Flush() error {
	if err := c.compressor.Flush(); err != nil {
		return err
	}
	return c.to.flush()
}

func (c *compressed) Close() error {
	err := c.compressor.Close()
	c.Reset(nil)
	c.pool.Put(c.compressor)
	return err
}
