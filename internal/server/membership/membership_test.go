package membership

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/state"
)

func TestAdvertisedAddressIsOneOfTheMachine(t *testing.T) {
	for want, has := range map[string][]string{
		"192.0.2.7":   {"127.0.0.1/8", "::1/128", "2001:db8::7/64", "192.0.2.7/24", "192.0.2.8/24"},
		"2001:db8::7": {"127.0.0.1/8", "::1/128", "fe80::7/64", "2001:db8::7/64", "2001:db8::8/64"},
		"127.0.0.1":   {"127.0.0.1/8", "::1/128", "fe80::7/64"},
	} {
		var all []net.Addr
		for _, text := range has {
			ip, network, err := net.ParseCIDR(text)
			must.Succeed(t, err)
			all = append(all, &net.IPNet{IP: ip, Mask: network.Mask})
		}
		if got := hostOf(all); got != want {
			t.Errorf("a machine with %v is reached at %s, want %s", has, got, want)
		}
	}
}

// newMembership is the membership of server s-1, which finds all others at one address.
func newMembership(t *testing.T, others string) *Membership {
	t.Helper()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	c := &core.Core{UID: "s-1", Store: state.New(), Clock: time.Now, Logger: slog.New(slog.DiscardHandler)}
	certificate, err := NewCertificate(c, ca, time.Hour, nil)
	must.Succeed(t, err)
	port, err := oneport.Listen(t.Context(), oneport.Options{
		Address: "127.0.0.1:0", Trust: ca.Trust(), Certificate: certificate.Certificate, Admit: AdmitMembers(c.Store), Log: c.Logger,
	})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = port.Close() })
	m := New(Options{
		Core: c, CA: ca, Certificate: certificate, Port: port, ForgetServer: func(string) {}, Duplicates: &core.Duplicates{},
		Addresses: func(string) string { return others },
	})
	t.Cleanup(m.Conns().Close)
	return m
}

// A server may miss the removal of a member while the state advances without it. When it catches up, it closes the
// connections to a removed server, and ends if it was removed itself.
func TestCatchUpActsOnMissedRemovals(t *testing.T) {
	m := newMembership(t, "127.0.0.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.Conns().Ready(ctx, "s-2") // which begins a connection and does not wait for it
	if err == nil {
		t.Fatal("there is a server at a port that is closed")
	}
	later := state.New()
	for i, revoked := range []string{"s-9", "s-2", "s-1"} {
		var b state.Batch
		b.Create(&statev1.Revocation{Metadata: &v1.Metadata{Uid: revoked}})
		_, err := later.Apply(uint64(i+1), b.Transaction(time.Unix(1_700_000_000, 0)))
		must.Succeed(t, err)
		m.CatchUp(later.Snapshot())
		if kept := slices.Contains(m.Conns().Servers(), "s-2"); kept != (revoked == "s-9") {
			t.Errorf("after the removal of %s there is a connection to s-2: %t", revoked, kept)
		}
		expelled := false
		select {
		case <-m.expelled:
			expelled = true
		default:
		}
		if expelled != (revoked == "s-1") {
			t.Errorf("after the removal of %s server s-1 ends: %t", revoked, expelled)
		}
	}
}
