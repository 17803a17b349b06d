package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Availability of the control plane is the share of time in which a write that a client
// sends is acknowledged within a second. It is measured over a month in the life of a
// cluster of three servers, in which things break as often as they do in ordinary life:
// rounds of faults would say how it bears them, and not how available it is.

const (
	// Month is for how long availability is measured.
	Month = 30 * 24 * time.Hour
	// AvailabilityTarget is what it must be at least.
	AvailabilityTarget = 0.999

	// ackWithin is how long a client waits for a write, and writeEvery how often one is
	// sent, each at a random moment of its interval.
	ackWithin  = time.Second
	writeEvery = 20 * time.Second
	writeRetry = 50 * time.Millisecond
)

// trouble is something that happens now and then, on average once in every.
type trouble struct {
	what  string
	every time.Duration
	do    func(w *World, c *rand.Rand)
}

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// ordinary is the trouble of ordinary life. Each of the three servers loses its power
// and crashes once a month; the rates of machines are for all of them together.
var ordinary = []trouble{
	{"a server loses power", Month / 3, func(w *World, c *rand.Rand) { w.stop(w.anyServer(c), draw(c, time.Minute, 15*time.Minute), losesPower) }},
	{"a server crashes", Month / 3, func(w *World, c *rand.Rand) { w.stop(w.anyServer(c), draw(c, time.Second, 10*time.Second), isKilled) }},
	{"the servers are upgraded", week, (*World).upgrade},
	{"the leader is isolated", 2 * week, (*World).actIsolateLeader},
	{"the disk is slow", week, (*World).actSlowDisk},
	{"the disk is full", Month, (*World).actFullDisk},
	{"a clock is wrong", Month, (*World).actClock},
	{"a machine loses power", 2 * day, (*World).actLoseMachine},
	{"a machine reboots", 2 * day, (*World).actReboot},
	{"a machine is cut off", 2 * day, (*World).actCut},
	{"an agent is killed", 2 * day, (*World).actKillAgent},
	{"a machine hangs", 4 * day, (*World).actHang},
	{"a node is removed", week, (*World).actRemoveNode},
	{"a node is cordoned", 2 * day, (*World).actCordon},
	{"a program crashes", day / 4, (*World).actCrash},
	{"an image is missing", 2 * day, (*World).actMissingImage},
	{"a workload is created", day / 2, (*World).actCreate},
	{"a workload is updated", day / 4, (*World).actUpdate},
	{"a workload is scaled", day / 2, (*World).actScale},
	{"a workload is deleted", day, (*World).actDelete},
}

func (w *World) anyServer(c *rand.Rand) *server { return w.servers[c.IntN(len(w.servers))] }

// upgrade restarts one server after the other, each when the one before is back.
func (w *World) upgrade(c *rand.Rand) {
	at := time.Duration(0)
	for _, s := range slices.Clone(w.servers) {
		away := draw(c, 5*time.Second, 30*time.Second)
		w.after(at, func() { w.stop(s, away, handsOver) })
		at += away + time.Minute
	}
}

// writes are those of clients, and how many of them were acknowledged in time.
type writes struct{ Sent, InTime int }

// Availability is the share that was acknowledged in time.
func (a writes) Availability() float64 { return float64(a.InTime) / float64(max(1, a.Sent)) }

// liveCalmly lets ordinary life happen and returns how much trouble there was.
func (w *World) liveCalmly(length time.Duration) (troubles int) {
	begin := w.now
	for range 10 {
		w.actCreate(w.rng)
	}
	for _, t := range ordinary {
		for at := w.until(t.every); at < length; at += w.until(t.every) {
			c := rand.New(rand.NewPCG(w.rng.Uint64(), w.seed))
			troubles++
			w.after(at, func() {
				w.note("%s", t.what)
				t.do(w, c)
			})
		}
	}
	w.after(0, func() { w.sendWrites(begin + length) })
	w.run(begin + length)
	w.heal()
	w.rest()
	if got := w.writes.Availability(); w.failure == nil && got < AvailabilityTarget {
		w.fail("the control plane is available", "%d of %d writes were acknowledged within %s, which is %.4f %%, and %.1f %% should be",
			w.writes.InTime, w.writes.Sent, ackWithin, 100*got, 100*AvailabilityTarget)
	}
	return troubles
}

// until is how long it takes until something happens that comes once in a while.
func (w *World) until(every time.Duration) time.Duration {
	return time.Duration(w.rng.ExpFloat64() * float64(every))
}

// sendWrites has a client write something now and then until a moment.
func (w *World) sendWrites(end time.Duration) {
	if w.now >= end {
		return
	}
	w.after(w.between(0, writeEvery-time.Millisecond), func() {
		w.writes.Sent++
		w.tryWrite(w.now + ackWithin)
	})
	w.after(writeEvery, func() { w.sendWrites(end) })
}

// tryWrite is the client: it waits for a leader and tries again, as long as it is in time.
func (w *World) tryWrite(limit time.Duration) {
	again := func() { w.after(writeRetry, func() { w.tryWrite(limit) }) }
	switch t := w.leader; {
	case w.now > limit:
	case t == nil:
		again()
	default:
		var b state.Batch
		b.Put(&v1.Token{
			ApiVersion: spec.APIVersion, Kind: "Token", Metadata: &v1.Metadata{Uid: "00000000-0000-7000-8000-000000000000", Name: "written"},
			Spec: &v1.TokenSpec{Role: "node", ExpireTime: timestamppb.New(dawn.Add(100 * Month)), Uses: 1}, Status: &v1.TokenStatus{},
		})
		t.propose("client", &b, t.server.store.Snapshot(), func(err error) {
			switch {
			case err != nil:
				again()
			case w.now <= limit:
				w.writes.InTime++
			}
		})
	}
}
