package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/http1"
)

const (
	// copySize is how much of a body is copied at once.
	copySize = 32 << 10
	// collected is how large a body is at most that is read before a backend is bothered with the request.
	collected = 64 << 10
	// clientSilence is how long a client may take to send or receive the next part of a body.
	clientSilence = time.Minute
	// refresh is how often deadlines of what goes on are moved.
	refresh = time.Second
)

var (
	copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}
	headBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}
)

// sendHTTP1 sends the request by HTTP/1.1.
func (x *exchange) sendHTTP1(to *endpoint) error {
	if err := x.collect(); err != nil {
		return err
	}
	repeatable := x.body == nil && x.upgrade == "" &&
		(x.method == http.MethodGet || x.method == http.MethodHead || x.method == http.MethodOptions || x.method == http.MethodTrace)
	u := to.take(!repeatable)
	for {
		if u == nil {
			var err error
			if u, err = x.connect(to); err != nil {
				return err
			}
		}
		stale, err := x.talk(u, to)
		if !stale || !repeatable || x.abort.isGone() {
			return err
		}
		u = nil // the next one is new
	}
}

func (x *exchange) connect(to *endpoint) (*upstream, error) {
	ctx, cancel := context.WithCancel(x.e.ctx)
	defer cancel()
	x.abort.on(cancel)
	defer x.abort.on(nil)
	return to.connect(ctx, x.route.connect)
}

// collect reads a small body, so that a slow client does not occupy a backend.
func (x *exchange) collect() error {
	if x.body == nil || x.filled || x.length < 0 || x.length > collected {
		return nil
	}
	x.small = make([]byte, x.length)
	n, err := io.ReadFull(x.body, x.small)
	x.received += int64(n)
	if err != nil {
		return errors.Join(errClientBody, err)
	}
	x.filled = true
	x.bodyRead.Store(true)
	return nil
}

// talk has the exchange on a connection. It reports whether the backend had closed it before it got the request. It
// returns an error if the client has got no part of an answer yet.
func (x *exchange) talk(u *upstream, to *endpoint) (stale bool, err error) {
	x.abort.on(func() { _ = u.Close() })
	keep := false
	var sending *sender
	defer func() {
		if sending != nil {
			sending.stop(x)
		}
		x.abort.on(nil)
		if keep && (sending == nil || sending.err == nil) {
			to.put(u)
		} else {
			_ = u.Close()
		}
	}()
	var deadline time.Time
	if x.route.timeout > 0 {
		deadline = time.Now().Add(x.route.timeout)
	}
	_ = u.SetDeadline(deadline) // fails if it is closed, which the next call reports
	b := headBuffers.Get().(*[]byte)
	*b = append(x.appendHead((*b)[:0]), x.small...)
	_, err = u.Write(*b)
	headBuffers.Put(b)
	if err != nil {
		return u.reused && !isTimeout(err), err
	}
	if x.body != nil && !x.filled {
		sending = x.startSending(u)
		_ = u.SetReadDeadline(time.Time{}) // it begins when the body has been sent
	}
	for {
		err = u.response.Read(u.r, backendHead, x.method)
		if err != nil {
			if sending != nil {
				_ = u.Close()
				sending.stop(x)
				if sending.client {
					return false, sending.err
				}
			}
			return u.reused && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)), err
		}
		if u.response.Status >= 200 || u.response.Status == http.StatusSwitchingProtocols {
			break
		}
		// The client was told to continue when its body was first read.
		if u.response.Status != http.StatusContinue {
			if err := x.answer.inform(u.response.Status, x.answerFields(u.response.Fields)); err != nil {
				return false, err
			}
		}
	}
	if u.response.Status == http.StatusSwitchingProtocols {
		return false, x.tunnel(u)
	}
	keep = x.relay(u)
	return false, nil
}

// appendHead appends the head of the request that the backend gets.
func (x *exchange) appendHead(b []byte) []byte {
	b = append(b, x.method...)
	b = append(b, ' ')
	b = append(b, x.target...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = http1.AppendField(b, "Host", x.host)
	x.requestFields(func(name, value string) { b = http1.AppendField(b, name, value) })
	switch {
	case x.upgrade != "":
		b = http1.AppendField(b, "Connection", "Upgrade")
		b = http1.AppendField(b, "Upgrade", x.upgrade)
	case x.body == nil && x.hasNoBody():
	case x.length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	default:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, x.length, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// hasNoBody reports whether a request without a body need not say so.
func (x *exchange) hasNoBody() bool {
	return x.method != http.MethodPost && x.method != http.MethodPut && x.method != http.MethodPatch
}

// answerFields are the fields of an answer that the client gets.
func (x *exchange) answerFields(fields []http1.Field) []http1.Field {
	tokens := connectionTokens(fields)
	x.out = x.out[:0]
	for _, f := range fields {
		if !isHopByHop(f.Name, true) && !named(tokens, f.Name) {
			x.out = append(x.out, f)
		}
	}
	return x.out
}

// relay sends the answer of a backend to the client. It reports whether the connection can be used again.
func (x *exchange) relay(u *upstream) (keep bool) {
	p := &u.response
	x.status = p.Status
	x.count(time.Since(x.began), x.status >= 500)
	fields, length := x.answerFields(p.Fields), p.Length
	if length == http1.UntilClose {
		length = http1.Chunked
	}
	if x.method == http.MethodHead || p.Status == http.StatusNotModified || p.Status == http.StatusNoContent {
		length = noLength
		if declared := http1.Get(p.Fields, "content-length"); declared != "" && p.Status != http.StatusNoContent {
			if n, err := strconv.ParseInt(declared, 10, 64); err == nil {
				length = n
			}
		}
		if x.answer.begin(x.status, fields, length) == nil {
			_ = x.answer.end(nil) // a client that is gone needs no answer
		}
		return !p.Close
	}
	u.body.Reset(u.r, p.Length)
	out, fields, length := x.compress(fields, length)
	if x.answer.begin(x.status, fields, length) != nil {
		return false
	}
	err := x.copyAnswer(out, &u.body, u, u.body.Ready)
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		x.broken()
		return false
	}
	return x.answer.end(u.body.Trailers) == nil && !p.Close
}

// broken ends an answer that has begun and cannot be completed.
func (x *exchange) broken() {
	if !x.abort.isGone() {
		x.meter().errors.Add(1)
	}
	x.answer.fail()
}

// deadlines is the side of a connection with deadlines for reading.
type deadlines interface{ SetReadDeadline(at time.Time) error }

// copyAnswer copies the body. It flushes whenever the backend has nothing more to say for now.
func (x *exchange) copyAnswer(out answerBody, body io.Reader, from deadlines, ready func() bool) error {
	buffer := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buffer)
	var moved time.Time
	for {
		// Small answers are here already.
		if !ready() {
			if err := out.Flush(); err != nil {
				x.abort.now()
				return err
			}
			if now := time.Now(); now.Sub(moved) > refresh {
				moved = now
				var until time.Time
				if x.route.idle > 0 {
					until = now.Add(x.route.idle)
				}
				if from != nil {
					_ = from.SetReadDeadline(until) // fails if it is closed, which Read reports
				}
			}
		}
		n, err := body.Read(buffer[:])
		if n > 0 {
			if _, err := out.Write(buffer[:n]); err != nil {
				x.abort.now()
				return err
			}
			x.sent += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// sender sends a request's body while the answer may begin already.
type sender struct {
	done   chan struct{}
	err    error
	client bool // the client is to blame for the error
}

func (x *exchange) startSending(u *upstream) *sender {
	s := &sender{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		if s.err = s.send(x, u); s.err != nil {
			if s.client {
				_ = u.Close() // the backend must not take what has come for all
			}
			return
		}
		x.bodyRead.Store(true)
		if x.route.timeout > 0 {
			_ = u.SetReadDeadline(time.Now().Add(x.route.timeout)) // fails if it is closed, which Read reports
		}
	}()
	return s
}

// chunkRoom is the room before and after the data of a chunk.
const chunkRoom = 10

func (s *sender) send(x *exchange, u *upstream) error {
	buffer := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buffer)
	body := &limited{x: x, r: x.body, most: x.route.maxBody}
	for {
		n, err := body.Read(buffer[chunkRoom : copySize-2])
		if n > 0 {
			_ = u.SetWriteDeadline(time.Now().Add(max(x.route.timeout, clientSilence))) // fails if it is closed, which Write reports
			if _, err := u.Write(frame(buffer[:], n, x.length < 0)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			if x.length < 0 {
				_, err := io.WriteString(u, "0\r\n\r\n")
				return err
			}
			return nil
		}
		if err != nil {
			s.client = true
			if errors.Is(err, errTooLarge) {
				return err
			}
			return errors.Join(errClientBody, err)
		}
	}
}

// frame puts the marks of a chunk around n bytes at chunkRoom.
func frame(buffer []byte, n int, chunked bool) []byte {
	if !chunked {
		return buffer[chunkRoom : chunkRoom+n]
	}
	line := append(strconv.AppendUint(make([]byte, 0, chunkRoom), uint64(n), 16), "\r\n"...)
	from := chunkRoom - len(line)
	copy(buffer[from:], line)
	copy(buffer[chunkRoom+n:], "\r\n")
	return buffer[from : chunkRoom+n+2]
}

// stop ends the sending, and returns when it has ended.
func (s *sender) stop(x *exchange) {
	select {
	case <-s.done:
		return
	default:
	}
	x.answer.stopBody()
	<-s.done
}

// tunnel connects the client with a backend that has agreed to another protocol, such as WebSocket.
func (x *exchange) tunnel(u *upstream) error {
	p := &u.response
	if x.upgrade == "" {
		return &http1.Error{Status: http.StatusBadGateway, Reason: "it switches to a protocol that nobody asked for"}
	}
	x.status = p.Status
	x.count(time.Since(x.began), false)
	fields := append(x.answerFields(p.Fields), http1.Field{Name: "Connection", Value: "Upgrade"}, http1.Field{Name: "Upgrade", Value: p.Upgrade})
	if x.answer.begin(p.Status, fields, noLength) != nil || x.answer.flush() != nil {
		return nil
	}
	conn, r, ok := x.answer.take()
	if !ok {
		x.answer.fail()
		return nil
	}
	m := x.choice.meter
	t := tunnel{idle: x.route.idle, received: &m.received, sent: &m.sent}
	t.run(conn, r, u.Conn, u.r)
	return nil
}

// upgradeOf is the protocol that a request may switch to. HTTP/2 is not one: its requests would pass by the routes.
func upgradeOf(q *http1.Request) string {
	protocol := strings.ToLower(q.Upgrade)
	if protocol == "" || q.Length != 0 || strings.HasPrefix(protocol, "h2") || strings.Contains(protocol, "http") || strings.Contains(protocol, "tls") {
		return ""
	}
	return q.Upgrade
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
