package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/retention"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// dawn is when every world begins.
var dawn = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// World is one cluster and everything that happens to it.
type World struct {
	seed   uint64
	flaw   Flaw
	rng    *rand.Rand
	now    time.Duration
	events queue
	seq    uint64
	atOnce int
	// perMinute counts the entries of the current minute.
	minute    time.Duration
	perMinute int
	trace     trace
	failure   *Failure

	servers   []*server
	log       replicated
	leader    *term
	electing  bool
	isolated  *server // has no majority to talk to
	inherited []*proposal

	machines []*machine
	// orphans are the names of nodes whose machine was wiped, by uid.
	orphans  map[string]string
	receipts time.Duration // how long they are kept
	names    int           // given to workloads so far
	// ambushes are acts that wait for a proposal in flight.
	ambushes []func()
	healed   bool

	// Temporary faults.
	slowUntil, fullUntil time.Duration
	missing              map[string]time.Duration // images that cannot be pulled
	flaky                map[string]time.Duration // workloads whose programs crash
	unwell               map[string]time.Duration // workloads whose programs do not serve
	// loads are what the requests to workloads cost, in CPUs, and busy is when they last cost something, by uid. silent
	// are workloads that nothing is measured of until then.
	loads                     map[string]float64
	busy, silent, silentSince map[string]time.Duration
	// lastTrouble is when something last kept the leader from working.
	lastTrouble time.Duration
	// tidy is whether everything always takes the same time.
	tidy bool

	oracle oracle
	needs  map[string]needs
	writes writes
}

// Result is the result of a story.
type Result struct {
	Seed    uint64
	Hours   float64 // simulated
	Entries uint64  // of the log
	Hash    uint64  // of the whole story
	Acts    int
	Plans   int // that were shown and then applied
	Writes  writes
	Failure *Failure
	// Tail are the last lines of the story.
	Tail string
}

// Story says what a world goes through.
type Story struct {
	Seed uint64
	// Keep says which acts happen; all of them if it is nil.
	Keep func(act int) bool
	// Tell receives every line of the story, if it is not nil.
	Tell func(line string)
	// Flaw is a deliberate mistake, empty for none.
	Flaw Flaw
	// Calm is for how long three servers run with the usual faults instead of rounds, see
	// calm.go; 0 for rounds.
	Calm time.Duration
}

// Run runs a story.
func Run(story Story) Result {
	w := newWorld(story)
	acts := 0
	switch {
	case w.failure != nil:
	case story.Calm > 0:
		acts = w.liveCalmly(story.Calm)
	default:
		acts = w.live(story.Keep)
	}
	return Result{
		Seed: story.Seed, Hours: w.now.Hours(), Entries: w.log.index, Hash: w.trace.hash.Sum64(), Acts: acts,
		Plans: w.oracle.plans, Writes: w.writes, Failure: w.failure, Tail: w.trace.tail(),
	}
}

func newWorld(story Story) *World {
	w := &World{
		seed: story.Seed, flaw: story.Flaw, rng: rand.New(rand.NewPCG(story.Seed, 0x5eed)), trace: newTrace(story.Tell),
		log:     replicated{agreed: state.New().Snapshot()},
		missing: map[string]time.Duration{}, flaky: map[string]time.Duration{}, unwell: map[string]time.Duration{},
		loads: map[string]float64{}, busy: map[string]time.Duration{}, silent: map[string]time.Duration{}, silentSince: map[string]time.Duration{},
		needs: map[string]needs{}, oracle: newOracle(), orphans: map[string]string{},
	}
	w.receipts = w.between(10*time.Minute, 24*time.Hour)
	servers := []int{1, 3, 3, 3, 5}[w.rng.IntN(5)]
	if story.Calm > 0 {
		servers = 3
	}
	for i := range servers {
		s := &server{name: fmt.Sprintf("s%d", i+1)}
		s.uid = w.uuid(w.clock(), &s.lastUID)
		w.servers = append(w.servers, s)
		w.start(s)
	}
	w.found()
	for i := range 3 + w.rng.IntN(8) {
		w.machines = append(w.machines, &machine{
			w: w, hostname: fmt.Sprintf("m%02d", i+1), records: map[string]*record{}, tasks: map[string]*task{},
			labels: map[string]string{"zone": string(rune('a' + i%3)), "disk": []string{"ssd", "hdd"}[w.rng.IntN(2)]},
			cpu:    fmt.Sprint(1 + w.rng.IntN(4)), memory: fmt.Sprintf("%dGi", 1+w.rng.IntN(8)), boot: 1, mute: w.rng.IntN(4) == 0,
		})
	}
	for _, m := range w.machines {
		w.join(m)
	}
	return w
}

// found writes the first entry of the log: the cluster.
func (w *World) found() {
	b := &state.Batch{}
	first := w.servers[0]
	b.Create(&v1.Cluster{
		ApiVersion: spec.APIVersion, Kind: "Cluster", Metadata: &v1.Metadata{Uid: w.uidsOf(first)(), Name: "sim"},
		Spec: &v1.ClusterSpec{Retention: anyRetention(w.rng), Failover: anyFailover(w.seed), Rebalance: anyRebalance(w.seed)}, Status: &v1.ClusterStatus{Epoch: 1},
	})
	w.lead(first)
	w.leader.propose("bootstrap", b, first.store.Snapshot(), func(error) {})
	w.run(w.now + time.Second)
}

// limits are those of the configuration, with few versions of it.
func (w *World) limits(snap *state.Snapshot) retention.Limits {
	limits := retention.LimitsOf(snap.Cluster().GetSpec())
	limits.Receipts, limits.Configurations = w.receipts, 2
	return limits
}

// clock is the true time.
func (w *World) clock() time.Time { return dawn.Add(w.now) }

// between draws a duration.
func (w *World) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)+1))
}

// troubled notes that something keeps the leader from working.
func (w *World) troubled() { w.lastTrouble = max(w.lastTrouble, w.now) }

// uidsOf is a server's source of uids: they are ordered by its clock, and by creation.
func (w *World) uidsOf(s *server) func() string {
	return func() string { return w.uuid(w.wall(s), &s.lastUID) }
}

// uuid is a UUIDv7 with randomness from the seed.
func (w *World) uuid(date time.Time, last *uint64) string {
	stamp := uint64(date.UnixMilli()) << 12
	if stamp <= *last {
		stamp = *last + 1
	}
	*last = stamp
	chance := w.rng.Uint64()
	ms := stamp >> 12
	return fmt.Sprintf("%08x-%04x-7%03x-%04x-%012x", ms>>16, ms&0xffff, stamp&0xfff, 0x8000|chance>>50, chance&0xffffffffffff)
}
