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
	// serverGCPercent lets a server's garbage grow to twice of what it keeps. It
	// holds the whole state in memory, and every collection walks all of it: half
	// as many are worth the memory. A server without much state is no larger by it.
	serverGCPercent = 200
	// smallGCPercent is the same for a server that keeps less than smallState: its
	// collections cost little, and a small heap leaves fewer holes behind.
	smallGCPercent, smallState = 100, 32 << 20
	// busyGCPercent is the same for a server that makes garbage all the time. One
	// that has little to do should be small instead.
	busyGCPercent = 1600
	// busyGarbage is how much memory that may cost, and busyShare which part of the
	// machine's: with a large state garbage grows to twice of it, however busy the
	// server is.
	busyGarbage, busyShare = 1 << 30, 24
	// pressedGarbage is the same while strangers keep the server busy.
	pressedGarbage = 100 << 20
	// largeGarbage bounds what a server with a large state may have beside it: so
	// much and a quarter of the state.
	largeGarbage = 2 << 30
	// busyLook is how often the collector is looked at. A server that collects
	// nothing in between is not busy, and one that has collected for less than
	// busyAfter is not yet: a burst of work should not leave a large heap behind.
	busyLook, busyAfter = 5 * time.Second, 15 * time.Second
)

// ownGC reports whether nobody else has said how to collect: who sets GOGC knows
// better.
func ownGC() bool { return os.Getenv("GOGC") == "" }

// Allow is for processes with a server in them, before they do anything.
func Allow() {
	if ownGC() {
		debug.SetGCPercent(serverGCPercent)
	}
}

// followAllowance has a busy server collect less often, until ctx ends. How much
// garbage there may be is said anew when a collection has ended and it is known how
// much is kept: said at any other time, it may be less than there is already, and
// everybody who needs memory has to help until that is collected.
func followAllowance(ctx context.Context, pressed func() bool) {
	looks := time.NewTicker(busyLook)
	defer looks.Stop()
	var collected <-chan struct{} // from the first look on: that it starts does not make a server busy
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

// allowedNow is how much of the most garbage a busy server may have at this moment.
func allowedNow(most uint64, pressed func() bool) uint64 {
	if pressed != nil && pressed() {
		return min(most, pressedGarbage)
	}
	return most
}

// collections has a word in it after every collection, until ctx ends: what nobody
// refers to is cleaned up then.
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

// machineMemory is how much memory the machine has, 0 if that is not known.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit)
}

// busyGarbageOf is how much garbage a busy server may have on a machine.
func busyGarbageOf(memory uint64) uint64 { return min(busyGarbage, memory/busyShare) }

// allowance is what was seen of the garbage collector at the last look.
type allowance struct {
	cycles uint64
	// since is when it began to collect at every look.
	since time.Time
	// garbage is what a busy server may have of it.
	garbage uint64
	// told is what the runtime was told.
	told int
}

// tell returns what the runtime is told now. There is never less allowed of a large heap than there is already, which
// would begin a collection that nobody is prepared for.
func (a *allowance) tell(h heap, now time.Time) int {
	next := a.limit(h.cycles, h.kept, now)
	if next < a.told && h.large() && h.size >= h.kept+h.kept/100*uint64(next)/100*share {
		return a.told
	}
	a.told = next
	return next
}

// limit is what the runtime is told. A [Collector] begins with a large heap before that is reached: when there is as
// much as there may be.
func (a *allowance) limit(cycles, live uint64, now time.Time) int {
	percent := a.percent(cycles, live, now)
	if live/100*uint64(100+percent) >= largeHeap {
		percent = percent * 100 / share
	}
	return percent
}

// busy reports whether it has collected at every look for a while.
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

// percent says how much garbage there may be beside so many bytes that are kept.
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
