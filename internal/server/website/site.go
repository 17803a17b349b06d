package website

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// site is a bucket that is shown as a web site. Keys are not paths: what a request asks for is the path without its first
// slash, whatever dots are in it, so that nothing leads out of the bucket.
type site struct {
	objects Objects
	bucket  object.Bucket
	spec    *v1.RouteBucket
}

const (
	defaultIndex = "index.html"
	defaultType  = "application/octet-stream"
	longestKey   = 1024
)

// serve answers a request. It returns an error if it has answered nothing yet.
func (s site) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "A web site is only read.", http.StatusMethodNotAllowed)
		return nil
	}
	key, index := strings.TrimPrefix(r.URL.Path, "/"), cmp.Or(s.spec.GetIndex(), defaultIndex)
	folder := key == "" || strings.HasSuffix(key, "/")
	if folder {
		key += index
	}
	found, err := s.open(r.Context(), key)
	if err != nil || found != nil {
		if err == nil {
			defer found.Close()
			err = found.show(w, r)
		}
		return err
	}
	if !folder {
		below, err := s.open(r.Context(), key+"/"+index)
		if err != nil {
			return err
		}
		if below != nil {
			below.Close()
			if toFolder(w, r) {
				return nil
			}
		}
	}
	return s.notFound(w, r)
}

// toFolder leads a client to the same path with a slash at the end, so that relative links work. A path that begins with two
// slashes would be that of another host.
func toFolder(w http.ResponseWriter, r *http.Request) bool {
	to := r.URL.EscapedPath() + "/"
	if strings.HasPrefix(to, "//") {
		return false
	}
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusFound)
	return true
}

// notFound shows the page for what does not exist.
func (s site) notFound(w http.ResponseWriter, r *http.Request) error {
	if s.spec.GetNotFound() != "" {
		page, err := s.open(r.Context(), s.spec.GetNotFound())
		if err != nil {
			return err
		}
		if page != nil {
			defer page.Close()
			return page.showAs(w, r, http.StatusNotFound)
		}
	}
	http.Error(w, "There is no such page.", http.StatusNotFound)
	return nil
}

// open opens an object; nil if there is none.
func (s site) open(ctx context.Context, key string) (*document, error) {
	if key == "" || len(key) > longestKey || !utf8.ValidString(key) {
		return nil, nil
	}
	o, reader, err := s.objects.Open(ctx, s.bucket, key, "")
	switch {
	case errors.Is(err, object.ErrNoKey), errors.Is(err, object.ErrDeleteMarker):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &document{Object: o, reader: reader, ctx: ctx}, nil
}

// document is an object that is shown.
type document struct {
	object.Object
	reader *object.Reader
	ctx    context.Context
}

// Close gives up the object.
func (d *document) Close() { d.reader.Close() }

// show answers with the object, or the part of it that the client wants.
func (d *document) show(w http.ResponseWriter, r *http.Request) error {
	if to := d.Version.GetHeaders().GetWebsiteRedirect(); strings.HasPrefix(to, "/") || strings.HasPrefix(to, "http://") || strings.HasPrefix(to, "https://") {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusMovedPermanently)
		return nil
	}
	d.describe(w.Header())
	content := &seeker{ctx: d.ctx, reader: d.reader, size: d.Version.GetSize(), most: wantedBytes(r.Header.Get("Range"))}
	defer content.close()
	late := &late{ResponseWriter: w}
	http.ServeContent(late, r, "", time.Unix(0, d.Version.GetTime()), content)
	return late.end(content.err)
}

// showAs answers with the whole object and a status.
func (d *document) showAs(w http.ResponseWriter, r *http.Request, status int) error {
	d.describe(w.Header())
	w.Header().Del("ETag") // it is that of another page
	content := &seeker{ctx: d.ctx, reader: d.reader, size: d.Version.GetSize(), most: -1}
	defer content.close()
	late := &late{ResponseWriter: w}
	late.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = io.Copy(late, content) // content has the error of the store, and a client that is gone needs no answer
	}
	return late.end(content.err)
}

// describe sets the fields of the object.
func (d *document) describe(to http.Header) {
	h := d.Version.GetHeaders()
	to.Set("Content-Type", cmp.Or(h.GetContentType(), mime.TypeByExtension(path.Ext(d.Key)), defaultType))
	to.Set("ETag", `"`+d.Version.GetEtag()+`"`)
	for name, value := range map[string]string{
		"Content-Encoding": h.GetContentEncoding(), "Content-Language": h.GetContentLanguage(),
		"Content-Disposition": h.GetContentDisposition(), "Cache-Control": h.GetCacheControl(), "Expires": h.GetExpires(),
	} {
		if value != "" {
			to.Set(name, value)
		}
	}
}
