package identity

import (
	"slices"
	"testing"
	"time"
)

func TestServersHaveTheSameTicketKeys(t *testing.T) {
	ca := newTestCA(t, testCluster)
	key, err := ca.MarshalKey()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := LoadCA(ca.Trust().DER(), key)
	if err != nil {
		t.Fatal(err)
	}
	keys := func(ca *CA, at time.Time) [][32]byte {
		t.Helper()
		keys, err := ca.TicketKeys(at)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	noon := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	today, tomorrow := keys(ca, noon), keys(ca, noon.Add(24*time.Hour))
	if !slices.Equal(today, keys(elsewhere, noon.Add(time.Hour))) {
		t.Error("two servers have different keys on the same day")
	}
	if today[0] == tomorrow[0] {
		t.Error("the key is never changed")
	}
	if !slices.Contains(tomorrow, today[0]) || !slices.Contains(today, tomorrow[0]) {
		t.Error("tickets do not last beyond midnight, or from a server whose clock is ahead")
	}
	if slices.Contains(keys(ca, noon.Add(72*time.Hour)), today[0]) {
		t.Error("old keys are kept")
	}
	if other := keys(newTestCA(t, testCluster), noon); slices.Contains(other, today[0]) {
		t.Error("another cluster has the same keys")
	}
}
