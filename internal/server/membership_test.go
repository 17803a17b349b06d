package server

import (
	"net"
	"testing"
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
