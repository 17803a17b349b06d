package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/http1"
	"github.com/cloudless/cloudless/internal/ingress/table"
)

const (
	// mostStreams is how many requests a client may have open on a connection.
	mostStreams = 250
	// mostHead2 limits the head of a request by HTTP/2, before its route is known.
	mostHead2 = mostMaxHead
	// idle2 is how long a connection may be without a request.
	idle2 = 3 * time.Minute
)

// http2Front serves the clients that speak HTTP/2, with Go's server. It is the listener of that server, too.
type http2Front struct {
	e      *Engine
	server *http.Server
	conns  chan net.Conn
	ended  chan struct{}
	once   sync.Once
	done   sync.WaitGroup
}

func newHTTP2Front(e *Engine) *http2Front {
	f := &http2Front{e: e, conns: make(chan net.Conn), ended: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	f.server = &http.Server{
		Handler: f, Protocols: &protocols, MaxHeaderBytes: mostHead2, IdleTimeout: idle2, ReadHeaderTimeout: headTime,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: mostStreams, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: clientSilence,
			MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 256 << 10,
		},
		ErrorLog: log.New(io.Discard, "", 0), // what clients do wrong
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, clientKey{}, clientOf(conn))
		},
	}
	f.done.Go(func() { _ = f.server.Serve(f) }) // it ends with the listener
	return f
}

// clientKey is the key of the connection in a request's context.
type clientKey struct{}

func clientOf(conn net.Conn) *client {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	switch c := conn.(type) {
	case *client:
		return c
	case *replayed:
		return c.client
	}
	return nil
}

// Accept returns the next connection.
func (f *http2Front) Accept() (net.Conn, error) {
	select {
	case conn := <-f.conns:
		return conn, nil
	case <-f.ended:
		return nil, net.ErrClosed
	}
}

// Close ends the accepting.
func (f *http2Front) Close() error {
	f.once.Do(func() { close(f.ended) })
	return nil
}

// Addr is what a listener has.
func (f *http2Front) Addr() net.Addr { return &net.TCPAddr{} }

// serve returns when the connection has ended.
func (f *http2Front) serve(conn net.Conn, c *client) {
	c.busy.Store(true) // it ends if it is idle for long
	select {
	case f.conns <- conn:
		<-c.closed
	case <-f.ended:
		_ = conn.Close()
	}
}

// drain asks the clients to send their next requests on other connections.
func (f *http2Front) drain() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = f.server.Shutdown(ctx) // it does not wait
}

func (f *http2Front) close() {
	_ = f.server.Close() // the connections are closed in any case
	f.done.Wait()
}

// ServeHTTP answers one request.
func (f *http2Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(clientKey{}).(*client)
	if !ok || c == nil {
		http.Error(w, "unknown connection", http.StatusInternalServerError)
		return
	}
	a := &http2Answer{w: w, r: r, control: http.NewResponseController(w)}
	if !http1.IsToken(r.Method) || !http1.IsTarget(r.RequestURI) || r.Method == http.MethodConnect {
		http.Error(w, "The path or the method has characters that are not allowed.", http.StatusBadRequest)
		return
	}
	x := &exchange{
		e: f.e, began: time.Now(), method: r.Method, target: r.RequestURI, host: r.Host, proto: "HTTP/2.0", length: r.ContentLength,
		client: c.from, peer: c.peer, trusted: c.trusted, ourPort: c.ourPort, answer: a,
	}
	if r.TLS != nil {
		x.secure, x.serverName = true, table.Host(r.TLS.ServerName)
	}
	for name, values := range r.Header {
		for _, value := range values {
			x.fields = append(x.fields, http1.Field{Name: name, Value: value})
			x.headSize += len(name) + len(value) + 4
		}
	}
	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		x.body = &http2Body{a: a, body: r.Body}
	} else {
		x.length = 0
		x.bodyRead.Store(true)
	}
	stop := context.AfterFunc(r.Context(), x.abort.now)
	defer stop()
	x.serve()
	if a.failed {
		panic(http.ErrAbortHandler)
	}
}

// http2Answer is the way to a client that speaks HTTP/2.
type http2Answer struct {
	w       http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	until   time.Time
	failed  bool
}

func (a *http2Answer) inform(status int, fields []http1.Field) error {
	h := a.w.Header()
	set(h, fields)
	a.w.WriteHeader(status)
	clear(h)
	return nil
}

func set(h http.Header, fields []http1.Field) {
	for _, f := range fields {
		h.Add(f.Name, f.Value)
	}
}

func (a *http2Answer) begin(status int, fields []http1.Field, length int64) error {
	if status == http.StatusSwitchingProtocols {
		return errors.New("HTTP/2 cannot switch to another protocol")
	}
	h := a.w.Header()
	set(h, fields)
	if length >= 0 {
		h["Content-Length"] = []string{itoa(length)}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // no guesses
	}
	a.w.WriteHeader(status)
	return nil
}

func (a *http2Answer) Write(p []byte) (int, error) {
	if now := time.Now(); a.until.Sub(now) < clientSilence/2 {
		a.until = now.Add(clientSilence)
		_ = a.control.SetWriteDeadline(a.until) // if the stream is gone, writing reports it
	}
	return a.w.Write(p)
}

func (a *http2Answer) flush() error { return a.control.Flush() }

func (a *http2Answer) end(trailers []http1.Field) error {
	for _, f := range trailers {
		a.w.Header().Add(http.TrailerPrefix+f.Name, f.Value)
	}
	return nil
}

func (a *http2Answer) fail() { a.failed = true }

func (a *http2Answer) take() (net.Conn, io.Reader, bool) { return nil, nil, false }

func (a *http2Answer) stopBody() { _ = a.r.Body.Close() }

// http2Body is the body of a request.
type http2Body struct {
	a     *http2Answer
	body  io.Reader
	moved time.Time
}

func (b *http2Body) Read(p []byte) (int, error) {
	// A gRPC stream may be silent for long: only its connection is looked after.
	if now := time.Now(); !strings.HasPrefix(b.a.r.Header.Get("Content-Type"), "application/grpc") && now.Sub(b.moved) > refresh {
		b.moved = now
		_ = b.a.control.SetReadDeadline(now.Add(clientSilence)) // if the stream is gone, reading reports it
	}
	return b.body.Read(p)
}
