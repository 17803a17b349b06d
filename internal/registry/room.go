package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sys/unix"
)

// reserve is what pushes leave free on the disk, because the state of the cluster needs the
// same disk more than images do.
const reserve = 128 << 20

// roomEvery is after how many bytes of a body the disk is checked again: clients need not
// say how much they send, and others send at the same time.
const roomEvery = 2 << 20

// withRoom refuses requests that would fill the disk of the folder, if possible before
// anything is written. Reads and deletions always pass.
func withRoom(dir string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.Method {
		case http.MethodPost, http.MethodPatch, http.MethodPut:
			if free, ok := roomFor(dir, req.ContentLength); !ok {
				refuseFull(w, free)
				return
			}
			body := &roomyBody{ReadCloser: req.Body, dir: dir}
			req = req.Clone(req.Context())
			req.Body = body
			w = &roomyWriter{ResponseWriter: w, body: body}
		}
		next.ServeHTTP(w, req)
	})
}

// errFull ends a body for which there is no room any more.
var errFull = errors.New("there is no space left on the disk of the registry")

// roomyBody ends with errFull when it would fill the disk.
type roomyBody struct {
	io.ReadCloser
	dir  string
	read int64 // since the disk was checked
	full bool
	free uint64 // when it was full
}

func (b *roomyBody) Read(p []byte) (int, error) {
	if b.read >= roomEvery {
		b.read = 0
		free, ok := roomFor(b.dir, 0)
		b.full, b.free = b.full || !ok, free
	}
	if b.full {
		return 0, errFull
	}
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	return n, err
}

// roomyWriter answers that the disk is full instead of the library's error about a body
// that ends early.
type roomyWriter struct {
	http.ResponseWriter
	body    *roomyBody
	refused bool
}

func (w *roomyWriter) WriteHeader(status int) {
	if !w.body.full {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	if !w.refused {
		w.refused = true
		w.Header().Del("Content-Length")
		refuseFull(w.ResponseWriter, w.body.free)
	}
}

func (w *roomyWriter) Write(data []byte) (int, error) {
	if !w.body.full {
		return w.ResponseWriter.Write(data)
	}
	w.WriteHeader(http.StatusInsufficientStorage)
	return len(data), nil
}

// Unwrap gives http.ResponseController the underlying writer.
func (w *roomyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// roomFor reports whether so many bytes fit, -1 if unknown. If the disk cannot be checked,
// it is left to refuse by itself.
func roomFor(dir string, size int64) (free uint64, ok bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, true
	}
	free = s.Bavail * uint64(s.Bsize)
	return free, free >= reserve+uint64(max(size, 0))
}

// refuseFull uses a status that makes clients not retry at once.
func refuseFull(w http.ResponseWriter, free uint64) {
	refuse(w, http.StatusInsufficientStorage, "DENIED",
		fmt.Sprintf("there is no space left on the disk of the registry: %d MiB are free and %d MiB are kept in reserve; make room on the server and push again",
			free>>20, reserve>>20))
}

// refuse answers with an error of the distribution API.
func refuse(w http.ResponseWriter, status int, code, why string) {
	type problem struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string][]problem{"errors": {{Code: code, Message: why}}})
}
