package website

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/cloudless/cloudless/internal/object"
)

// seeker reads an object from any position, as http.ServeContent wants it. It asks the store for nothing before the first Read.
type seeker struct {
	ctx    context.Context
	reader *object.Reader
	size   int64
	// most is how many bytes are wanted from wherever the reading begins, so that the store reads no more; -1 for all.
	most    int64
	at      int64
	current io.ReadCloser
	err     error // of the store
}

// wantedBytes is the length of a range such as "bytes=0-99", and -1 for all others.
func wantedBytes(header string) int64 {
	first, last, ok := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	from, err := strconv.ParseInt(first, 10, 64)
	to, other := strconv.ParseInt(last, 10, 64)
	if !ok || err != nil || other != nil || from < 0 || to < from {
		return -1
	}
	return to - from + 1
}

var errBeforeStart = errors.New("a position before the beginning of the object")

// Seek implements io.Seeker.
func (s *seeker) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.size
	}
	if offset < 0 {
		return 0, errBeforeStart
	}
	if offset != s.at {
		s.close()
	}
	s.at = offset
	return offset, nil
}

// Read implements io.Reader.
func (s *seeker) Read(p []byte) (int, error) {
	if s.at >= s.size {
		return 0, io.EOF
	}
	if s.current == nil {
		s.current = s.reader.ReadRange(s.ctx, s.at, s.most)
		s.most = -1 // whoever reads on, against expectation, gets the rest
	}
	n, err := s.current.Read(p)
	s.at += int64(n)
	switch {
	case errors.Is(err, io.EOF) && s.at < s.size:
		s.close()
		err = nil
	case err != nil && !errors.Is(err, io.EOF):
		s.err = err
	}
	return n, err
}

func (s *seeker) close() {
	if s.current != nil {
		_ = s.current.Close()
		s.current = nil
	}
}

// late begins the answer with the first byte of content: until then, another one can be given.
type late struct {
	http.ResponseWriter
	status int
	begun  bool
}

// WriteHeader implements http.ResponseWriter.
func (l *late) WriteHeader(status int) { l.status = status }

// Write implements http.ResponseWriter.
func (l *late) Write(p []byte) (int, error) {
	l.begin()
	return l.ResponseWriter.Write(p)
}

func (l *late) begin() {
	if !l.begun {
		l.begun = true
		l.ResponseWriter.WriteHeader(max(l.status, http.StatusOK))
	}
}

// end completes the answer. If the content broke off, the client must notice that; if nothing of it was sent, it returns the
// error.
func (l *late) end(broken error) error {
	switch {
	case broken != nil && !l.begun:
		clear(l.Header())
		return broken
	case broken != nil:
		panic(http.ErrAbortHandler) // the only way to tell the client that the body is not complete
	}
	l.begin()
	return nil
}
