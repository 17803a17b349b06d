package oneport

import (
	"crypto/tls"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cloudless/cloudless/internal/identity"
)

const talk = "cloudless-talk"

// echo answers every peer with its own first byte.
func (s *service) echo(t *testing.T) {
	t.Helper()
	listener := s.port.Peers(talk)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyN(conn, conn, 1)
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
}

// speak sends one byte in the peers' protocol; the error is that of whichever step failed.
func (s *service) speak(t *testing.T, who *identity.Credentials) error {
	t.Helper()
	var source identity.CertificateSource
	if who != nil {
		source = who.Certificate
	}
	config := identity.ClientTLS(s.ca.Trust(), source)
	config.NextProtos = []string{talk}
	conn, err := tls.Dial("tcp", s.port.Addr().String(), config)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func TestOnlyServersSpeakProtocolsBetweenServers(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Peers = []string{talk}
	removed, _ := identity.NewID("test-cluster", identity.KindServer, "s-removed")
	o.Admit = func(id identity.ID) error {
		if id == removed {
			return errors.New("it was removed")
		}
		return nil
	}
	s := serve(t, c, o)
	s.echo(t)
	if err := s.speak(t, c.member(t, identity.KindServer, "s-2")); err != nil {
		t.Errorf("another server: %v", err)
	}
	for name, who := range map[string]*identity.Credentials{
		"a node":           c.member(t, identity.KindNode, "n-1"),
		"a user":           c.member(t, identity.KindUser, "ann"),
		"nobody":           nil,
		"a removed server": c.member(t, identity.KindServer, "s-removed"),
		"another cluster":  newCluster(t).member(t, identity.KindServer, "s-2"),
	} {
		if err := s.speak(t, who); err == nil {
			t.Errorf("%s may speak the protocol of the servers", name)
		}
	}
	// It may call gRPC, so that it learns the reason; over HTTP it gets no further than any stranger.
	who := c.member(t, identity.KindServer, "s-removed")
	if _, err := s.dial(t, identity.ClientTLS(c.ca.Trust(), who.Certificate)).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("the call of a removed server is not answered: %v", err)
	}
	if answer, err := s.get(t, identity.ClientTLS(c.ca.Trust(), who.Certificate), true); err == nil {
		t.Errorf("a removed server is answered with %q", answer)
	}
	if s.port.Peers("cloudless-other") != nil {
		t.Error("the port has a protocol that no part registered")
	}
}

func TestOnlyNodesSpeakProtocolsOfNodes(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Nodes = []string{talk}
	s := serve(t, c, o)
	s.echo(t)
	if err := s.speak(t, c.member(t, identity.KindNode, "n-1")); err != nil {
		t.Errorf("a node: %v", err)
	}
	for _, kind := range []identity.Kind{identity.KindServer, identity.KindUser} {
		if err := s.speak(t, c.member(t, kind, "ann")); err == nil {
			t.Errorf("a %s may speak the protocol of the nodes", kind)
		}
	}
	if err := s.speak(t, nil); err == nil {
		t.Error("nobody may speak the protocol of the nodes")
	}
}

// The code that cuts the connections of a removed member may miss one whose peer is not known yet.
func TestMemberRemovedDuringItsHandshakeIsRefused(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Peers = []string{talk}
	var asked atomic.Int64
	o.Admit = func(identity.ID) error {
		if asked.Add(1) > 1 {
			return errors.New("it was removed")
		}
		return nil
	}
	s := serve(t, c, o)
	s.echo(t)
	if err := s.speak(t, c.member(t, identity.KindServer, "s-2")); err == nil || asked.Load() != 2 {
		t.Errorf("it was let in with %v, after %d questions", err, asked.Load())
	}
}
