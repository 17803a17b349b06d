package mesh

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// localConn is a connection from an address.
type localConn struct {
	net.Conn
	from netip.Addr
}

func (c localConn) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.from, 1))
}

// oneRelay is a node with one relay that answers, unless down says otherwise.
type oneRelay struct {
	relays *relays
	dialed chan time.Time
	last   net.Conn // the relay's end of the last connection
	from   netip.Addr
	down   bool
}

func startOneRelay(t *testing.T) *oneRelay {
	o := &oneRelay{dialed: make(chan time.Time, 1000), from: netip.MustParseAddr("192.0.2.7")}
	hub := relay.NewHub(relay.Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	o.relays = &relays{
		dial: func(context.Context, Relay) (net.Conn, error) {
			o.dialed <- time.Now()
			if o.down {
				return nil, errors.New("nobody answers")
			}
			here, there := net.Pipe()
			o.last = there
			go func() { _ = hub.Serve(ctx, relay.AddressOf("here"), there) }()
			return localConn{here, o.from}, nil
		},
		changed: func(string) {}, connected: func() {}, log: slog.New(slog.DiscardHandler), changes: make(chan struct{}, 1), links: map[string]*relayLink{},
	}
	o.relays.set([]Relay{{ID: "only", Address: "192.0.2.1:7700"}})
	ended := make(chan struct{})
	go func() { defer close(ended); o.relays.run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; synctest.Wait() })
	return o
}

// await waits for an attempt to connect, and returns how long that took.
func (o *oneRelay) await() time.Duration {
	began := time.Now()
	took := (<-o.dialed).Sub(began)
	synctest.Wait()
	return took
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// However often a connection to a relay ends, it is back soon: only a relay that does not answer is tried less often.
func TestRelayIsBackSoonAfterEveryConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := startOneRelay(t)
		o.await()
		for range 10 {
			pass(2 * time.Second) // the connection works, but not for long
			o.last.Close()
			if took := o.await(); took > minBackoff {
				t.Fatalf("the relay is tried again after %v", took)
			}
		}
		o.down = true
		pass(2 * time.Second)
		o.last.Close()
		o.await()
		pass(5 * time.Minute)
		if n := len(o.dialed); n > 20 {
			t.Errorf("a relay that does not answer is tried %d times in five minutes", n)
		}
	})
}

// When the machine has other addresses, what is known of relays no longer counts: a connection from an address that is
// gone ends at once, and a relay that could not be reached is tried at once.
func TestRelaysAreTriedAtOnceWhenAddressesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := startOneRelay(t)
		o.await()
		pass(2 * time.Second)
		o.relays.moved([]netip.Addr{netip.MustParseAddr("192.0.2.99")})
		pass(time.Minute)
		if len(o.dialed) > 0 {
			t.Error("a connection ends because another address is gone")
		}
		o.relays.moved([]netip.Addr{o.from})
		if took := o.await(); took > 0 {
			t.Errorf("after the loss of its address, the connection is made again after %v", took)
		}
		o.down = true
		pass(2 * time.Second)
		o.last.Close()
		pass(10*time.Minute + time.Second)
		for len(o.dialed) > 0 {
			<-o.dialed
		}
		o.relays.moved(nil)
		if took := o.await(); took > 0 {
			t.Errorf("a new address is used after %v", took)
		}
	})
}

// Servers have seen an address that the node may no longer have.
func TestSeenAddressIsForgottenWithTheLocalOne(t *testing.T) {
	c := newSTUNClient(func() {})
	server := netip.MustParseAddrPort("192.0.2.1:7700")
	c.set([]netip.AddrPort{server})
	c.answers[server] = netip.MustParseAddrPort("203.0.113.9:7701")
	if len(c.seen()) != 1 {
		t.Fatal("the answer is not known")
	}
	c.forget()
	if seen := c.seen(); len(seen) != 0 {
		t.Errorf("%v is still announced", seen)
	}
}
