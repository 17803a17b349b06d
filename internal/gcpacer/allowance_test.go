package gcpacer

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func gcPercent() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func TestServersCollectLessOftenUnlessGOGCIsSet(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "70")
	Allow()
	if got := gcPercent(); got != 100 {
		t.Errorf("with GOGC the percentage became %d", got)
	}
	t.Setenv("GOGC", "")
	Allow()
	if got := gcPercent(); got != serverGCPercent {
		t.Errorf("without GOGC the percentage became %d, want %d", got, serverGCPercent)
	}
}

// busyNow returns the allowance of a server that has been busy for long, and the time.
func busyNow(garbage uint64) (allowance, time.Time) {
	now := time.Now()
	return allowance{garbage: garbage, since: now.Add(-time.Hour)}, now
}

func TestServerIsBusyWhenItCollectsForLong(t *testing.T) {
	a, began := allowance{}, time.Now()
	for _, look := range []struct {
		cycles uint64
		after  time.Duration
		want   bool
		why    string
	}{
		{1, 0, false, "it collects for the first time"},
		{9, 14 * time.Second, false, "a burst of work"},
		{10, 15 * time.Second, true, "it goes on"},
		{10, 20 * time.Second, false, "nothing was collected since"},
		{11, 25 * time.Second, false, "it starts over"},
		{12, 39 * time.Second, false, "another burst"},
		{13, 40 * time.Second, true, "it goes on again"},
	} {
		if got := a.busy(look.cycles, began.Add(look.after)); got != look.want {
			t.Errorf("%s: busy is %v", look.why, got)
		}
	}
}

func TestBusyServerMayHaveMoreGarbage(t *testing.T) {
	a, now := busyNow(busyGarbageOf(64 << 30))
	for _, look := range []struct {
		cycles, live uint64
		want         int
		why          string
	}{
		{cycles: 3, live: 20 << 20, want: busyGCPercent, why: "it collects"},
		{cycles: 3, live: 20 << 20, want: smallGCPercent, why: "nothing was collected since"},
		{cycles: 3, live: smallState, want: serverGCPercent, why: "it keeps more"},
		{cycles: 4, live: 64 << 20, want: busyGCPercent, why: "all of it fits"},
		{cycles: 9, live: 256 << 20, want: 400, why: "no more than the bound"},
		{cycles: 10, live: 1 << 30, want: serverGCPercent, why: "what it keeps is large already"},
		{cycles: 11, live: 3 << 30, want: 91, why: "twice of what it keeps would be a whole machine's"},
		{cycles: 11, live: 3 << 30, want: 91, why: "nor is it when nothing is collected"},
		{cycles: 12, live: 0, want: serverGCPercent, why: "nothing is known yet"},
	} {
		if a.since.IsZero() {
			a.since = now.Add(-time.Hour)
		}
		if got := a.percent(look.cycles, look.live, now); got != look.want {
			t.Errorf("%s: %d percent, want %d", look.why, got, look.want)
		}
	}
}

// The runtime's limit is never reached.
func TestRuntimeLimitOfALargeHeapIsAboveOurs(t *testing.T) {
	a, now := busyNow(busyGarbageOf(64 << 30))
	for live, want := range map[uint64]int{10 << 20: busyGCPercent, 20 << 20: busyGCPercent * 100 / share, 256 << 20: 400 * 100 / share, 1 << 30: serverGCPercent * 100 / share} {
		if got := a.limit(a.cycles+1, live, now); got != want {
			t.Errorf("beside %d bytes the runtime may have %d percent, want %d", live, got, want)
		}
	}
}

// A limit below the present heap would start a collection at once, before bulk work has paused.
func TestLimitIsNeverBelowThePresentHeap(t *testing.T) {
	const mb = 1 << 20
	a, now := busyNow(busyGarbageOf(64 << 30))
	a.told = serverGCPercent
	busy := a.tell(heap{cycles: 1, kept: 100 * mb, goal: 300 * mb, size: 100 * mb}, now)
	if busy != 1024*100/share {
		t.Fatalf("a busy server may have %d percent", busy)
	}
	if got := a.tell(heap{cycles: 1, kept: 100 * mb, goal: 1800 * mb, size: 600 * mb}, now); got != busy {
		t.Errorf("with 500 MiB of garbage already there may be %d percent", got)
	}
	if got := a.tell(heap{cycles: 1, kept: 100 * mb, goal: 1800 * mb, size: 110 * mb}, now); got != serverGCPercent*100/share {
		t.Errorf("with little garbage there may be %d percent", got)
	}
	// A small heap is collected quickly.
	a = allowance{garbage: busyGarbageOf(64 << 30), told: busyGCPercent}
	if got := a.tell(heap{kept: 10 * mb, goal: 170 * mb, size: 100 * mb}, now); got != smallGCPercent {
		t.Errorf("a small server that has nothing to do may have %d percent", got)
	}
}

func TestSmallMachineIsNotFilledWithGarbage(t *testing.T) {
	a, now := busyNow(busyGarbageOf(1 << 30))
	if got := a.percent(1, 16<<20, now); got != 266 {
		t.Errorf("beside 16 MiB there may be %d percent", got)
	}
	if a, now = busyNow(busyGarbageOf(0)); a.percent(1, 16<<20, now) != serverGCPercent {
		t.Error("where nothing is known of the machine, a busy server may have more garbage")
	}
}

func TestEveryCollectionIsNoticed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	collected := collections(ctx)
	for range 3 {
		runtime.GC()
		<-collected
	}
}

// Unauthenticated callers cannot make a server large by keeping it busy.
func TestServerPressedByStrangersStaysSmall(t *testing.T) {
	for _, c := range []struct {
		most    uint64
		pressed bool
		want    int // percent of the 50 MiB of live heap
	}{
		{1 << 30, false, busyGCPercent},
		{1 << 30, true, serverGCPercent},
		{10 << 20, true, serverGCPercent},
	} {
		a, now := busyNow(allowedNow(c.most, func() bool { return c.pressed }))
		if got := a.percent(a.cycles+1, 50<<20, now); got != c.want {
			t.Errorf("of at most %d bytes, pressed %v: %d percent, want %d", c.most, c.pressed, got, c.want)
		}
	}
	if allowedNow(1<<30, nil) != 1<<30 {
		t.Error("without a pressure function the allowance is reduced")
	}
}
