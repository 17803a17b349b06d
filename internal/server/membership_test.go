package server

import (
	"net"
	"slices"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// A server that listens everywhere is reached at an address of its machine, of whichever version there is.
func TestAMachineIsReachedAtAnAddressThatItHas(t *testing.T) {
	for want, has := range map[string][]string{
		"192.0.2.7":   {"127.0.0.1/8", "::1/128", "2001:db8::7/64", "192.0.2.7/24", "192.0.2.8/24"},
		"2001:db8::7": {"127.0.0.1/8", "::1/128", "fe80::7/64", "2001:db8::7/64", "2001:db8::8/64"},
		"127.0.0.1":   {"127.0.0.1/8", "::1/128", "fe80::7/64"},
	} {
		var all []net.Addr
		for _, text := range has {
			ip, network, err := net.ParseCIDR(text)
			must(t, err)
			all = append(all, &net.IPNet{IP: ip, Mask: network.Mask})
		}
		if got := hostOf(all); got != want {
			t.Errorf("a machine with %v is reached at %s, want %s", has, got, want)
		}
	}
}

// A server that has missed the removal of another one, because the state went on
// without it, keeps no way to that one either; one that has missed its own ends.
func TestRemovalThatWasMissedCutsTheWayToAServer(t *testing.T) {
	leader, follower := pair(t)
	_, err := leader.Progress(leader.ctx, follower.UID)
	must(t, err)
	later := state.New()
	expelled := false
	leader.expel = func() { expelled = true }
	for i, revoked := range []string{"s-9", follower.UID, leader.UID} {
		var b state.Batch
		b.Create(&statev1.Revocation{Metadata: &v1.Metadata{Uid: revoked}})
		_, err := later.Apply(uint64(i+1), b.Transaction(time.Unix(1_700_000_000, 0)))
		must(t, err)
		leader.cutMissing(later.Snapshot())
		if kept := slices.Contains(leader.peers.Servers(), follower.UID); kept != (revoked == "s-9") {
			t.Errorf("after the removal of %s the way to %s is kept: %t", revoked, follower.UID, kept)
		}
		if expelled != (revoked == leader.UID) {
			t.Errorf("after the removal of %s server %s ends: %t", revoked, leader.UID, expelled)
		}
	}
}
