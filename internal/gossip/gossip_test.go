package gossip_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/gossip"
)

// wire is a Network over plain TCP, without authentication.
type wire struct{ net.Listener }

func (wire) Dial(_, address string, timeout time.Duration) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, nowhere) {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return net.DialTimeout("tcp", address, timeout)
}

// nowhere ends names that only the wire can resolve.
const nowhere = ".invalid"

// server gossips until the test ends or leaves.
type server struct {
	*gossip.Gossip
	id, address string
	changed     chan struct{}
	// leave ends it in order; crash cuts it off.
	leave, crash func()
}

// start gossips as a server that knows the given ones.
func start(t *testing.T, id string, known ...*server) *server {
	t.Helper()
	return startAs(t, id, "127.0.0.1", known...)
}

// startAs is start for a server that announces a host.
func startAs(t *testing.T, id, host string, known ...*server) *server {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for gossip; make test runs it")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{id: id, address: listener.Addr().String(), changed: make(chan struct{}, 1)}
	cut := &cuttable{wire: wire{listener}}
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	s.Gossip, err = gossip.Open(gossip.Options{
		Self: gossip.Server{ID: id, Address: net.JoinHostPort(host, port), Zone: "z-" + id, Version: "1"}, Network: cut, Logger: slog.New(slog.DiscardHandler),
		Known: func() []gossip.Server {
			var all []gossip.Server
			for _, k := range known {
				all = append(all, gossip.Server{ID: k.id, Address: k.address})
			}
			return all
		},
		Changed: func() {
			select {
			case s.changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		_ = s.Run(ctx)
		close(done)
	}()
	s.leave = sync.OnceFunc(func() {
		cancel()
		<-done
		if err := s.Close(); err != nil {
			t.Errorf("close the gossip of %s: %v", id, err)
		}
	})
	s.crash = cut.cut
	t.Cleanup(s.leave)
	return s
}

// cuttable is a wire that can be cut.
type cuttable struct {
	wire
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (c *cuttable) keep(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		_ = conn.Close()
		return nil, errors.New("cut")
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

func (c *cuttable) Accept() (net.Conn, error) { return c.keep(c.wire.Accept()) }

func (c *cuttable) Dial(server, address string, timeout time.Duration) (net.Conn, error) {
	return c.keep(c.wire.Dial(server, address, timeout))
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	_ = c.Listener.Close()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// until waits until a server's view of the others is as wanted.
func (s *server) until(t *testing.T, want func(map[string]gossip.Server) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for {
		all := map[string]gossip.Server{}
		for _, one := range s.Servers() {
			all[one.ID] = one
		}
		if want(all) {
			return
		}
		select {
		case <-s.changed:
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s never had the wanted view, but %v", s.id, all)
		}
	}
}

func alive(all map[string]gossip.Server, ids ...string) bool {
	for _, id := range ids {
		if !all[id].Alive {
			return false
		}
	}
	return true
}

// a knows no other, b knows a, c knows b; all learn of all.
func TestServersFindEachOther(t *testing.T) {
	a := start(t, "a")
	b := start(t, "b", a)
	c := start(t, "c", b)
	for _, s := range []*server{a, b, c} {
		s.until(t, func(all map[string]gossip.Server) bool { return alive(all, "a", "b", "c") })
	}
	if got := a.Server("c"); got.Address != c.address || got.Zone != "z-c" || got.Version != "1" {
		t.Errorf("a knows c as %+v", got)
	}
	if got := a.Server("nobody"); got.ID != "" || got.Alive {
		t.Errorf("an unknown server is %+v", got)
	}
}

// A server that has joined and has no state yet knows the addresses of the others, not their ids. The others find it at
// its current address, even if they look for it elsewhere.
func TestServerFindsOthersByTheirAddress(t *testing.T) {
	a := start(t, "a")
	b := start(t, "b", &server{address: a.address})
	for _, s := range []*server{a, b} {
		s.until(t, func(all map[string]gossip.Server) bool { return alive(all, "a", "b") })
	}
}

// Names lead to the servers from the others, even if a name leads to the machine itself there, as is common, or nowhere
// before the network is up.
func TestServersAreReachedByTheirNames(t *testing.T) {
	a := startAs(t, "a", "a"+nowhere)
	b := startAs(t, "b", "b"+nowhere, a)
	c := startAs(t, "c", "c"+nowhere, a)
	for _, s := range []*server{a, b, c} {
		s.until(t, func(all map[string]gossip.Server) bool { return alive(all, "a", "b", "c") })
	}
	// They do not lose each other, because every probe is answered.
	c.crash()
	for _, s := range []*server{a, b} {
		s.until(t, func(all map[string]gossip.Server) bool { return !all["c"].Alive })
		s.until(t, func(all map[string]gossip.Server) bool { return alive(all, "a", "b") })
	}
}

func TestDeadServerIsDetected(t *testing.T) {
	for _, way := range []string{"leaves", "crashes"} {
		t.Run(way, func(t *testing.T) {
			a := start(t, "a")
			b := start(t, "b", a)
			a.until(t, func(all map[string]gossip.Server) bool { return alive(all, "b") })
			if way == "leaves" {
				b.leave()
			} else {
				b.crash()
			}
			a.until(t, func(all map[string]gossip.Server) bool { return !all["b"].Alive })
			again := start(t, "b", a)
			a.until(t, func(all map[string]gossip.Server) bool {
				return all["b"].Alive && all["b"].Address == again.address
			})
		})
	}
}

func TestOptionsAreRequired(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	known := func() []gossip.Server { return nil }
	logger := slog.New(slog.DiscardHandler)
	for what, o := range map[string]gossip.Options{
		"nothing":           {},
		"no network":        {Self: gossip.Server{ID: "a", Address: "127.0.0.1:1"}, Known: known, Logger: logger},
		"no usable address": {Self: gossip.Server{ID: "a", Address: "nowhere"}, Known: known, Logger: logger, Network: wire{listener}},
	} {
		if g, err := gossip.Open(o); err == nil {
			_ = g.Close()
			t.Error(fmt.Sprint(what, " is enough"))
		}
	}
}
