package oneport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cloudless/cloudless/internal/identity"
)

// take accepts everything that a port gives to its HTTP server, and reads it only in then.
func take(port *Port, then func(net.Conn)) {
	go func() { // ends with the port
		for {
			c, err := port.HTTP().Accept()
			if err != nil {
				return
			}
			if then != nil {
				go then(c)
			}
		}
	}()
}

// shake makes a connection with a finished handshake, with the certificate of a member or without one.
func shake(t *testing.T, c cluster, raw net.Conn, member *identity.Credentials) *tls.Conn {
	t.Helper()
	var source identity.CertificateSource
	if member != nil {
		source = member.Certificate
	}
	conn := tls.Client(raw, identity.ClientTLS(c.ca.Trust(), source))
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	return conn
}

func isOpen(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

func TestStrangerIsCutOffAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		port, listener, ran := run(t, c.options(t))
		take(port, nil)
		member := shake(t, c, listener.dial(), c.member(t, identity.KindNode, "n-1"))
		began := time.Now()
		stranger := shake(t, c, listener.dial(), nil)
		if _, err := stranger.Read(make([]byte, 1)); err == nil {
			t.Error("somebody answered")
		}
		if took := time.Since(began); took != DefaultLimits().Patience {
			t.Errorf("a stranger was cut after %s, want %s", took, DefaultLimits().Patience)
		}
		if time.Sleep(time.Hour); !isOpen(member) {
			t.Error("a member was cut, too")
		}
		stop(t, port, ran)
	})
}

func TestOldestStrangerMakesRoomForTheNext(t *testing.T) {
	for name, limit := range map[string]func(*Limits){
		"in all":        func(l *Limits) { l.Strangers = 3 },
		"of one source": func(l *Limits) { l.SourceStrangers = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				o := c.options(t)
				o.Limits = DefaultLimits()
				limit(&o.Limits)
				port, listener, ran := run(t, o)
				take(port, nil)
				member := shake(t, c, listener.dial(), c.member(t, identity.KindNode, "n-1"))
				var strangers []*tls.Conn
				for range 5 {
					strangers = append(strangers, shake(t, c, listener.dial(), nil))
					synctest.Wait()
				}
				for i, s := range strangers {
					if want := i >= 2; isOpen(s) != want {
						t.Errorf("stranger %d of 5 is open: %v, want %v", i+1, !want, want)
					}
				}
				if !isOpen(member) {
					t.Error("the member was cut")
				}
				stop(t, port, ran)
			})
		})
	}
}

func TestBytesOfStrangersAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		port, listener, ran := run(t, c.options(t))
		take(port, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		much := make([]byte, 2*DefaultLimits().Bytes)
		if _, err := shake(t, c, listener.dial(), nil).Write(much); err == nil {
			t.Error("a stranger may send anything")
		}
		if _, err := shake(t, c, listener.dial(), c.member(t, identity.KindNode, "n-1")).Write(much); err != nil {
			t.Errorf("a member may not: %v", err)
		}
		stop(t, port, ran)
	})
}

func TestAuthenticationLiftsTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		o := c.options(t)
		o.Limits = DefaultLimits()
		o.Limits.SourceStrangers, o.Limits.SourceBurst, o.Limits.SourceRate = 1, 2, 0
		port, listener, ran := run(t, o)
		take(port, func(conn net.Conn) {
			StrangerOf(ConnContext(context.Background(), conn)).Authenticated()
			_, _ = io.Copy(io.Discard, conn)
		})
		var proved []*tls.Conn
		for range 10 {
			proved = append(proved, shake(t, c, listener.dial(), nil))
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		for i, conn := range proved {
			if _, err := conn.Write(make([]byte, 2*o.Limits.Bytes)); err != nil {
				t.Errorf("connection %d of 10 was cut: %v", i+1, err)
			}
		}
		stop(t, port, ran)
	})
}

// Agents behind one address reconnect all at once. However small the limits, no connection is refused.
func TestMembersOfOneSourceWaitForEachOther(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Limits = DefaultLimits()
	o.Limits.SourceHandshakes, o.Limits.SourceBurst, o.Limits.SourceRate, o.Limits.SourceStrangers = 4, 4, 0, 1
	s := serve(t, c, o)
	node := c.member(t, identity.KindNode, "n-1")
	var all sync.WaitGroup
	for range 100 {
		client := s.dial(t, identity.ClientTLS(c.ca.Trust(), node.Certificate))
		all.Go(func() {
			if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestUnauthenticatedHandshakesUseUpTheRateOfTheirSource(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Limits = DefaultLimits()
	o.Limits.SourceBurst, o.Limits.SourceRate = 3, 0
	s := serve(t, c, o)
	from := func(address string) *tls.Conn {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		raw, err := dialer.Dial("tcp", s.port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Close() })
		return tls.Client(raw, identity.ClientTLS(c.ca.Trust(), nil))
	}
	for range 3 {
		if err := from("127.0.0.2").Handshake(); err != nil {
			t.Fatal(err)
		}
	}
	waiting := from("127.0.0.2")
	answered := make(chan error, 1)
	go func() { answered <- waiting.Handshake() }()
	if err := from("127.0.0.3").Handshake(); err != nil {
		t.Errorf("another source: %v", err)
	}
	select {
	case err := <-answered:
		t.Errorf("a fourth handshake went through: %v", err)
	default:
	}
	_ = waiting.Close()
	<-answered
}

// A flood of strangers from everywhere does not block a source from which a member is connected.
func TestGlobalRateSparesSourcesOfMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := map[string]int{}
		g := newGate(DefaultLimits(), time.Second)
		g.limits.Rate, g.limits.Burst = 0, 0
		g.rate = newBucket(0, 0, time.Now())
		g.start = func(c *conn) { started[c.Conn.(fakeConn).ip]++ }
		port := &Port{gate: g, conns: map[*conn]struct{}{}}
		member := &conn{Conn: fakeConn{ip: "192.0.2.1"}, port: port, stage: stageShaking, source: g.source(netip.MustParsePrefix("192.0.2.1/32"), time.Now())}
		g.trust(member)
		for range 10 {
			g.arrive(&conn{Conn: fakeConn{ip: "192.0.2.1"}, port: port})
			g.arrive(&conn{Conn: fakeConn{ip: "192.0.2.2"}, port: port})
		}
		if started["192.0.2.1"] != 10 || started["192.0.2.2"] != 0 {
			t.Errorf("handshakes begun: %v", started)
		}
		g.close()
	})
}

func TestStalledHandshakesMakeRoomForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		o := c.options(t)
		o.Limits = DefaultLimits()
		o.Limits.SourceHandshakes = 2
		port, listener, ran := run(t, o)
		take(port, nil)
		first, second := listener.dial(), listener.dial()
		time.Sleep(staleAfter)
		began := time.Now()
		shake(t, c, listener.dial(), nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited for %s", took)
		}
		if isOpen(first) || isOpen(second) {
			t.Error("a stalled handshake was left while another one waited")
		}
		stop(t, port, ran)
	})
}

// Silent connections from many addresses take every place again and again. They delay no client for long.
func TestSilentConnectionsDelayClientsBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(DefaultLimits(), 10*time.Second)
		g.limits.Handshakes, g.limits.Waiting = 16, 200
		arrived, waited := time.Now(), make(chan time.Duration, 1)
		g.start = func(c *conn) {
			if c.Conn.(fakeConn).ip == "192.0.2.99" {
				waited <- time.Since(arrived)
			}
		}
		port := &Port{gate: g, conns: map[*conn]struct{}{}}
		flood := func() {
			for source := range 8 {
				for range 50 {
					g.arrive(&conn{Conn: fakeConn{ip: fmt.Sprintf("192.0.2.%d", source)}, port: port})
				}
			}
		}
		flood()
		g.arrive(&conn{Conn: fakeConn{ip: "192.0.2.99"}, port: port})
		for len(waited) == 0 && time.Since(arrived) < time.Minute {
			time.Sleep(lookAgain)
			flood()
		}
		if len(waited) == 0 {
			t.Error("the handshake of another address has not begun after a minute")
		} else if took := <-waited; took > 2*silentAfter {
			t.Errorf("the handshake of another address began after %s", took)
		}
		g.close()
	})
}

func TestOneSourceCannotFillTheWaitingRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(DefaultLimits(), time.Second)
		g.limits.Waiting = 100
		g.start = func(*conn) {}
		port := &Port{gate: g, conns: map[*conn]struct{}{}}
		arrive := func(ip string, n int) (refused int) {
			for range n {
				c := &conn{Conn: fakeConn{ip: ip}, port: port}
				if g.arrive(c); c.stage == stageGone {
					refused++
				}
			}
			return refused
		}
		flood := g.limits.SourceHandshakes + 100
		if got := arrive("192.0.2.1", flood); got != 50 {
			t.Errorf("%d of a flood were refused, want the half of the room left to others", got)
		}
		for _, other := range []string{"192.0.2.2", "2001:db8::1"} {
			if got := arrive(other, 10); got != 0 {
				t.Errorf("%d of 10 connections from %s were refused", got, other)
			}
		}
		g.close()
	})
}

type fakeConn struct {
	net.Conn
	ip string
}

func (fakeConn) Close() error           { return nil }
func (f fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.ip), Port: 1} }

// The kernel remembers a gracefully closed connection for a minute.
func TestRefusedConnectionIsReset(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Limits = DefaultLimits()
	o.Limits.SourceHandshakes, o.Limits.Waiting = 1, 0
	s := serve(t, c, o)
	for _, want := range []error{os.ErrDeadlineExceeded, syscall.ECONNRESET} {
		conn, err := net.Dial("tcp", s.port.Addr().String())
		if want == syscall.ECONNRESET && errors.Is(err, want) {
			continue // the reset arrived before Dial returned
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if want != syscall.ECONNRESET { // it has the only place
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("read: %v, want %v", err, want)
		}
	}
}

func TestSourceIsAnAddressOrAnIPv6Network(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:80":          "192.0.2.1/32",
		"[::ffff:192.0.2.1]:80": "192.0.2.1/32",
		"[2001:db8:1:2:3::4]:1": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":      "fe80::/64",
	} {
		if got := sourceOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))); got.String() != want {
			t.Errorf("source of %s: %s, want %s", address, got, want)
		}
	}
}
