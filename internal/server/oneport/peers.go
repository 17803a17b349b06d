package oneport

import (
	"crypto/tls"
	"fmt"
	"net"
	"slices"

	"github.com/cloudless/cloudless/internal/identity"
)

// Peers returns the connections for one of the protocols in [Options.Peers], [Options.Members] or [Options.Nodes]. The
// handshake refuses clients that may not speak it. It is nil for any other protocol.
func (p *Port) Peers(protocol string) net.Listener {
	if r := p.peers[protocol]; r != nil {
		return r
	}
	return nil
}

func newPeerRoutes(addr net.Addr, base *tls.Config, o Options) map[string]*route {
	routes := make(map[string]*route, len(o.Peers)+len(o.Members)+len(o.Nodes))
	for _, protocol := range o.Peers {
		routes[protocol] = newPeerRoute(addr, base, protocol, identity.KindServer)
	}
	for _, protocol := range o.Members {
		routes[protocol] = newPeerRoute(addr, base, protocol, identity.KindServer, identity.KindNode)
	}
	for _, protocol := range o.Nodes {
		routes[protocol] = newPeerRoute(addr, base, protocol, identity.KindNode)
	}
	return routes
}

// newPeerRoute makes the route of a protocol that only members of some kinds speak.
func newPeerRoute(addr net.Addr, base *tls.Config, protocol string, kinds ...identity.Kind) *route {
	r := newRoute(addr, base, protocol)
	r.tls.ClientAuth = tls.RequireAndVerifyClientCert
	verify := r.tls.VerifyConnection
	r.tls.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(state); err != nil {
			return err
		}
		return onlyKinds(state, protocol, kinds)
	}
	return r
}

func onlyKinds(state tls.ConnectionState, protocol string, kinds []identity.Kind) error {
	if len(state.PeerCertificates) == 0 {
		return fmt.Errorf("the protocol %s is for members of kind %v, and this client has no certificate", protocol, kinds)
	}
	id, err := identity.FromCertificate(state.PeerCertificates[0])
	if err != nil {
		return err
	}
	if !slices.Contains(kinds, id.Kind()) {
		return fmt.Errorf("the protocol %s is for members of kind %v, and %s is none", protocol, kinds, id)
	}
	return nil
}

// admitting checks in the handshake whether a member is still welcome.
func admitting(config *tls.Config, admit func(identity.ID) error) *tls.Config {
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(state); err != nil || len(state.PeerCertificates) == 0 {
			return err
		}
		id, err := identity.FromCertificate(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		return admit(id)
	}
	return config
}

// peerRoute returns the route of the first protocol that the port knows; nil if it knows none.
func (p *Port) peerRoute(protocols []string) *route {
	for _, protocol := range protocols {
		if r := p.peers[protocol]; r != nil {
			return r
		}
	}
	return nil
}

func (p *Port) closeRoutes() {
	for _, r := range []*route{p.grpc, p.grpcServers, p.grpcStrangers, p.http} {
		_ = r.Close()
	}
	for _, r := range p.peers {
		_ = r.Close()
	}
}
