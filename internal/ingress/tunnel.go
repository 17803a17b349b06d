package ingress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// tunnel copies bytes between a client and a backend in both directions, until both have ended or both are silent for
// too long. One direction may end before the other.
type tunnel struct {
	idle           time.Duration // 0 for no limit
	received, sent *atomic.Int64 // by the ingress from the client, and to it
	last           atomic.Int64  // when something came
}

const (
	// look is how often a silent tunnel looks whether the other direction is silent as well.
	look = 10 * time.Second
	// spliced is how much the kernel copies before the bytes are counted.
	spliced = 1 << 20
)

// run returns when both directions have ended. What the readers have buffered comes first.
func (t *tunnel) run(client net.Conn, fromClient io.Reader, backend net.Conn, fromBackend io.Reader) {
	t.last.Store(time.Now().UnixNano())
	_ = client.SetDeadline(time.Time{}) // of HTTP; if they are closed, copying ends
	_ = backend.SetDeadline(time.Time{})
	var directions sync.WaitGroup
	both := func() {
		_ = client.Close()
		_ = backend.Close()
	}
	directions.Go(func() {
		if !t.copy(backend, client, fromClient, t.received) {
			both()
		}
	})
	if !t.copy(client, backend, fromBackend, t.sent) {
		both()
	}
	directions.Wait()
	both()
}

// copy copies one direction. It reports whether the other one may go on.
func (t *tunnel) copy(to, from net.Conn, r io.Reader, count *atomic.Int64) bool {
	if buffered, ok := r.(*bufio.Reader); ok {
		for n := buffered.Buffered(); n > 0; n = buffered.Buffered() {
			b, _ := buffered.Peek(n)
			if _, err := to.Write(b); err != nil {
				return false
			}
			_, _ = buffered.Discard(n)
			count.Add(int64(n))
		}
	}
	every := look
	if t.idle > 0 {
		every = min(every, t.idle/2+1)
	}
	some := t.plain(to, from)
	for {
		_ = from.SetReadDeadline(time.Now().Add(every)) // if it is closed, copying reports it
		n, err := some()
		if n > 0 {
			count.Add(n)
			t.last.Store(time.Now().UnixNano())
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return closeWrite(to) == nil
		case isTimeout(err) && !t.silent():
		default:
			return false
		}
	}
}

func (t *tunnel) silent() bool {
	return t.idle > 0 && time.Now().UnixNano()-t.last.Load() >= int64(t.idle)
}

// plain returns what copies the next bytes. Between two TCP connections the kernel does it.
func (t *tunnel) plain(to, from net.Conn) func() (int64, error) {
	target, ok := to.(*net.TCPConn)
	source, also := from.(*net.TCPConn)
	if ok && also {
		return func() (int64, error) {
			n, err := target.ReadFrom(&io.LimitedReader{R: source, N: spliced})
			if n < spliced && err == nil {
				err = io.EOF
			}
			return n, err
		}
	}
	buffer := make([]byte, copySize)
	return func() (int64, error) {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return int64(n), errors.Join(errWrite, io.ErrClosedPipe)
			}
		}
		return int64(n), err
	}
}

var errWrite = errors.New("the other side takes no more")

// closeWrite says that nothing more will come.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
