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

// Availability of the control plane is the share of time in which a client's write is
// acknowledged within a second. It is measured over a month in a cluster of three servers,
// in which things break as often as they usually do: rounds of faults would measure
// resilience, and not availability.

const (
	// Month is for how long availability is measured.
	Month = 30 * 24 * time.Hour
	// AvailabilityTarget is the required minimum.
	AvailabilityTarget = 0.999

	// ackWithin is how long a client waits for a write, and writeRetry the pause before a
	// retry.
	ackWithin  = time.Second
	writeRetry = 50 * time.Millisecond
	// A write is sent when something begins that may delay writes, soon after one that has
	// not been acknowledged by then, and now and then otherwise.
	writeSoon = 100 * time.Millisecond
	writeElse = time.Minute
)

// trouble is something that happens on average once in every.
type trouble struct {
	what  string
	every time.Duration
	do    func(w *World, c *rand.Rand)
}

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// ordinary are the usual faults. Each of the three servers loses its power and crashes once
// a month; the rates of machines are for all of them together.
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

// sample is one write of a client. It represents the time until the next one is sent.
type sample struct {
	sent   time.Duration
	inTime bool
}

// writes are those of a client, in the order of sending.
type writes struct {
	samples []*sample
	end     time.Duration
}

// Unavailable is for how long writes were not acknowledged in time.
func (a writes) Unavailable() (lost time.Duration) {
	until := a.end
	for _, s := range slices.Backward(a.samples) {
		if !s.inTime {
			lost += until - s.sent
		}
		until = s.sent
	}
	return lost
}

// Availability is the share of time in which they were.
func (a writes) Availability() float64 {
	if len(a.samples) == 0 {
		return 0
	}
	return 1 - float64(a.Unavailable())/float64(a.end-a.samples[0].sent)
}

// liveCalmly runs a period with the usual faults and returns how many there were.
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
	w.writes.end = begin + length
	w.write()
	w.run(begin + length)
	w.heal()
	w.rest()
	if got := w.writes.Availability(); w.failure == nil && got < AvailabilityTarget {
		w.fail("the control plane is available", "for %s writes were not acknowledged within %s, so that it was available for %.4f %% of %s, and should be for %.1f %%",
			w.writes.Unavailable(), ackWithin, 100*got, length, 100*AvailabilityTarget)
	}
	return troubles
}

// until draws the time until the next event that comes once in every.
func (w *World) until(every time.Duration) time.Duration {
	return time.Duration(w.rng.ExpFloat64() * float64(every))
}

// write sends a write, and plans the next.
func (w *World) write() {
	if w.now >= w.writes.end {
		return
	}
	s := &sample{sent: w.now}
	w.writes.samples = append(w.writes.samples, s)
	w.tryWrite(s)
	next := func() {
		if s == w.writes.samples[len(w.writes.samples)-1] { // and nothing came in between
			w.write()
		}
	}
	w.after(writeSoon, func() {
		if s.inTime {
			w.after(writeElse-writeSoon, next)
		} else {
			next()
		}
	})
}

// disturbed is called when something begins that may delay writes.
func (w *World) disturbed() {
	if len(w.writes.samples) > 0 {
		w.after(0, w.write)
	}
}

// tryWrite is the client: it waits for a leader and retries, as long as it is in time.
func (w *World) tryWrite(s *sample) {
	again := func() { w.after(writeRetry, func() { w.tryWrite(s) }) }
	switch t := w.leader; {
	case w.now > s.sent+ackWithin:
	case t == nil:
		again()
	default:
		var b state.Batch
		b.Put(&v1.Token{
			ApiVersion: spec.APIVersion, Kind: "Token", Metadata: &v1.Metadata{Uid: "00000000-0000-7000-8000-000000000000", Name: "written"},
			Spec: &v1.TokenSpec{Role: "node", ExpireTime: timestamppb.New(dawn.Add(100 * Month)), Uses: 1}, Status: &v1.TokenStatus{},
		})
		t.propose("client", &b, t.server.store.Snapshot(), func(err error) {
			if err != nil {
				again()
				return
			}
			s.inTime = w.now <= s.sent+ackWithin
		})
	}
}
