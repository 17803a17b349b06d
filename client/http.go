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
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

func newHTTPTransport(trust *identity.Trust, link *link) *http.Transport {
	config := identity.ClientTLS(trust, nil)
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
			return &servedConn{Conn: conn, by: address}, nil
		}
		failures = append(failures, err)
	}
	return nil, &UnreachableError{Addresses: l.all(), Err: errors.Join(failures...)}
}

// servedConn is a connection to a server that the client knows by an address.
type servedConn struct {
	net.Conn
	by string
}

func shakeHands(ctx context.Context, config *tls.Config, address string) (net.Conn, error) {
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

// HTTPTransport carries HTTPS requests to the cluster with the client's token. Whatever host a request names, the
// cluster and nobody else receives it, so that the cluster's registry is reached by a name that no resolver knows.
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
		t.client.link.leave(by) // for who asks again
		t.client.http.CloseIdleConnections()
	}
	return resp, err
}

// headerReason says in an answer without a status of gRPC why it is what it is.
const headerReason = "x-cloudless-reason"

// leave makes the server with an address the last one to be asked.
func (l *link) leave(address string) {
	l.mu.Lock()
	if l.current != address && len(l.addresses) > 1 && l.addresses[0] == address {
		l.addresses = append(slices.Clone(l.addresses[1:]), address)
	}
	calledToo := l.current == address
	l.mu.Unlock()
	if calledToo {
		l.moveOn()
	}
}
