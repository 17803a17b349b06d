package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

const (
	// handshakeTimeout is how long a server may take to complete a handshake.
	handshakeTimeout = 10 * time.Second
	// quietTime is how long a connection may be silent before the server is probed.
	quietTime = 5 * time.Second
)

func newHTTPTransport(trust *identity.Trust, link *link) *http.Transport {
	config := identity.FollowTLS(trust, func() {})
	config.NextProtos = []string{"http/1.1"}
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return link.dialTLS(ctx, config)
		},
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     time.Minute,
	}
}

// dialTLS connects to the first server that answers.
func (l *link) dialTLS(ctx context.Context, config *tls.Config) (net.Conn, error) {
	var failures []error
	for _, address := range l.all() {
		conn, err := shakeHands(ctx, config, address)
		if err == nil {
			return l.watch(conn, config, address), nil
		}
		failures = append(failures, err)
	}
	return nil, &UnreachableError{Addresses: l.all(), Err: errors.Join(failures...)}
}

// servedConn is a connection to a server, with the address by which the client knows it.
type servedConn struct {
	net.Conn
	by     string
	moved  atomic.Int64 // bytes, of both directions
	closed context.CancelFunc
}

func (c *servedConn) Read(to []byte) (int, error) {
	n, err := c.Conn.Read(to)
	c.moved.Add(int64(n))
	return n, err
}

func (c *servedConn) Write(from []byte) (int, error) {
	n, err := c.Conn.Write(from)
	c.moved.Add(int64(n))
	return n, err
}

func (c *servedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// watch closes a connection to a hanging server, and leaves that server, so that the next attempt uses another one. The
// server's kernel keeps acknowledging, so TCP notices nothing; and an answer may rightly take long. So a silent server
// is probed with another handshake.
func (l *link) watch(conn net.Conn, config *tls.Config, address string) *servedConn {
	ctx, cancel := context.WithCancel(context.Background())
	watched := &servedConn{Conn: conn, by: address, closed: cancel}
	go func() {
		ticker := time.NewTicker(quietTime)
		defer ticker.Stop()
		for before := int64(0); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			moved := watched.moved.Load()
			silent := moved == before
			before = moved
			if silent && !answers(ctx, config, address) && ctx.Err() == nil {
				l.leave(address)
				_ = watched.Close() // it has failed already
				return
			}
		}
	}()
	return watched
}

func answers(ctx context.Context, config *tls.Config, address string) bool {
	conn, err := shakeHands(ctx, config, address)
	if err == nil {
		_ = conn.Close() // nothing was sent on it
	}
	return err == nil
}

func shakeHands(ctx context.Context, config *tls.Config, address string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, handshakeFailed(address, err)
	}
	return conn, nil
}

// HTTPTransport carries HTTPS requests to the cluster with the client's token. Whatever host a request names, only the
// cluster receives it, so that the cluster's registry can have a name that no resolver knows.
func (c *Client) HTTPTransport() http.RoundTripper { return &httpTransport{client: c} }

type httpTransport struct{ client *Client }

func (t *httpTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, fmt.Errorf("%s is not an https address: the cluster speaks nothing else", req.URL.Redacted())
	}
	var by string
	req = req.Clone(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if conn, ok := got.Conn.(*servedConn); ok {
			by = conn.by
		}
	}}))
	req.Header.Set("Authorization", t.client.auth.header())
	resp, err := t.client.http.RoundTrip(req)
	if err == nil && resp.Header.Get(headerReason) == reasonNoLeader {
		t.client.link.leave(by) // for the next attempt
		t.client.http.CloseIdleConnections()
	}
	return resp, err
}

// headerReason carries the reason of an answer without a gRPC status.
const headerReason = "x-cloudless-reason"

// leave makes the server with an address the last one to try.
func (l *link) leave(address string) {
	l.mu.Lock()
	if i := slices.Index(l.addresses, address); i >= 0 && l.current != address {
		l.addresses = append(slices.Delete(slices.Clone(l.addresses), i, i+1), address)
	}
	calledToo := l.current == address
	l.mu.Unlock()
	if calledToo {
		l.moveOn()
	}
}
