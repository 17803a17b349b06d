package server

import (
	"testing"
	"time"
)

func TestTurnsAreGivenAtOnceUntilThereAreTooMany(t *testing.T) {
	turns := &turns{every: time.Millisecond}
	now := time.Now()
	for i := range turnsAtOnce + 1 {
		if wait := turns.take(now); wait > 0 {
			t.Fatalf("turn %d waits for %v", i, wait)
		}
	}
	for i := 1; i <= 3; i++ {
		if got, want := turns.take(now), time.Duration(i)*time.Millisecond; got != want {
			t.Errorf("the next turn but %d waits for %v, want %v", i-1, got, want)
		}
	}
	// Who comes after those has to wait for what is left of them only.
	if got := turns.take(now.Add(3 * time.Millisecond)); got != time.Millisecond {
		t.Errorf("a later one waits for %v", got)
	}
	later := now.Add(time.Hour)
	for i := range turnsAtOnce {
		if wait := turns.take(later); wait > 0 {
			t.Fatalf("after a quiet hour turn %d waits for %v", i, wait)
		}
	}
}
