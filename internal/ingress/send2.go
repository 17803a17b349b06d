package ingress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/http1"
)

// sendHTTP2 sends the request by HTTP/2 without TLS, as gRPC needs it.
func (x *exchange) sendHTTP2(to *endpoint) error {
	if err := x.collect(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(x.e.ctx, connectTimeout{}, x.route.connect))
	defer cancel(nil)
	x.abort.on(func() { cancel(context.Canceled) })
	defer x.abort.on(nil)
	p := &patience{out: func() { cancel(errTimeout) }}
	defer p.end()
	return x.roundTrip(ctx, to, p)
}

// patience ends a request that the backend is too slow with. It does not run while the client is to send.
type patience struct {
	out func()

	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

// begin sets the time that the backend has from now on; 0 is for ever.
func (p *patience) begin(limit time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	if !p.ended && limit > 0 {
		p.timer = time.AfterFunc(limit, p.out)
	}
}

// end says that the backend has answered.
func (p *patience) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

func (x *exchange) roundTrip(ctx context.Context, to *endpoint, waiting *patience) error {
	target, err := url.ParseRequestURI(x.target)
	if err != nil {
		return &http1.Error{Status: http.StatusBadRequest, Reason: fmt.Sprintf("the path cannot be read: %v", err)}
	}
	target.Scheme, target.Host = "http", to.addresses[0]
	body := &clientBody{limited: limited{x: x, most: x.route.maxBody}, waiting: waiting}
	q := (&http.Request{Method: x.method, URL: target, Host: x.host, Header: http.Header{}, Proto: "HTTP/2.0", ProtoMajor: 2}).WithContext(ctx)
	switch {
	case x.filled:
		q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(x.small)), x.length
	case x.body != nil:
		body.r = x.body
		q.Body, q.ContentLength = body, x.length
	}
	// Go's transport may be reading the body when it returns, whether or not there is an answer.
	defer body.stop()
	x.requestFields(func(name, value string) { q.Header.Add(name, value) })
	if http1.HasToken(http1.Get(x.fields, "te"), "trailers") {
		q.Header.Set("Te", "trailers")
	}
	if q.Header.Get("User-Agent") == "" {
		q.Header["User-Agent"] = nil // none instead of Go's
	}
	waiting.begin(x.route.timeout)
	p, err := to.multi().RoundTrip(q)
	waiting.end()
	if err != nil {
		body.stop()
		if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
			return errTimeout
		}
		if body.err != nil {
			return body.err
		}
		return err
	}
	defer func() {
		body.stop() // before Close, which waits for the reading to end
		_ = p.Body.Close()
	}()
	x.relayHTTP2(p)
	return nil
}

func (x *exchange) relayHTTP2(p *http.Response) {
	x.status = p.StatusCode
	x.count(time.Since(x.began), x.status >= 500)
	x.out = x.out[:0]
	for name, values := range p.Header {
		for _, value := range values {
			if !isHopByHop(name, true) {
				x.out = append(x.out, http1.Field{Name: name, Value: value})
			}
		}
	}
	length := p.ContentLength
	switch {
	case x.method == http.MethodHead || p.StatusCode == http.StatusNotModified || p.StatusCode == http.StatusNoContent:
		if length < 0 || p.StatusCode == http.StatusNoContent {
			length = noLength
		}
	case length < 0:
		length = http1.Chunked
	}
	if p.ContentLength == 0 || p.Body == http.NoBody { // gRPC's errors have their trailers in the head: they must stay there
		if x.isGRPC() {
			length = noLength
		}
		if x.answer.begin(x.status, x.out, length) == nil {
			_ = x.answer.end(nil) // a client that is gone needs no answer
		}
		return
	}
	out, fields, length := x.compress(x.out, length)
	if x.answer.begin(x.status, fields, length) != nil {
		return
	}
	idle := &idleBody{x: x, body: p.Body}
	err := x.copyAnswer(out, idle, nil, func() bool { return false })
	idle.stop()
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		x.broken()
		return
	}
	var trailers []http1.Field
	for name, values := range p.Trailer {
		for _, value := range values {
			trailers = append(trailers, http1.Field{Name: name, Value: value})
		}
	}
	_ = x.answer.end(trailers) // a client that is gone needs no answer
}

// clientBody is the body of a client on its way to a backend that speaks HTTP/2. Go's transport reads it in a goroutine of
// its own, which nobody else can wait for.
type clientBody struct {
	limited
	waiting *patience
	err     error // that the client is to blame for; only after stop

	mu      sync.Mutex // held while the client is read
	ending  sync.Mutex
	begun   atomic.Bool
	stopped atomic.Bool
}

var errStopped = errors.New("the request is over")

func (b *clientBody) Read(p []byte) (int, error) {
	b.begun.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped.Load() {
		return 0, errStopped
	}
	b.waiting.begin(0)
	n, err := b.limited.Read(p)
	limit := b.x.route.timeout
	switch {
	case err == nil && limit > 0: // to take this part
		b.waiting.begin(max(limit, clientSilence))
	case errors.Is(err, io.EOF):
		b.x.bodyRead.Store(true)
		b.waiting.begin(limit)
	case errors.Is(err, errTooLarge):
		b.err = err
	case err != nil && !b.stopped.Load():
		b.err = errors.Join(errClientBody, err)
	}
	return n, err
}

// Close ends the reading without waiting for that. Go's transport calls it when the request ends, however it ends. A body
// that was not begun can still be sent to another endpoint.
func (b *clientBody) Close() error {
	b.ending.Lock()
	defer b.ending.Unlock()
	if !b.stopped.Swap(true) && b.begun.Load() && !b.x.bodyRead.Load() {
		b.x.answer.stopBody()
	}
	return nil
}

// stop ends the reading, and returns when it has ended: the client's connection belongs to others afterwards.
func (b *clientBody) stop() {
	_ = b.Close() // never fails
	b.mu.Lock()
	defer b.mu.Unlock()
}

// idleBody ends an answer that is silent for too long.
type idleBody struct {
	x     *exchange
	body  io.ReadCloser
	timer *time.Timer
}

func (b *idleBody) Read(p []byte) (int, error) {
	if b.x.route.idle > 0 {
		if b.timer == nil {
			b.timer = time.AfterFunc(b.x.route.idle, func() { _ = b.body.Close() })
		} else {
			b.timer.Reset(b.x.route.idle)
		}
	}
	return b.body.Read(p)
}

func (b *idleBody) stop() {
	if b.timer != nil {
		b.timer.Stop()
	}
}
