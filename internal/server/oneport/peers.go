package oneport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/cloudless/cloudless/internal/identity"
)

// Peers returns the connections of other servers for one of the protocols in [Options.Peers]. The handshake refuses
// clients that are not servers of the cluster. It is nil for any other protocol.
func (p *Port) Peers(protocol string) net.Listener {
	if r := p.peers[protocol]; r != nil {
		return r
	}
	return nil
}

func newPeerRoutes(addr net.Addr, base *tls.Config, protocols []string) map[string]*route {
	routes := make(map[string]*route, len(protocols))
	for _, protocol := range protocols {
		r := newRoute(addr, base, protocol)
		r.tls.ClientAuth = tls.RequireAndVerifyClientCert
		verify := r.tls.VerifyConnection
		r.tls.VerifyConnection = func(state tls.ConnectionState) error {
			if err := verify(state); err != nil {
				return err
			}
			return onlyServer(state, protocol)
		}
		routes[protocol] = r
	}
	return routes
}

func onlyServer(state tls.ConnectionState, protocol string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the protocol " + protocol + " is spoken by servers only, and this client has no certificate")
	}
	id, err := identity.FromCertificate(state.PeerCertificates[0])
	if err != nil {
		return err
	}
	if id.Kind() != identity.KindServer {
		return fmt.Errorf("the protocol %s is spoken by servers only, and %s is none", protocol, id)
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
