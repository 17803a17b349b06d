package oneport

import (
	"crypto/tls"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

// visit makes one request on its own connection and reports whether that resumed a session. Reading the answer also
// receives the ticket for the next time.
func (s *service) visit(config *tls.Config) (resumed bool, answer string, err error) {
	conn, err := tls.Dial("tcp", s.port.Addr().String(), config)
	if err != nil {
		return false, "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: cloudless\r\nConnection: close\r\n\r\n"); err != nil {
		return false, "", err
	}
	data, err := io.ReadAll(conn)
	return conn.ConnectionState().DidResume, string(data), err
}

func resuming(c cluster, member *identity.Credentials) *tls.Config {
	config := identity.Resume(identity.ClientTLS(c.ca.Trust(), member.Certificate))
	config.NextProtos = []string{"http/1.1"}
	config.ServerName = "servers" // the key of sessions, whatever the address
	return config
}

// A node that loses its server continues with the next one, or with the same one after a restart, without a full
// handshake and with the same identity.
func TestSessionsAreResumedWithAnyServerOfTheCluster(t *testing.T) {
	c := newCluster(t)
	with := func() Options {
		o := c.options(t)
		o.TicketKeys = c.ca.TicketKeys
		return o
	}
	first, second := serve(t, c, with()), serve(t, c, with())
	node := c.member(t, identity.KindNode, "n-1")
	config := resuming(c, node)
	for i, s := range []*service{first, second, second, first} {
		resumed, answer, err := s.visit(config)
		if err != nil {
			t.Fatal(err)
		}
		if resumed != (i > 0) {
			t.Errorf("visit %d: resumed %v", i, resumed)
		}
		if want := "HTTP/1.1 " + node.ID().String(); !containsLine(answer, want) {
			t.Errorf("visit %d: the server saw %q, want %s", i, answer, want)
		}
	}
}

func TestRemovedMemberResumesNothing(t *testing.T) {
	c := newCluster(t)
	node := c.member(t, identity.KindNode, "n-1")
	removed := false
	o := c.options(t)
	o.TicketKeys = c.ca.TicketKeys
	o.Admit = func(identity.ID) error {
		if removed {
			return errors.New("removed")
		}
		return nil
	}
	s := serve(t, c, o)
	config := resuming(c, node)
	if _, _, err := s.visit(config); err != nil {
		t.Fatal(err)
	}
	removed = true
	if resumed, answer, err := s.visit(config); err == nil {
		t.Errorf("it was answered with %q, resumed %v", answer, resumed)
	}
}

func TestTicketsOfAnotherClusterAreRefused(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	o := c.options(t)
	o.TicketKeys = c.ca.TicketKeys
	home := serve(t, c, o)
	o.TicketKeys = other.ca.TicketKeys // only the keys are another cluster's
	abroad := serve(t, c, o)
	config := resuming(c, c.member(t, identity.KindNode, "n-1"))
	for i, s := range []*service{home, abroad} {
		if resumed, _, err := s.visit(config); err != nil || resumed {
			t.Errorf("visit %d: resumed %v, %v", i, resumed, err)
		}
	}
}

func TestPortWithoutTicketKeysSaysWhy(t *testing.T) {
	o := newCluster(t).options(t)
	o.TicketKeys = func(time.Time) ([][32]byte, error) { return nil, errors.New("no key today") }
	if _, err := Listen(t.Context(), o); err == nil {
		t.Error("it listens")
	}
}

func containsLine(answer, want string) bool {
	return len(answer) >= len(want) && answer[len(answer)-len(want):] == want
}

// The cluster replaces its authority: connections that a dropped authority has vouched for end, and nothing of them is
// resumed, while members with new certificates notice nothing.
func TestConnectionsEndWithTheirAuthority(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.TicketKeys = c.ca.TicketKeys
	o.Certificate = func() (*tls.Certificate, error) { return c.member(t, identity.KindServer, "s-1").Certificate() }
	s := serve(t, c, o)
	old := c.member(t, identity.KindNode, "n-1")
	resumed := resuming(c, old)
	if _, _, err := s.visit(resumed); err != nil {
		t.Fatal(err)
	}
	next, endorsements, err := c.ca.Successor(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := next.MarshalKey()
	if err != nil {
		t.Fatal(err)
	}
	held, err := tls.Dial("tcp", s.port.Addr().String(), resuming(c, old))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := io.WriteString(held, "GET / HTTP/1.1\r\nHost: cloudless\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := c.ca.Set(identity.Authorities{Active: next.Trust().DER(), Key: key, Previous: c.ca.Trust().DER(), Endorsements: endorsements}); err != nil {
		t.Fatal(err)
	}
	if err := s.port.RenewTickets(); err != nil {
		t.Fatal(err)
	}
	if cut := s.port.CloseUntrusted(); cut != 0 {
		t.Errorf("%d connections were cut while both authorities are trusted", cut)
	}
	if _, _, err := s.visit(resumed); err != nil {
		t.Errorf("an old certificate while both authorities are trusted: %v", err)
	}
	if err := c.ca.Set(identity.Authorities{Active: next.Trust().DER(), Key: key}); err != nil {
		t.Fatal(err)
	}
	if s.port.CloseUntrusted() == 0 { // those of the visits may be closing still
		t.Error("the connection with the old certificate was not cut")
	}
	if _, err := io.Copy(io.Discard, held); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Logf("the held connection ended: %v", err)
	}
	if _, answer, err := s.visit(resumed); err == nil && answer != "" {
		t.Errorf("an old certificate after the rotation: %q", answer)
	}
	if _, _, err := s.visit(resuming(c, c.member(t, identity.KindNode, "n-1"))); err != nil {
		t.Errorf("a new certificate: %v", err)
	}
}
