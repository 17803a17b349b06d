package s3

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// stallBytes is how much a client must move before its deadline is put off: one that sends a byte now and then would
// otherwise keep its memory for ever.
const stallBytes = 64 << 10

// incoming is the body of a request. It fails when the client stalls.
type incoming struct {
	call    *call
	body    io.ReadCloser
	control *http.ResponseController
	stall   time.Duration
	// due is when the deadline is put off again, in bytes.
	due int64
	// until is a deadline from versitygw, when it only throws away what is left.
	until time.Time
	// waits is true until the client was asked for the body with "100 Continue".
	waits bool
}

// Read implements io.Reader.
func (in *incoming) Read(p []byte) (int, error) {
	if in.waits && !in.until.IsZero() {
		return 0, io.EOF // the client has sent nothing yet, and need not
	}
	in.waits = false
	if in.until.IsZero() && in.call.received >= in.due {
		in.due = in.call.received + stallBytes
		in.deadline(time.Now().Add(in.stall))
	}
	n, err := in.body.Read(p)
	in.call.received += int64(n)
	return n, err
}

// Close implements io.Closer: net/http closes the body.
func (*incoming) Close() error { return nil }

// deadline limits the next reads. Connections that have no deadlines are those of tests.
func (in *incoming) deadline(t time.Time) {
	_ = in.control.SetReadDeadline(t)
}

// outgoing is the answer to a client. It fails when the client stops reading.
type outgoing struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	sent    int64
}

// outgoingPiece is how much is written with one deadline.
const outgoingPiece = 256 << 10

// Write implements io.Writer.
func (out *outgoing) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		_ = out.control.SetWriteDeadline(time.Now().Add(out.stall))
		n, err := out.ResponseWriter.Write(p[:min(len(p), outgoingPiece)])
		total += n
		out.sent += int64(n)
		if err != nil {
			return total, err
		}
		p = p[n:]
	}
	return total, nil
}

// peer is the connection of a request, as far as versitygw may know it.
type peer struct {
	net.Conn
	request *http.Request
	in      *incoming
}

var errNoConnection = errors.New("a request has no connection of its own here")

// Read implements net.Conn. Nobody calls it, nor Write and Close.
func (*peer) Read([]byte) (int, error) { return 0, errNoConnection }

// Write implements net.Conn.
func (*peer) Write([]byte) (int, error) { return 0, errNoConnection }

// Close implements net.Conn.
func (*peer) Close() error { return errNoConnection }

// LocalAddr implements net.Conn.
func (p *peer) LocalAddr() net.Addr {
	if a, ok := p.request.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		return a
	}
	return &net.TCPAddr{}
}

// RemoteAddr implements net.Conn. Policies can be about the address.
func (p *peer) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", p.request.RemoteAddr)
	if err != nil {
		return &net.TCPAddr{}
	}
	return a
}

// SetReadDeadline implements net.Conn. versitygw uses it to read what is left of a body that it has refused.
func (p *peer) SetReadDeadline(t time.Time) error {
	p.in.until = t
	p.in.deadline(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (*peer) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline implements net.Conn.
func (*peer) SetDeadline(time.Time) error { return nil }

// silent is the logger of fasthttp, which has nothing to say here.
type silent struct{}

// Printf implements fasthttp.Logger.
func (silent) Printf(string, ...any) {}
