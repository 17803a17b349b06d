package gcpacer

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// serverGCPercent lets a server's garbage grow to twice its live heap. A server holds the whole state in memory,
	// and every collection scans all of it: halving the number of collections is worth the memory. A server with little
	// state does not grow by it.
	serverGCPercent = 200
	// smallGCPercent is the same for a server with less live heap than smallState: its collections are cheap, and a
	// small heap has less fragmentation.
	smallGCPercent, smallState = 100, 32 << 20
	// busyGCPercent is the same for a server that produces garbage all the time. An idle server should stay small
	// instead.
	busyGCPercent = 1600
	// busyGarbage is how much memory that may cost, and busyShare which share of the machine's memory. With a large
	// state, garbage grows to twice the live heap, however busy the server is.
	busyGarbage, busyShare = 1 << 30, 24
	// pressedGarbage is the same while unauthenticated callers keep the server busy.
	pressedGarbage = 100 << 20
	// largeGarbage limits the garbage of a server with a large state to this and a quarter of the state.
	largeGarbage = 2 << 30
	// busyLook is how often the collector is checked. A server without a collection in between is not busy, and one
	// that has collected for less than busyAfter is not busy yet: a burst of work should not leave a large heap behind.
	busyLook, busyAfter = 5 * time.Second, 15 * time.Second
)

// ownGC reports whether the user leaves the pace to us: a user who sets GOGC knows better.
func ownGC() bool { return os.Getenv("GOGC") == "" }

// Allow must be called first in processes with a server.
func Allow() {
	if ownGC() {
		debug.SetGCPercent(serverGCPercent)
	}
}

// followAllowance makes a busy server collect less often, until ctx ends. It sets the limit for garbage when a
// collection has ended and the live heap is known. At any other time the limit could be below the present heap, and
// every goroutine that allocates would have to assist until that is collected.
func followAllowance(ctx context.Context, pressed func() bool) {
	looks := time.NewTicker(busyLook)
	defer looks.Stop()
	var collected <-chan struct{} // set after the first check: starting does not make a server busy
	most := busyGarbageOf(machineMemory())
	a := allowance{told: serverGCPercent}
	for {
		select {
		case <-ctx.Done():
			debug.SetGCPercent(serverGCPercent)
			return
		case <-collected:
			looks.Reset(busyLook)
		case <-looks.C:
			if collected == nil {
				collected = collections(ctx)
			}
		}
		a.garbage = allowedNow(most, pressed)
		if before := a.told; a.tell(readHeap(), time.Now()) != before {
			debug.SetGCPercent(a.told)
		}
	}
}

// allowedNow is how much garbage a busy server may have now.
func allowedNow(most uint64, pressed func() bool) uint64 {
	if pressed != nil && pressed() {
		return min(most, pressedGarbage)
	}
	return most
}

// collections receives a value after every collection, until ctx ends: the runtime then cleans up an object that is
// unreachable.
func collections(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{}, 1)
	var follow func(struct{})
	follow = func(struct{}) {
		if ctx.Err() != nil {
			return
		}
		select {
		case ended <- struct{}{}:
		default:
		}
		runtime.AddCleanup(new([16]byte), follow, struct{}{})
	}
	follow(struct{}{})
	return ended
}

// machineMemory returns the memory of the machine; 0 if it is unknown.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit)
}

// busyGarbageOf returns how much garbage a busy server may have on a machine.
func busyGarbageOf(memory uint64) uint64 { return min(busyGarbage, memory/busyShare) }

// allowance is what the last check of the garbage collector has found.
type allowance struct {
	cycles uint64
	// since is when it began to collect between all checks.
	since time.Time
	// garbage is how much a busy server may have.
	garbage uint64
	// told is the setting of the runtime.
	told int
}

// tell returns the new setting of the runtime. For a large heap it never allows less than there is already, because
// that would start a collection at once, before bulk work has paused.
func (a *allowance) tell(h heap, now time.Time) int {
	next := a.limit(h.cycles, h.kept, now)
	if next < a.told && h.large() && h.size >= h.kept+h.kept/100*uint64(next)/100*share {
		return a.told
	}
	a.told = next
	return next
}

// limit returns the setting of the runtime. A [Collector] starts the collection of a large heap before the limit is
// reached.
func (a *allowance) limit(cycles, live uint64, now time.Time) int {
	percent := a.percent(cycles, live, now)
	if live/100*uint64(100+percent) >= largeHeap {
		percent = percent * 100 / share
	}
	return percent
}

// busy reports whether it has collected between all checks for a while.
func (a *allowance) busy(cycles uint64, now time.Time) bool {
	collected := cycles > a.cycles
	a.cycles = cycles
	if !collected {
		a.since = time.Time{}
		return false
	}
	if a.since.IsZero() {
		a.since = now
	}
	return now.Sub(a.since) >= busyAfter
}

// percent returns how much garbage is allowed beside so many live bytes.
func (a *allowance) percent(cycles, live uint64, now time.Time) int {
	busy := a.busy(cycles, now)
	if live == 0 {
		return serverGCPercent
	}
	most := min(largeGarbage*100/live+25, serverGCPercent)
	switch {
	case !busy && live < smallState:
		return smallGCPercent
	case !busy:
		return int(most)
	}
	return int(min(max(a.garbage*100/live, most), busyGCPercent))
}
