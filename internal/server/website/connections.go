package website

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"github.com/cloudless/cloudless/internal/ingress/origin"
)

// connections are those that agents pass on, as a net.Listener for an http.Server that speaks HTTP/1.1.
type connections struct{ net.Listener }

// Accept implements net.Listener.
func (c connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: conn}, nil
}

// connection begins with a greeting, which its first Read takes away.
type connection struct {
	net.Conn
	greeted  bool
	greeting origin.Greeting
}

// Read implements net.Conn. Only one goroutine reads at a time, and a handler runs after the first Read.
func (c *connection) Read(p []byte) (int, error) {
	if !c.greeted {
		var err error
		if c.greeting, err = origin.Read(c.Conn); err != nil {
			return 0, err
		}
		c.greeted = true
	}
	return c.Conn.Read(p)
}

type connectionKey struct{}

func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// greetingOf is what the connection of a request is for.
func greetingOf(r *http.Request) origin.Greeting {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		return c.greeting
	}
	return origin.Greeting{}
}

// secured marks a request as one that came by TLS, and from the client that the ingress has named: it lets nobody else name one.
func secured(r *http.Request) {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok && r.Header.Get("X-Forwarded-Proto") == "https" {
		if conn, ok := c.Conn.(*tls.Conn); ok {
			state := conn.ConnectionState()
			r.TLS = &state
		}
	}
	if client := r.Header.Get("X-Real-Ip"); client != "" {
		r.RemoteAddr = net.JoinHostPort(client, "0")
	}
}
