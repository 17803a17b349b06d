// Package packets is what a server does for the mesh of the nodes: it relays packets between nodes that have no direct
// path, and tells nodes under which address they appear. It sees only encrypted packets.
//
// It must not know the state of the cluster: the port admits only its members, and cuts the connections of those that
// are removed.
package packets

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// Protocol is the name of the relay's protocol in ALPN.
const Protocol = relay.Protocol

// Server relays packets and answers STUN.
type Server struct {
	connections net.Listener
	address     string
	log         *slog.Logger
	hub         *relay.Hub
}

// New makes the relay for connections of members. address is that of the server's TCP port; STUN has the same UDP port.
func New(connections net.Listener, address string, log *slog.Logger) *Server {
	return &Server{connections: connections, address: address, log: log, hub: relay.NewHub(relay.Limits{})}
}

// Stats returns what was relayed so far.
func (s *Server) Stats() relay.Stats { return s.hub.Stats() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { s.answerSTUN(ctx) })
	defer context.AfterFunc(ctx, func() { _ = s.connections.Close() })()
	for {
		conn, err := s.connections.Accept()
		if err != nil {
			return nil // the port has closed
		}
		parts.Go(func() { s.serve(ctx, conn) })
	}
}

func (s *Server) serve(ctx context.Context, conn net.Conn) {
	secure, ok := conn.(*tls.Conn)
	if !ok {
		_ = conn.Close()
		return
	}
	id, ok := identity.PeerID(secure.ConnectionState())
	if !ok {
		_ = conn.Close()
		return
	}
	if err := s.hub.Serve(ctx, relay.AddressOf(string(id.Kind())+"/"+id.Name()), conn); err != nil {
		s.log.DebugContext(ctx, "a connection for relayed packets ended", "member", id.String(), "error", err)
	}
}

// answerSTUN serves nodes that ask for their public address. A server without it still relays.
func (s *Server) answerSTUN(ctx context.Context) {
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", s.address)
	if err != nil {
		s.log.WarnContext(ctx, "nodes behind a NAT cannot learn their address from this server: its UDP port is taken", "address", s.address, "error", err)
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := relay.AnswerSTUN(conn); !errors.Is(err, net.ErrClosed) {
		s.log.WarnContext(ctx, "nodes behind a NAT cannot learn their address from this server any more", "error", err)
	}
}
