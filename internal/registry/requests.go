package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// pushes tracks what pushing clients rely on, so that the collection does not remove it.
//
// The gate is held for reading by every request that makes the registry depend on a blob,
// and for writing while the collection decides and removes: when a manifest is
// acknowledged, everything it names is there. There may be hours between a client's
// question for a layer and its manifest. Meanwhile the layer is pending and stays.
type pushes struct {
	gate sync.RWMutex
	// tidy removes what a request has left of an upload that has ended.
	tidy func(repository, upload string)

	mu      sync.Mutex
	pending map[imageRef]pending // by repository and digest of the blob
	uploads map[string]*upload   // requests in progress, by id of the upload
}

type pending struct {
	clients int // that have asked for or sent it, and have not named it in a manifest
	last    time.Time
}

// upload is held by one request at a time. A client makes one at a time, so another one
// means that the connection of the one before is broken, which the client may notice long
// before we do: that one is ended.
type upload struct {
	free      chan struct{} // has a token while it is not held
	waiting   int
	interrupt func() // ends the request that holds it
}

// rely counts a client that will name the blob in a manifest.
func (p *pushes) rely(repository, blob string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		p.pending = map[imageRef]pending{}
	}
	key := imageRef{repository, blob}
	p.pending[key] = pending{p.pending[key].clients + 1, time.Now()}
}

// settle removes one client from the count: it has named the blob, or did not get it.
func (p *pushes) settle(repository, blob string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := imageRef{repository, blob}
	one, ok := p.pending[key]
	if one.clients--; one.clients > 0 {
		p.pending[key] = one
	} else if ok {
		delete(p.pending, key)
	}
}

// reliedOn returns the blobs of pushes in progress, by repository and digest, and forgets
// abandoned pushes.
func (p *pushes) reliedOn(since time.Time) map[imageRef]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	blobs := map[imageRef]bool{}
	for key, one := range p.pending {
		if one.last.Before(since) {
			delete(p.pending, key)
			continue
		}
		blobs[key] = true
	}
	return blobs
}

// hold ends the current request of the upload, if there is one, and waits for it.
func (p *pushes) hold(ctx context.Context, id string, interrupt func()) (release func(), err error) {
	p.mu.Lock()
	one := p.uploads[id]
	if one == nil {
		one = &upload{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		if p.uploads == nil {
			p.uploads = map[string]*upload{}
		}
		p.uploads[id] = one
	}
	one.waiting++
	if one.interrupt != nil {
		one.interrupt()
	}
	p.mu.Unlock()
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if one.waiting--; one.waiting == 0 {
			delete(p.uploads, id)
		}
	}
	select {
	case <-one.free:
		p.mu.Lock()
		defer p.mu.Unlock()
		one.interrupt = interrupt
		return func() {
			p.mu.Lock()
			one.interrupt = nil
			p.mu.Unlock()
			one.free <- struct{}{}
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// maxManifest bounds a manifest in bytes; the library refuses more.
const maxManifest = 4 << 20

// guard tracks requests while they are served.
func (p *pushes) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		to := parsePath(req.URL.Path)
		switch {
		case to.kind == "blobs" && req.Method == http.MethodHead:
			p.gate.RLock()
			defer p.gate.RUnlock()
			if served := serve(next, w, req); served < 300 {
				p.rely(to.repository, to.reference)
			}
		case to.kind == "uploads" && to.reference == "" && req.Method == http.MethodPost:
			p.gate.RLock()
			defer p.gate.RUnlock()
			if served := serve(next, w, req); served == http.StatusCreated {
				p.rely(to.repository, req.URL.Query().Get("mount"))
			}
		case to.kind == "uploads" && to.reference != "":
			p.serveUpload(next, w, req, to)
		case to.kind == "manifests" && req.Method == http.MethodPut:
			p.serveManifest(next, w, req, to)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

func (p *pushes) serveUpload(next http.Handler, w http.ResponseWriter, req *http.Request, to address) {
	var interrupt func()
	if req.Method == http.MethodPatch || req.Method == http.MethodPut { // the others end by themselves
		// Not all writers support it; then the connection has to time out.
		interrupt = func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now()) }
	}
	release, err := p.hold(req.Context(), to.reference, interrupt)
	if err != nil {
		return // the client is gone
	}
	defer release()
	defer p.tidy(to.repository, to.reference)
	blob := req.URL.Query().Get("digest")
	if req.Method != http.MethodPut || blob == "" {
		serve(next, w, req)
		return
	}
	p.gate.RLock() // not while it is served, which may take as long as the client likes
	p.rely(to.repository, blob)
	p.gate.RUnlock()
	if served := serve(next, w, req); served >= 300 {
		p.settle(to.repository, blob)
	}
}

// serveManifest reads the manifest before it takes the gate, so that a slow client blocks
// no others.
func (p *pushes) serveManifest(next http.Handler, w http.ResponseWriter, req *http.Request, to address) {
	body, err := io.ReadAll(io.LimitReader(req.Body, maxManifest+1))
	if err != nil {
		http.Error(w, "the manifest could not be read: send it again", http.StatusBadRequest)
		return
	}
	var manifest manifestBody
	if why := checkManifest(body, &manifest); why != "" {
		_, _ = io.Copy(io.Discard, io.LimitReader(req.Body, maxManifest)) // so that the client reads the answer
		refuse(w, http.StatusBadRequest, "MANIFEST_INVALID", why)
		return
	}
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(body))
	p.gate.RLock()
	defer p.gate.RUnlock()
	if served := serve(next, w, req); served >= 300 {
		return
	}
	for _, d := range manifest.children() {
		p.settle(to.repository, d.Digest.String())
	}
}

// checkManifest reads a manifest and says what is wrong with it, because the library
// reports some mistakes of clients as its own errors.
func checkManifest(body []byte, manifest *manifestBody) (why string) {
	if len(body) > maxManifest {
		return fmt.Sprintf("a manifest has %d bytes at most", maxManifest)
	}
	if err := json.Unmarshal(body, manifest); err != nil {
		return "the manifest is not JSON of the kind that it should be: " + err.Error()
	}
	if manifest.SchemaVersion != 2 {
		return fmt.Sprintf("schemaVersion is %d, and must be 2", manifest.SchemaVersion)
	}
	for _, d := range manifest.children() {
		if err := d.Digest.Validate(); err != nil {
			return fmt.Sprintf("digest %q: %v", d.Digest, err)
		}
	}
	return ""
}

// address is what a request is about: /v2/<repository>/<kind>/<reference>.
type address struct{ repository, kind, reference string }

func parsePath(path string) address {
	rest, ok := strings.CutPrefix(path, "/v2/")
	if !ok {
		return address{}
	}
	if i := strings.LastIndex(rest, "/blobs/uploads/"); i > 0 {
		return address{rest[:i], "uploads", strings.Trim(rest[i+len("/blobs/uploads/"):], "/")}
	}
	for _, kind := range []string{"manifests", "blobs"} {
		if i := strings.LastIndex(rest, "/"+kind+"/"); i > 0 {
			reference := rest[i+len(kind)+2:]
			if d, err := digest.Parse(reference); err == nil {
				reference = d.String()
			}
			return address{rest[:i], kind, reference}
		}
	}
	return address{}
}

// serve returns the status of the answer.
func serve(next http.Handler, w http.ResponseWriter, req *http.Request) int {
	seen := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	next.ServeHTTP(seen, req)
	return seen.status
}

type statusWriter struct {
	http.ResponseWriter
	status  int
	written bool
}

func (w *statusWriter) WriteHeader(status int) {
	if w.written { // the library reports twice that a client is gone
		return
	}
	w.status, w.written = status, true
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(data []byte) (int, error) {
	w.written = true
	return w.ResponseWriter.Write(data)
}

// Unwrap gives http.ResponseController the underlying writer.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
