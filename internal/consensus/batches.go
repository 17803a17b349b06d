package consensus

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// maxBatches is how many batches of proposals are in flight at once. With one, waiting proposals make for a larger next
// batch; measured, that is worth more on a lone server than writing one batch while another is applied.
const maxBatches = 1

// If many propose at once, the next batch waits a moment to gather: clients that were just answered are about to
// propose again, and a batch costs every server as much as a dozen proposals. A few proposals do not wait for each
// other.
const (
	manyTogether = 4
	gatherTime   = time.Millisecond
	// lately is how many recent batches count when estimating how many propose at once.
	lately = 4
)

// waiting is a proposal that waits for its outcome.
type waiting struct {
	Proposal
	outcome chan Outcome // buffered
}

// entry is what is written to the log together.
type entry struct {
	callers   []waiting
	proposals []Proposal
	data      []byte
}

// batches collects proposals that come while others are in flight. A lone proposal goes to raft at once; many that come
// together share one disk write, one change of the tables and one notification of followers, each of which costs more
// than a proposal itself.
type batches struct {
	mu      sync.Mutex
	waiting []waiting
	running int
	sizes   [lately]int // of the newest batches
	taken   int         // batches so far

	// gathered is closed when as many wait as are expected. It is nil while no batch gathers.
	gathered chan struct{}
	expected int
}

// add queues a proposal and reports whether the caller has to start taking batches.
func (b *batches) add(p waiting) (begin bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, p)
	if b.gathered != nil && len(b.waiting) >= b.expected {
		close(b.gathered)
		b.gathered = nil
	}
	if b.running == maxBatches {
		return false
	}
	b.running++
	return true
}

// take returns everything that waits. If that is nothing, the taker is done.
func (b *batches) take() []waiting {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.waiting
	b.waiting, b.gathered = nil, nil
	if len(batch) == 0 {
		b.running--
		return nil
	}
	b.sizes[b.taken%lately] = len(batch)
	b.taken++
	return batch
}

// gather waits until as many have come as were recently in one batch, or for a moment at most.
func (b *batches) gather() {
	gathered := b.expect()
	if gathered == nil {
		return
	}
	select {
	case <-gathered:
	case <-time.After(gatherTime):
	}
}

// expect returns nil if there is nothing to wait for.
func (b *batches) expect() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = slices.Max(b.sizes[:])
	if b.expected < manyTogether || len(b.waiting) >= b.expected {
		return nil
	}
	b.gathered = make(chan struct{})
	return b.gathered
}

// submit queues a proposal unless this server is stopping.
func (g *Group) submit(p waiting) bool {
	g.gate.RLock()
	defer g.gate.RUnlock()
	if g.closed {
		return false
	}
	if g.batches.add(p) {
		g.proposals.Go(g.applyBatches)
	}
	return true
}

func (g *Group) applyBatches() {
	for batch := g.batches.take(); len(batch) > 0; batch = g.batches.take() {
		g.applyBatch(batch)
		g.batches.gather()
	}
}

// applyBatch waits for the outcomes of a batch, however long they take.
func (g *Group) applyBatch(batch []waiting) {
	entries := g.entriesOf(batch)
	defer g.forget(entries)
	futures := make([]raft.ApplyFuture, len(entries))
	for i, e := range entries {
		futures[i] = g.raft.Apply(e.data, 0)
	}
	answers := make([]answer, 0, len(batch))
	for i, e := range entries {
		answers = append(answers, g.answers(e, futures[i])...)
	}
	answerAll(answers)
}

// entriesOf divides a batch into entries, in its order.
func (g *Group) entriesOf(batch []waiting) []entry {
	proposals := make([]Proposal, len(batch))
	for i, p := range batch {
		proposals[i] = p.Proposal
	}
	entries := make([]entry, 0, len(batch)/maxShared+1)
	for len(batch) > 0 {
		data, n := g.machine.Join(proposals)
		entries = append(entries, entry{callers: batch[:n], proposals: proposals[:n], data: data})
		batch, proposals = batch[n:], proposals[n:]
	}
	return entries
}

// forget tells the machine that entries were answered, applied or not.
func (g *Group) forget(entries []entry) {
	if m, ok := g.machine.(remembering); ok {
		for _, e := range entries {
			m.forget(e.data)
		}
	}
}

// answer is the outcome of a proposal.
type answer struct {
	to waiting
	is Outcome
}

// answerAll answers all of a batch, which is applied at once, the largest proposals first. The goroutine that is woken last
// runs next, and all others wait behind it, which on a busy server takes tens of milliseconds: so small proposals, for
// which users wait, come last.
func answerAll(answers []answer) {
	slices.SortStableFunc(answers, func(a, b answer) int { return cmp.Compare(len(b.to.Data), len(a.to.Data)) })
	for _, a := range answers {
		a.to.outcome <- a.is
	}
}

// answers waits for those of an entry, one for each of its proposals.
func (g *Group) answers(e entry, future raft.ApplyFuture) []answer {
	all := make([]answer, len(e.callers))
	outcomes, err := g.outcomes(e, future)
	for i, p := range e.callers {
		if all[i] = (answer{to: p, is: Outcome{Err: err}}); err == nil {
			all[i].is = outcomes[i]
		}
	}
	return all
}

// outcomes waits for those of an entry, one for each of its proposals. It does not read raft's response of a failed
// entry: when raft stops, it may still be writing there.
func (g *Group) outcomes(e entry, future raft.ApplyFuture) ([]Outcome, error) {
	switch err := future.Error(); {
	case errors.Is(err, raft.ErrRaftShutdown): // raft had it, and does not say whether the others have
		return nil, fmt.Errorf("the server that was asked stops: %w", ErrUncertain)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress): // raft has not accepted it
		return nil, g.translate(err)
	case err != nil: // what could not be written may still be on disk, and be found at the next start
		return nil, fmt.Errorf("%w: %w", err, ErrUncertain)
	}
	outcomes := g.machine.Split(e.proposals, future.Response())
	if len(outcomes) != len(e.proposals) { // this server could not understand it
		return nil, ErrUncertain
	}
	return outcomes, nil
}
