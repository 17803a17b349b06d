package registry

import (
	"net/http"
	"sync"
	"time"
)

// maxDigests bounds the memory for remembered digests.
const maxDigests = 10_000

// digests caches what references stand for, because every change of a workload asks, and
// reading from storage takes several files. Anything that may change a reference clears the
// cache.
type digests struct {
	mu    sync.Mutex
	known map[imageRef]string
	// asked is when an image was last resolved, by its digest: clients resolve an image
	// before they use it.
	asked map[imageRef]time.Time
	// changes counts what may have changed a reference.
	changes uint64
}

type imageRef struct{ name, ref string }

// get returns a digest, or else the change count for put.
func (d *digests) get(r imageRef) (digest string, ok bool, changes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if digest, ok = d.known[r]; ok {
		d.ask(imageRef{r.name, digest})
	}
	return digest, ok, d.changes
}

// ask notes the time. The caller holds the lock.
func (d *digests) ask(r imageRef) {
	if d.asked == nil {
		d.asked = map[imageRef]time.Time{}
	}
	d.asked[r] = time.Now()
}

// askedSince forgets older requests.
func (d *digests) askedSince(r imageRef, since time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.asked[r]
	if ok && at.Before(since) {
		delete(d.asked, r)
		return false
	}
	return ok
}

// put remembers a digest unless something has changed since get.
func (d *digests) put(r imageRef, digest string, changes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ask(imageRef{r.name, digest})
	if d.changes != changes {
		return
	}
	if d.known == nil || len(d.known) == maxDigests {
		d.known = map[imageRef]string{}
	}
	d.known[r] = digest
}

func (d *digests) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = nil
	d.changes++
}

// forgetting clears the cache after the request has done its work and before its client
// gets the answer.
func (d *digests) forgetting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet || req.Method == http.MethodHead {
			next.ServeHTTP(w, req)
			return
		}
		defer d.forget()
		next.ServeHTTP(&forgettingWriter{ResponseWriter: w, forget: d.forget}, req)
	})
}

type forgettingWriter struct {
	http.ResponseWriter
	forget func()
}

func (w *forgettingWriter) WriteHeader(status int) {
	w.forget()
	w.ResponseWriter.WriteHeader(status)
}

func (w *forgettingWriter) Write(data []byte) (int, error) {
	w.forget()
	return w.ResponseWriter.Write(data)
}

// Unwrap gives http.ResponseController the underlying writer.
func (w *forgettingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
