package peers_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/server/peers"
)

// host is a server with its own port and a link for Raft.
type host struct {
	name string
	port *oneport.Port
	link *peers.Link
	cfg  peers.Config
}

func credentials(t *testing.T, ca *identity.CA, kind identity.Kind, name string) *identity.Credentials {
	t.Helper()
	id, err := identity.NewID(ca.Trust().Cluster(), kind, name)
	must.Succeed(t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must.Succeed(t, err)
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: true, Client: true}, time.Now())
	must.Succeed(t, err)
	made, err := identity.NewCredentials(key, chain)
	must.Succeed(t, err)
	return made
}

func newHost(t *testing.T, ca *identity.CA, name string) *host {
	t.Helper()
	source := credentials(t, ca, identity.KindServer, name).Certificate
	port, err := oneport.Listen(t.Context(), oneport.Options{
		Address: "127.0.0.1:0", Trust: ca.Trust(), Certificate: source, Log: slog.New(slog.DiscardHandler), Peers: peers.Protocols(),
	})
	must.Succeed(t, err)
	done := make(chan error, 1)
	go func() { done <- port.Run(context.WithoutCancel(t.Context())) }()
	h := &host{name: name, port: port, link: peers.NewLink(peers.Raft), cfg: peers.Config{Trust: ca.Trust(), Certificate: source}}
	t.Cleanup(func() {
		_ = h.link.Close()
		_ = port.Close()
		must.Succeed(t, <-done)
	})
	return h
}

func (h *host) open() { h.link.Open(h.port.Peers(peers.Raft), h.cfg) }

func (h *host) address() string { return h.port.Addr().String() }

func TestLinkLeadsToTheIntendedServer(t *testing.T) {
	ca, err := identity.NewCA("c-1", time.Now())
	must.Succeed(t, err)
	a, b := newHost(t, ca, "a"), newHost(t, ca, "b")
	a.open()
	if _, err := b.link.Dial("a", a.address(), 50*time.Millisecond); err == nil {
		t.Error("a link without a certificate reaches a server")
	}
	accepted := make(chan net.Conn, 1)
	go func() { // waits until there is a port
		conn, err := b.link.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- conn
	}()
	b.open()
	conn, err := a.link.Dial("b", b.address(), 5*time.Second)
	must.Succeed(t, err)
	defer conn.Close()
	there := <-accepted
	defer there.Close()
	_, err = conn.Write([]byte("hello"))
	must.Succeed(t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(there, got)
	must.Succeed(t, err)
	if string(got) != "hello" {
		t.Errorf("received %q", got)
	}

	if _, err := a.link.Dial("c", b.address(), 5*time.Second); err == nil || !strings.Contains(err.Error(), "server b answered in place of server c") {
		t.Errorf("another server at the address: %v", err)
	}
	must.Succeed(t, a.link.Close())
	if _, err := a.link.Dial("b", b.address(), time.Second); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dialled by a closed link: %v", err)
	}
	if _, err := a.link.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accepted by a closed link: %v", err)
	}
}

// Neither Raft nor gossip accept a node.
func TestNodeCannotUseProtocolsBetweenServers(t *testing.T) {
	ca, err := identity.NewCA("c-1", time.Now())
	must.Succeed(t, err)
	s := newHost(t, ca, "s")
	s.open()
	for _, kind := range []identity.Kind{identity.KindNode, identity.KindUser} {
		for _, protocol := range peers.Protocols() {
			link := peers.NewLink(protocol)
			link.Open(nil, peers.Config{Trust: ca.Trust(), Certificate: credentials(t, ca, kind, "x").Certificate})
			conn, err := link.Dial("s", s.address(), 5*time.Second)
			if err == nil {
				_, err = conn.Read(make([]byte, 1)) // TLS 1.3 tells a client late that it was refused
				_ = conn.Close()
			}
			if err == nil || errors.Is(err, io.EOF) {
				t.Errorf("a %s speaks %s: %v", kind, protocol, err)
			}
		}
	}
}
