package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// clockEndpoint is the name of endpoints whose IPv6 address contains the time at which it was given, in its last eight
// bytes. So a node can tell how long the news took.
const clockEndpoint = "clock"

// fanout measures how long changes of endpoints take to reach the nodes that follow them.
type fanout struct {
	mu   sync.Mutex
	took []time.Duration
}

// heard notes the changes in a message. The full set of a new session has no changes.
func (f *fanout) heard(n *v1.Network) {
	if n.GetFull() || len(n.GetFollowed()) > 0 {
		return
	}
	now := time.Now()
	for _, s := range n.GetServices() {
		for _, e := range s.GetEndpoints() {
			if e.GetName() != clockEndpoint || len(e.GetAddresses()) == 0 {
				continue
			}
			address, err := netip.ParseAddr(e.GetAddresses()[0])
			if err != nil {
				continue
			}
			bytes := address.As16()
			f.add(now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(bytes[8:])))))
		}
	}
}

func (f *fanout) add(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = append(f.took, took)
}

// take returns all times since the last call, in milliseconds and in order.
func (f *fanout) take() (times []float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.took)
	for _, one := range f.took {
		times = append(times, float64(one)/float64(time.Millisecond))
	}
	f.took = nil
	return times
}
