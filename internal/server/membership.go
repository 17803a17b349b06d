package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/state"
)

// join makes this server one among several: how it reaches the others, and how
// calls find the leader.
func (s *Server) join(o Options) {
	s.sealer = o.Sealer
	s.advertised = AdvertisedAddress(o.Advertise, s.address)
	s.peers = relay.NewConns(s.PeerConfig(), func(server string) string {
		if o.Addresses != nil {
			if address := o.Addresses(server); address != "" {
				return address
			}
		}
		if known := s.Store.Snapshot().Server(server); known != nil {
			return known.GetSpec().GetAddress()
		}
		for _, one := range s.Consensus.Servers() {
			if one.ID == server {
				return one.Address
			}
		}
		return ""
	})
	expelled := make(chan struct{})
	s.expelled, s.expel = expelled, sync.OnceFunc(func() { time.AfterFunc(cutGrace, func() { close(expelled) }) })
	s.router = relay.NewRouter(s.Core, s.peers, s.Addresses, s.expel)
	s.catchUpWithLeader = s.router.CatchUp
	s.images = images.New(images.Options{
		Core: s.Core, Registry: s.registry, Sealer: s.sealer, Foreign: o.Foreign, Conns: s.peers, Router: s.router,
		PeerConfig: s.PeerConfig(), Address: s.address, Stopping: s.stopping,
	})
	s.auth = auth.NewAuthenticator(s.stopping, s.Core, s.ca.Trust().Cluster(), func(ctx context.Context) error { return s.catchUpWithLeader(ctx) })
}

// AdvertisedAddress is where others reach a server that listens on an address: as
// wished, or there, or, if that is everywhere, at this machine's first address.
func AdvertisedAddress(wish, address string) string {
	if wish != "" {
		return wish
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return address
	}
	all, _ := net.InterfaceAddrs()
	return net.JoinHostPort(hostOf(all), port)
}

// hostOf is the address of a machine that others reach it at: the first one of
// version 4, or of version 6 where there is none.
func hostOf(all []net.Addr) string {
	host := ""
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		if n.IP.To4() != nil {
			return n.IP.String()
		}
		host = cmp.Or(host, n.IP.String())
	}
	return cmp.Or(host, "127.0.0.1")
}

// PeerConfig is what this server proves itself with to the others.
func (s *Server) PeerConfig() peers.Config {
	return peers.Config{Trust: s.ca.Trust(), Certificate: s.certificate.Certificate, Admit: s.admitMember}
}

// OpenLink lets other servers speak a protocol with this one.
func (s *Server) OpenLink(link *peers.Link, protocol string) {
	link.Open(s.port.Peers(protocol), s.PeerConfig())
}

// Advertised is where others reach this server.
func (s *Server) Advertised() string { return s.advertised }

// Why a server must not go on with its data folder. What to do with the folder
// is said by who knows it.
var (
	// ErrRemoved says that this server was removed from its cluster.
	ErrRemoved = errors.New("this server was removed from the cluster and ends")
	// ErrCopy says that this server runs elsewhere already.
	ErrCopy = errors.New("this data folder is a copy")
)

// untilExpelled ends when this server learns that it was removed: it must not
// keep clients that others could serve.
func (s *Server) untilExpelled(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.expelled:
		return ErrRemoved
	}
}

// admitMember refuses members that were removed, in the handshake already. Only who speaks gRPC gets further, and is
// told there, by every call, that it was removed.
func (s *Server) admitMember(id identity.ID) error {
	if s.Store.Snapshot().Revocation(id.Name()) != nil {
		return fmt.Errorf("%s was removed from the cluster", id)
	}
	return nil
}

// routeRevocation cuts off a server that was removed. A node is cut off when it
// leaves the state.
func (s *Server) routeRevocation(c state.Change) {
	revoked, _ := c.New.(*statev1.Revocation)
	id, err := identity.ParseID(revoked.GetId())
	switch {
	case err != nil, id.Kind() != identity.KindServer:
	case id.Name() == s.UID:
		s.expel()
	default:
		s.cutServer(id)
	}
}

// Addresses are those of all servers, this one first.
func (s *Server) Addresses() []string { return s.addresses(s.Store.Snapshot()) }
