package ipam_test

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/ipam"
)

var ula = netip.MustParsePrefix("fd12:3456:789a::/48")

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func TestLowestFree(t *testing.T) {
	for _, c := range []struct {
		used4, used6 []netip.Prefix
		want4, want6 string
	}{
		{nil, nil, "10.64.0.0/24", "fd12:3456:789a::/64"},
		{prefixes("10.64.0.0/24", "10.64.2.0/24"), prefixes("fd12:3456:789a::/64"), "10.64.1.0/24", "fd12:3456:789a:1::/64"},
		// Used prefixes of any size count, in any order.
		{prefixes("10.64.4.0/24", "10.64.0.7/32", "10.64.0.0/22"), prefixes("fd12:3456:789a::/50"), "10.64.5.0/24", "fd12:3456:789a:4000::/64"},
		// Used prefixes outside the range do not count.
		{prefixes("10.0.0.0/24", "192.168.0.0/16"), prefixes("fd00::/48"), "10.64.0.0/24", "fd12:3456:789a::/64"},
	} {
		v4, v6, err := ipam.NextSubnets(ipam.DefaultRange4(netip.Addr{}, nil), ula, c.used4, c.used6)
		if err != nil || v4.String() != c.want4 || v6.String() != c.want6 {
			t.Errorf("with %v and %v in use: %v and %v (%v), want %s and %s", c.used4, c.used6, v4, v6, err, c.want4, c.want6)
		}
	}
}

// The range of a new cluster avoids the prefixes of its machine and always its own address.
func TestDefaultRangeAvoidsTheMachinesPrefixes(t *testing.T) {
	for _, c := range []struct {
		at   string
		used []netip.Prefix
		want string
	}{
		{"192.0.2.1", prefixes("192.0.2.0/24", "172.17.0.0/16"), "10.64.0.0/10"},
		{"10.64.0.10", prefixes("10.64.0.0/24"), "10.128.0.0/10"},
		{"10.64.0.10", nil, "10.128.0.0/10"}, // reached through another machine
		{"192.0.2.1", prefixes("10.100.0.0/16"), "10.128.0.0/10"},
		{"10.64.0.10", prefixes("10.0.0.0/8"), "172.16.0.0/12"},
		{"10.64.0.10", prefixes("10.0.0.0/8", "172.16.0.0/12"), "100.64.0.0/10"},
		// All ranges are in use: only the cluster's address is avoided.
		{"10.64.0.10", prefixes("10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10"), "10.128.0.0/10"},
	} {
		if got := ipam.DefaultRange4(netip.MustParseAddr(c.at), c.used); got.String() != c.want {
			t.Errorf("at %s with %v in use: %v, want %s", c.at, c.used, got, c.want)
		}
	}
}

func TestExhausted(t *testing.T) {
	small := netip.MustParsePrefix("10.64.0.0/23")
	_, _, err := ipam.NextSubnets(small, ula, prefixes("10.64.1.0/24", "10.64.0.0/24"), nil)
	if !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("got %v", err)
	}
	_, _, err = ipam.NextSubnets(small, ula, nil, prefixes("fd00::/8"))
	if !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("got %v", err)
	}
	_, _, err = ipam.NextSubnets(netip.MustParsePrefix("255.255.255.0/24"), ula, prefixes("255.255.255.255/32"), nil)
	if !errors.Is(err, ipam.ErrExhausted) {
		t.Errorf("at the end of the address space: %v", err)
	}
}

func TestBadRanges(t *testing.T) {
	good4 := ipam.DefaultRange4(netip.Addr{}, nil)
	for _, c := range [][2]netip.Prefix{
		{ula, ula},
		{good4, good4},
		{{}, ula},
		{good4, {}},
		{netip.MustParsePrefix("10.64.0.0/25"), ula},
		{good4, netip.MustParsePrefix("fd00::/65")},
		{good4, netip.MustParsePrefix("::ffff:10.0.0.0/104")},
	} {
		if v4, v6, err := ipam.NextSubnets(c[0], c[1], nil, nil); err == nil {
			t.Errorf("ranges %v gave %v and %v", c, v4, v6)
		}
	}
}

// Each subnet is the lowest free one and overlaps no other, while nodes join and leave
// and foreign prefixes are in use.
func TestSubnetsNeverOverlap(t *testing.T) {
	all := netip.MustParsePrefix("10.64.0.0/20")
	foreign := rapid.Custom(func(t *rapid.T) netip.Prefix {
		low := rapid.Uint16().Draw(t, "low")
		bits := rapid.IntRange(19, 32).Draw(t, "bits")
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(low >> 8), byte(low)}), bits)
	})
	rapid.Check(t, func(t *rapid.T) {
		used := rapid.SliceOfN(foreign, 0, 4).Draw(t, "foreign")
		var used6 []netip.Prefix
		for range rapid.IntRange(1, 24).Draw(t, "steps") {
			v4, v6, err := ipam.NextSubnets(all, ula, used, used6)
			if lowest, ok := bruteForce(all, used); !ok {
				if !errors.Is(err, ipam.ErrExhausted) {
					t.Fatalf("with %v in use nothing is free, but got %v, %v", used, v4, err)
				}
				return
			} else if err != nil || v4 != lowest {
				t.Fatalf("with %v in use got %v (%v), want %v", used, v4, err, lowest)
			}
			if slices.ContainsFunc(used6, v6.Overlaps) || !ula.Contains(v6.Addr()) {
				t.Fatalf("with %v in use got %v", used6, v6)
			}
			used, used6 = append(used, v4), append(used6, v6)
			if rapid.Bool().Draw(t, "remove") {
				i := rapid.IntRange(0, len(used)-1).Draw(t, "which")
				used = slices.Delete(used, i, i+1)
			}
		}
	})
}

// bruteForce tries every /24 of a /20.
func bruteForce(all netip.Prefix, used []netip.Prefix) (netip.Prefix, bool) {
	for third := range 16 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(third), 0}), 24)
		if all.Overlaps(p) && !slices.ContainsFunc(used, p.Overlaps) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func TestRandomULA(t *testing.T) {
	p, err := ipam.RandomULA(bytes.NewReader([]byte{0x12, 0x34, 0x56, 0x78, 0x9a}))
	if err != nil || p != ula {
		t.Errorf("got %v, %v", p, err)
	}
	if _, err := ipam.RandomULA(bytes.NewReader([]byte{1})); err == nil {
		t.Error("a source without enough randomness was accepted")
	}
}
