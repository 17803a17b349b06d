package membership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/state"
)

// Membership is how one server belongs to its cluster: how it reaches the other
// servers, and how members come and go.
type Membership struct {
	*core.Core
	version string
	// advertised is the address at which others reach this server.
	advertised string
	// instance distinguishes this process from one that runs on a copy of its data folder.
	instance   string
	duplicates *core.Duplicates

	ca             *identity.CA
	sealer         *identity.Sealer
	certificate    *identity.Rotator
	certificateTTL time.Duration

	port          *oneport.Port
	conns         *relay.Conns
	forgetServer  func(server string)
	keepAuthority func(*statev1.Authority) error
	// CatchUpWithLeader waits until this server has applied what the leader had committed when it was called.
	CatchUpWithLeader func(context.Context) error
	// Lookup resolves host names.
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

	// acted is the index of the newest entry that this server has acted on.
	acted atomic.Uint64
	// spared are removed servers that still have to relay the answer about their removal.
	spared sync.Map
	// expelled is closed, by expel, when this server is no longer a member.
	expelled <-chan struct{}
	expel    func()
}

// Options is what a Membership is made of.
type Options struct {
	Core    *core.Core
	Version string
	// Advertise is the address at which others reach this server; empty means the one
	// that it listens on.
	Advertise string
	// Addresses returns the current address of another server; nil if only the state
	// knows addresses.
	Addresses func(server string) string
	CA        *identity.CA
	Sealer    *identity.Sealer // may be nil
	// Certificate is this server's own, see NewCertificate. CertificateTTL is the
	// validity of those that it issues.
	Certificate    *identity.Rotator
	CertificateTTL time.Duration
	Port           *oneport.Port
	// KeepAuthority writes a copy of the authority for the next start; nil keeps none.
	KeepAuthority func(*statev1.Authority) error
	// ForgetServer frees what is kept for a server that was removed.
	ForgetServer func(server string)
	Duplicates   *core.Duplicates
}

// New makes the membership of the server that listens on a port.
func New(o Options) *Membership {
	s := &Membership{
		Core: o.Core, version: o.Version, advertised: AdvertisedAddress(o.Advertise, o.Port.Addr().String()), instance: rand.Text(), duplicates: o.Duplicates,
		ca: o.CA, sealer: o.Sealer, certificate: o.Certificate, certificateTTL: o.CertificateTTL,
		keepAuthority: o.KeepAuthority, port: o.Port, forgetServer: o.ForgetServer, Lookup: net.DefaultResolver.LookupNetIP,
	}
	s.conns = relay.NewConns(s.PeerConfig(), func(server string) string {
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
	s.expelled, s.expel = expelled, sync.OnceFunc(func() { close(expelled) })
	return s
}

// Run ends with an error when this server must not continue: it was removed, or
// another process runs on a copy of its data folder.
func (s *Membership) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.certificate.Run(ctx) })
	g.Go(func() error { return s.followKeys(ctx) })
	g.Go(func() error { return s.waitExpelled(ctx) })
	g.Go(func() error { return s.watchDuplicates(ctx) })
	return g.Wait()
}

// Conns are the connections to the other servers.
func (s *Membership) Conns() *relay.Conns { return s.conns }

// Expel ends this server, which is no longer a member.
func (s *Membership) Expel() { s.expel() }

// PeerConfig is how this server authenticates to the others, and they to it.
func (s *Membership) PeerConfig() peers.Config {
	return peers.Config{Trust: s.ca.Trust(), Certificate: s.certificate.Certificate, Admit: AdmitMembers(s.Store), Replaced: s.replaced}
}

// replaced ends this server, because the cluster has replaced its authority without it: it was removed, or away for too
// long. No other server accepts its certificate any more, not even to tell it so.
func (s *Membership) replaced() {
	s.Logger.Error("this server is no member any more", "error", identity.ErrReplaced)
	s.expel()
}

// OpenLink lets other servers connect to this one by a protocol.
func (s *Membership) OpenLink(link *peers.Link, protocol string) {
	link.Open(s.port.Peers(protocol), s.PeerConfig())
}

// Why a server must not continue with its data folder. The caller knows the folder, and
// adds what to do with it.
var (
	// ErrRemoved says that this server was removed from its cluster.
	ErrRemoved = errors.New("this server was removed from the cluster and ends")
	// ErrDuplicate says that another process runs with the identity of this server.
	ErrDuplicate = errors.New("this data folder is a copy")
)

// waitExpelled ends when this server learns that it was removed. It must not keep clients
// that other servers could serve.
func (s *Membership) waitExpelled(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.expelled:
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(cutGrace): // for the answer to its own removal
		return ErrRemoved
	}
}

// AdmitMembers refuses, in the handshake, members that were removed. Only gRPC
// connections are admitted nevertheless: every call on them answers that the member
// was removed.
func AdmitMembers(store *state.Store) func(identity.ID) error {
	return func(id identity.ID) error {
		if store.Snapshot().Revocation(id.Name()) != nil {
			return fmt.Errorf("%s was removed from the cluster", id)
		}
		return nil
	}
}
