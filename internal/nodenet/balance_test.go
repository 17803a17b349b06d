package nodenet

import (
	"math"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// sharesOf are as many backends of one weight and then of another.
func sharesOf(count int, weight uint64, others int, other uint64) (all []share) {
	for i := range count + others {
		s := share{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)}), 80), weight}
		if i >= count {
			s.weight = other
		}
		all = append(all, s)
	}
	return all
}

// A small share stays small among many backends: 5 % for a canary must not become 7 %.
func TestSlotsDivideConnectionsAsTheWeightsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, fresh := rapid.IntRange(1, 150).Draw(t, "old"), rapid.IntRange(1, 20).Draw(t, "new")
		share := rapid.IntRange(1, 99).Draw(t, "share")
		total := uint64(1000 * (old + fresh))
		shares := sharesOf(old, total*uint64(100-share)/100/uint64(old), fresh, total*uint64(share)/100/uint64(fresh))
		count, of := map[netip.AddrPort]int{}, 0
		slots := weighted(shares)
		for _, to := range slots {
			count[to]++
		}
		for _, s := range shares {
			if count[s.to] == 0 {
				t.Fatalf("%s gets no connection", s.to)
			}
		}
		for _, s := range shares[old:] {
			of += count[s.to]
		}
		if most := max(minSlots, slotsEach*len(shares)); len(slots) > most+len(shares) {
			t.Fatalf("%d slots for %d backends", len(slots), len(shares))
		}
		// A backend with a weight gets at least one slot, which may be more than its share.
		leastOld, leastFresh := float64(100*old)/float64(len(slots)), float64(100*fresh)/float64(len(slots))
		if got := 100 * float64(of) / float64(len(slots)); math.Abs(got-float64(share)) > 0.5 && 100-float64(share) > leastOld && float64(share) > leastFresh {
			t.Fatalf("%d and %d backends: the share is %.2f%%, want %d%%", old, fresh, got, share)
		}
	})
	if slots := weighted(nil); slots != nil {
		t.Errorf("no backends have the slots %v", slots)
	}
}
