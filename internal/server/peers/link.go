// Package peers connects the servers of a cluster: by mutual TLS on the cluster's one address, with one protocol for
// each purpose, distinguished by ALPN.
//
// It guarantees that a connection leads to the intended server, even if another machine has taken over its address, and
// that both ends are servers of the same cluster. The port refuses all others (package oneport).
//
// It must not know what the servers say to each other.
package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

// The protocols between servers, as named in ALPN.
const (
	Raft      = "cloudless-raft"
	NamesRaft = "cloudless-names-raft"
	Gossip    = "cloudless-gossip"
)

// Protocols returns all of them.
func Protocols() []string { return []string{Raft, NamesRaft, Gossip} }

var errClosed = fmt.Errorf("the link to the other servers is closed: %w", net.ErrClosed)

// Link is one protocol. It exists before the port and this server's certificate do: until [Link.Open] it accepts
// nothing and dials wait.
type Link struct {
	protocol string
	opened   chan struct{}
	closed   chan struct{}
	once     struct{ open, close sync.Once }

	// Set before opened is closed.
	listener net.Listener
	config   Config
}

// Config is what a link needs to be opened.
type Config struct {
	Trust       *identity.Trust
	Certificate identity.CertificateSource
	// Admit refuses servers; nil refuses none.
	Admit func(identity.ID) error
	// Replaced is called when another server proves that the cluster has replaced its authority without this one; it may
	// be nil.
	Replaced func()
}

// NewLink returns the link of a protocol.
func NewLink(protocol string) *Link {
	return &Link{protocol: protocol, opened: make(chan struct{}), closed: make(chan struct{})}
}

// Open begins to accept from the listener, and permits Dial. Only the first call counts.
func (l *Link) Open(listener net.Listener, config Config) {
	l.once.open.Do(func() {
		l.listener, l.config = listener, config
		close(l.opened)
	})
}

// Accept returns the next connection of another server.
func (l *Link) Accept() (net.Conn, error) {
	select {
	case <-l.opened:
		return l.listener.Accept()
	case <-l.closed:
		return nil, errClosed
	}
}

// Close ends Accept and Dial. Open connections belong to their owners.
func (l *Link) Close() error {
	l.once.close.Do(func() { close(l.closed) })
	select {
	case <-l.opened:
		return l.listener.Close()
	default:
		return nil
	}
}

// Dial connects to a server that is expected at an address, or to any server there if server is empty.
func (l *Link) Dial(server, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	select {
	case <-l.closed:
		return nil, errClosed
	default:
	}
	select {
	case <-l.opened:
	case <-l.closed:
		return nil, errClosed
	case <-ctx.Done():
		return nil, errors.New("this server has no certificate yet")
	}
	config := TLS(l.config, server)
	config.NextProtos = []string{l.protocol}
	conn, err := (&tls.Dialer{NetDialer: dialer(), Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reach server %s at %s: %w", server, address, err)
	}
	return conn, nil
}

// TLS returns the configuration for a connection to one server, or to any if server is empty.
func TLS(c Config, server string) *tls.Config {
	config := identity.ClientTLS(c.Trust, c.Certificate)
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		err := verify(state)
		if errors.Is(err, identity.ErrReplaced) && c.Replaced != nil {
			c.Replaced()
		}
		if err != nil {
			return err
		}
		id, err := identity.FromCertificate(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		if server != "" && id.Name() != server {
			return fmt.Errorf("server %s answered in place of server %s", id.Name(), server)
		}
		if c.Admit != nil {
			return c.Admit(id)
		}
		return nil
	}
	return config
}

// dialer detects within seconds that the other machine is gone.
func dialer() *net.Dialer {
	return &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5,
	}}
}
