package mesh

import (
	"net/netip"
	"testing"
	"time"
)

// search runs a search on a path that takes datagrams of a certain size.
func searchOn(largestDatagram, interfaceMTU int) int {
	var s mtuSearch
	path := netip.MustParseAddrPort("198.51.100.1:7701")
	for now := time.Unix(0, 0).Add(time.Hour); s.found == 0; now = now.Add(proberTick) {
		number, size, _ := s.due(now, path, interfaceMTU)
		if size > 0 && size <= largestDatagram {
			s.ponged(number)
		}
	}
	return s.found
}

func TestSearchFindsTheLargestMTUThatFits(t *testing.T) {
	const headers = 20 + 8 // of IPv4 and UDP
	for _, c := range []struct{ path, want int }{{1500, 1420}, {1472, 1412}, {1400, 1340}, {1300, smallestMTU}, {1280, smallestMTU}, {600, smallestMTU}} {
		if got := searchOn(c.path-headers, 1420); got != c.want {
			t.Errorf("on a path of %d, packets have %d bytes, want %d", c.path, got, c.want)
		}
	}
}
