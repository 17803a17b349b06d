package ingress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/http1"
)

var (
	readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}
)

// http1Front serves a client that speaks HTTP/1.1.
type http1Front struct {
	e    *Engine
	c    *client
	conn net.Conn // of TLS, or c itself
	r    *bufio.Reader
	w    *bufio.Writer
	q    http1.Request
	x    exchange
	body http1Body
	watch

	keep    bool // the connection after this answer
	begun   bool
	chunked bool // the body of the answer is in chunks
	taken   bool // by another protocol
	until   time.Time
	bodies  http1.Body
}

// serveHTTP1 answers the requests on a connection until it ends.
func (e *Engine) serveHTTP1(c *client, conn net.Conn, secure bool, serverName string) {
	f := &http1Front{e: e, c: c, conn: conn, r: readers.Get().(*bufio.Reader), w: writers.Get().(*bufio.Writer)}
	f.r.Reset(conn)
	f.w.Reset(conn)
	defer func() {
		f.w.Reset(nil)
		writers.Put(f.w)
		if f.r != nil {
			f.r.Reset(nil)
			readers.Put(f.r)
		}
	}()
	defer func() { _ = conn.Close() }()
	f.watch.init(f)
	for first := true; ; first = false {
		if !f.next(first) {
			return
		}
		if first && !secure && f.isHTTP2() {
			e.http2.serve(&replayed{client: c, r: f.r}, c)
			f.r = nil // the server may read until it notices that the connection is closed
			return
		}
		if err := f.q.Read(f.r, e.current.Load().maxHead); err != nil {
			f.refuse(err)
			return
		}
		_ = conn.SetReadDeadline(time.Time{}) // if it is closed, reading the next request reports it
		c.busy.Store(true)
		f.exchange(secure, serverName)
		c.busy.Store(false)
		if f.taken {
			return
		}
		if !f.keep {
			f.linger()
			return
		}
	}
}

// next waits for the next request.
func (f *http1Front) next(first bool) bool {
	if f.r.Buffered() > 0 {
		_ = f.conn.SetReadDeadline(time.Now().Add(f.headTime())) // if it is closed, reading reports it
		return true
	}
	wait := keepAlive
	switch {
	case first:
		wait = f.headTime()
	case f.e.draining.Load() || f.e.limits.crowded():
		wait = quickHeadTime
	}
	_ = f.conn.SetReadDeadline(time.Now().Add(wait)) // as above
	if _, err := f.r.Peek(1); err != nil {
		return false
	}
	if !first {
		_ = f.conn.SetReadDeadline(time.Now().Add(f.headTime())) // as above
	}
	return true
}

func (f *http1Front) headTime() time.Duration {
	if f.e.limits.crowded() {
		return quickHeadTime
	}
	return headTime
}

// isHTTP2 reports whether the client speaks HTTP/2 without having asked.
func (f *http1Front) isHTTP2() bool {
	for n := 1; n <= len("PRI "); n++ {
		b, err := f.r.Peek(n)
		if err != nil || string(b) != "PRI "[:n] {
			return false
		}
	}
	return true
}

// refuse answers what is no request.
func (f *http1Front) refuse(err error) {
	var refused *http1.Error
	if !errors.As(err, &refused) {
		return // the client is gone, or too slow
	}
	reason := http.StatusText(refused.Status) + ": " + refused.Reason + ".\n"
	f.x = exchange{e: f.e, method: f.q.Method}
	f.keep = false
	_ = f.begin(refused.Status, []http1.Field{textType}, int64(len(reason)))
	_, _ = f.Write([]byte(reason))
	_ = f.end(nil)
	f.linger()
}

// exchange answers one request.
func (f *http1Front) exchange(secure bool, serverName string) {
	q := &f.q
	f.x = exchange{
		e: f.e, began: time.Now(), method: q.Method, target: q.Target, host: q.Host, proto: "HTTP/1.1", fields: q.Fields, length: q.Length, upgrade: upgradeOf(q),
		headSize: q.Size, client: f.c.from, peer: f.c.peer, trusted: f.c.trusted, secure: secure, serverName: serverName, ourPort: f.c.ourPort, answer: f, out: f.x.out[:0],
	}
	if q.Minor == 0 {
		f.x.proto = "HTTP/1.0"
	}
	f.keep, f.begun, f.chunked = !q.Close, false, false
	if q.Length != 0 {
		f.bodies.Reset(f.r, q.Length)
		f.body = http1Body{f: f, expect: q.Expect}
		f.x.body = &f.body
	} else {
		f.x.bodyRead.Store(true)
		f.watch.begin()
	}
	f.x.serve()
	f.watch.end()
	if !f.begun {
		f.keep = false
	}
}

// http1Body is the body of a request.
type http1Body struct {
	f      *http1Front
	expect bool
	moved  time.Time
	over   atomic.Bool // nobody may wait for more of it
}

func (b *http1Body) Read(p []byte) (int, error) {
	f := b.f
	if b.expect {
		b.expect = false
		if _, err := io.WriteString(f.conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return 0, err
		}
	}
	if !f.bodies.Ready() {
		if now := time.Now(); now.Sub(b.moved) > refresh {
			b.moved = now
			_ = f.conn.SetReadDeadline(now.Add(clientSilence)) // if it is closed, reading reports it
		}
		if b.over.Load() { // the deadline may have replaced that of stopBody
			return 0, os.ErrDeadlineExceeded
		}
	}
	return f.bodies.Read(p)
}

// stopBody may be called by any goroutine. The connection ends with the answer, because the body was not read.
func (f *http1Front) stopBody() {
	f.body.over.Store(true)
	_ = f.conn.SetReadDeadline(time.Unix(1, 0)) // if it is closed, nobody reads
}

// inform sends an answer before the answer.
func (f *http1Front) inform(status int, fields []http1.Field) error {
	if f.q.Minor == 0 {
		return nil
	}
	f.head(status, fields)
	_, _ = f.w.WriteString("\r\n") // the writer remembers its first error
	return f.flush()
}

func (f *http1Front) head(status int, fields []http1.Field) (dated bool) {
	w := f.w
	_, _ = w.WriteString("HTTP/1.1 ") // the writer remembers its first error
	_, _ = w.Write(strconv.AppendInt(w.AvailableBuffer(), int64(status), 10))
	_ = w.WriteByte(' ')
	_, _ = w.WriteString(http.StatusText(status))
	_, _ = w.WriteString("\r\n")
	for _, field := range fields {
		dated = dated || field.Is("date")
		f.field(field.Name, field.Value)
	}
	return dated
}

func (f *http1Front) field(name, value string) {
	_, _ = f.w.WriteString(name) // the writer remembers its first error
	_, _ = f.w.WriteString(": ")
	_, _ = f.w.WriteString(value)
	_, _ = f.w.WriteString("\r\n")
}

func (f *http1Front) begin(status int, fields []http1.Field, length int64) error {
	f.begun = true
	f.extend()
	// What is left of a request that nobody has read would be taken for the next one.
	if !f.x.bodyRead.Load() || f.e.draining.Load() {
		f.keep = false
	}
	if !f.head(status, fields) && status != http.StatusSwitchingProtocols {
		f.field("Date", f.e.date())
	}
	switch {
	case length >= 0:
		_, _ = f.w.WriteString("Content-Length: ") // the writer remembers its first error
		_, _ = f.w.Write(strconv.AppendInt(f.w.AvailableBuffer(), length, 10))
		_, _ = f.w.WriteString("\r\n")
	case length == http1.Chunked && f.q.Minor == 1:
		f.chunked = true
		f.field("Transfer-Encoding", "chunked")
	case length == http1.Chunked:
		f.keep = false // the body ends with the connection
	}
	if status != http.StatusSwitchingProtocols {
		switch {
		case !f.keep:
			f.field("Connection", "close")
		case f.q.Minor == 0:
			f.field("Connection", "keep-alive")
		}
	}
	_, err := f.w.WriteString("\r\n")
	return err
}

// extend moves the deadline for writing.
func (f *http1Front) extend() {
	now := time.Now()
	if f.until.Sub(now) < clientSilence/2 {
		f.until = now.Add(clientSilence)
		_ = f.conn.SetWriteDeadline(f.until) // if it is closed, writing reports it
	}
}

func (f *http1Front) Write(p []byte) (int, error) {
	f.extend()
	if !f.chunked {
		return f.w.Write(p)
	}
	if err := http1.WriteChunk(f.w, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *http1Front) flush() error {
	f.extend()
	return f.w.Flush()
}

func (f *http1Front) end(trailers []http1.Field) error {
	if f.chunked {
		_ = http1.WriteEnd(f.w, trailers) // the writer remembers its first error
	}
	return f.w.Flush()
}

func (f *http1Front) fail() {
	f.keep, f.begun = false, true
	_ = f.w.Flush() // what is complete of the answer
	_ = f.conn.Close()
}

func (f *http1Front) take() (net.Conn, io.Reader, bool) {
	f.watch.end()
	f.taken = true
	return f.conn, f.r, true
}

// linger lets the client read the answer before the connection ends: if data is unread when a connection is closed, the
// kernel discards what was sent.
func (f *http1Front) linger() {
	const most, wait = 256 << 10, 2 * time.Second
	if closeWrite(f.conn) != nil {
		return
	}
	_ = f.conn.SetReadDeadline(time.Now().Add(wait)) // if it is closed, reading reports it
	_, _ = io.CopyN(io.Discard, f.r, most)           // whatever ends it
}

// replayed is a connection of which something was read ahead.
type replayed struct {
	*client
	r *bufio.Reader
}

func (c *replayed) Read(p []byte) (int, error) {
	if c.r.Buffered() > 0 {
		return c.r.Read(p)
	}
	return c.client.Read(p)
}

// watch notices that a client has gone while its request waits. It begins to look after a moment, because most requests
// do not wait.
type watch struct {
	f     *http1Front
	timer *time.Timer

	mu      sync.Mutex
	waiting bool
	looking chan struct{} // closed when looking has ended; nil if it has not begun
}

const watchAfter = 500 * time.Millisecond

func (w *watch) init(f *http1Front) { w.f = f }

func (w *watch) begin() {
	w.mu.Lock()
	w.waiting, w.looking = true, nil
	w.mu.Unlock()
	if w.timer == nil {
		w.timer = time.AfterFunc(watchAfter, w.look)
	} else {
		w.timer.Reset(watchAfter)
	}
}

// look reads ahead until the client sends something, or is gone.
func (w *watch) look() {
	w.mu.Lock()
	if !w.waiting || w.looking != nil {
		w.mu.Unlock()
		return
	}
	ended := make(chan struct{})
	w.looking = ended
	w.mu.Unlock()
	defer close(ended)
	_, err := w.f.r.Peek(w.f.r.Buffered() + 1)
	if err != nil && !isTimeout(err) && !errors.Is(err, bufio.ErrBufferFull) {
		w.f.x.abort.now()
	}
}

// end ends the looking, so that the next request can be read.
func (w *watch) end() {
	w.mu.Lock()
	waiting, looking := w.waiting, w.looking
	w.waiting = false
	w.mu.Unlock()
	if !waiting {
		return
	}
	w.timer.Stop()
	if looking != nil {
		_ = w.f.conn.SetReadDeadline(time.Unix(1, 0)) // if it is closed, looking ends, too
		<-looking
		_ = w.f.conn.SetReadDeadline(time.Time{})
	}
}
