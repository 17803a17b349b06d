package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/ipam"
)

func TestANameGetsTheSameAddressAgain(t *testing.T) {
	all := netip.MustParsePrefix("10.128.0.0/16")
	free := func(netip.Addr) bool { return false }
	first, err := ipam.Address(all, "default/api", free)
	if err != nil || !all.Contains(first) {
		t.Fatalf("the address is %v: %v", first, err)
	}
	if again, _ := ipam.Address(all, "default/api", free); again != first {
		t.Errorf("the name got %v, and then %v", first, again)
	}
	other, err := ipam.Address(all, "default/api", func(a netip.Addr) bool { return a == first })
	if err != nil || other == first {
		t.Errorf("a name whose address is taken got %v: %v", other, err)
	}
}

// Every address of a range but the first and the last can be given out, to one name each.
func TestAddressesAreUniqueUntilTheRangeIsExhausted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := netip.MustParsePrefix(rapid.SampledFrom([]string{"10.128.0.0/28", "192.168.7.0/27", "fd00:1:2:ffff::/124", "10.0.0.8/30"}).Draw(t, "range"))
		taken := map[netip.Addr]bool{}
		for i := range ipam.Addresses(all) {
			name := fmt.Sprint(rapid.String().Draw(t, "name"), i)
			a, err := ipam.Address(all, name, func(a netip.Addr) bool { return taken[a] })
			if err != nil || taken[a] || !all.Contains(a) || a == all.Addr() || !all.Contains(a.Next()) {
				t.Fatalf("address %d of %v is %v: %v", i, all, a, err)
			}
			taken[a] = true
		}
		_, err := ipam.Address(all, "one more", func(a netip.Addr) bool { return taken[a] })
		if !errors.Is(err, ipam.ErrNoAddress) {
			t.Fatalf("an exhausted range gives: %v", err)
		}
	})
}

func TestRangesWithoutUsableAddresses(t *testing.T) {
	for text, want := range map[string]uint64{"10.0.0.0/32": 0, "10.0.0.0/31": 0, "10.0.0.0/30": 2, "fd00::/112": 65534, "fd00::/8": 1<<32 - 2} {
		if got := ipam.Addresses(netip.MustParsePrefix(text)); got != want {
			t.Errorf("%s has %d addresses, want %d", text, got, want)
		}
	}
}
