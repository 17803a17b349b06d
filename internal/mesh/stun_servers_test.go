package mesh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// A server may have a name with addresses of both families: both are asked. A name that is not found is tried again.
func TestServersWithNamesAreLookedUpUntilTheyAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		found := make(chan []netip.AddrPort, 10)
		s := newSTUNServers(func(list []netip.AddrPort) { found <- list })
		var tries atomic.Int32
		s.lookUp = func(_ context.Context, _, host string) ([]netip.Addr, error) {
			if tries.Add(1) < 3 || host != "cloud.example" {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("198.51.100.1")}, nil
		}
		s.set([]string{"192.0.2.1:7700", "cloud.example:7700"})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(ctx)
		}()
		if first := <-found; len(first) != 1 {
			t.Errorf("without the name, %v are asked", first)
		}
		var last []netip.AddrPort
		for len(last) < 3 {
			last = <-found
		}
		want := []netip.AddrPort{
			netip.MustParseAddrPort("192.0.2.1:7700"), netip.MustParseAddrPort("198.51.100.1:7700"), netip.MustParseAddrPort("[2001:db8::1]:7700"),
		}
		if !slices.Equal(last, want) {
			t.Errorf("%v are asked, want %v", last, want)
		}
		cancel()
		<-ended
	})
}

// A peer that was not connected to the only relay a moment ago may be there now.
func TestTheOnlyRelayIsAskedAgainForAnAbsentPeer(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	client := relay.NewClient(here, nil)
	only := Relay{ID: "only", Address: "192.0.2.1:7700"}
	r := &relays{list: []Relay{only}, home: "only", links: map[string]*relayLink{"only": {relay: only, client: client}}}
	m := &Mesh{relays: r, byAddress: map[relay.Address]*peer{}}
	p := newPeer(m, Peer{ID: "node/a", Relay: "only"})
	m.byAddress[p.address] = p
	m.absentAt(p.address, "only")
	if r.clientFor(p) != client {
		t.Error("the relay is not asked")
	}
}
