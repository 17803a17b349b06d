package consensus

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// maxGroups is how many groups of proposals are in flight at once. With one, waiting proposals make for a larger next
// group; measured, that is worth more on a lone server than writing one group while another is applied.
const maxGroups = 1

// If many propose at once, the next group waits a moment to gather: clients that were just answered are about to
// propose again, and a group costs every server as much as a dozen proposals. A few proposals do not wait for each
// other.
const (
	manyTogether = 4
	gatherTime   = time.Millisecond
	// lately is how many recent groups count when estimating how many propose at once.
	lately = 4
)

// proposal is a transaction that waits for its outcome, together with its encoded form.
type proposal struct {
	tx      *statev1.Transaction
	data    []byte
	outcome chan state.Outcome // buffered
}

// groups batches proposals that come while others are in flight. A lone proposal goes to raft at once; many that come
// together share one disk write, one change of the tables and one notification of followers, each of which costs more
// than a proposal itself.
type groups struct {
	mu      sync.Mutex
	waiting []proposal
	running int
	sizes   [lately]int // of the newest groups
	taken   int         // groups so far

	// gathered is closed when as many wait as are expected. It is nil while no group gathers.
	gathered chan struct{}
	expected int
}

// add queues a proposal and reports whether the caller has to start taking groups.
func (g *groups) add(p proposal) (begin bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, p)
	if g.gathered != nil && len(g.waiting) >= g.expected {
		close(g.gathered)
		g.gathered = nil
	}
	if g.running == maxGroups {
		return false
	}
	g.running++
	return true
}

// take returns everything that waits. If that is nothing, the taker is done.
func (g *groups) take() []proposal {
	g.mu.Lock()
	defer g.mu.Unlock()
	group := g.waiting
	g.waiting, g.gathered = nil, nil
	if len(group) == 0 {
		g.running--
		return nil
	}
	g.sizes[g.taken%lately] = len(group)
	g.taken++
	return group
}

// gather waits until as many have come as were recently in one group, or for a moment at most.
func (g *groups) gather() {
	gathered := g.expect()
	if gathered == nil {
		return
	}
	select {
	case <-gathered:
	case <-time.After(gatherTime):
	}
}

// expect returns nil if there is nothing to wait for.
func (g *groups) expect() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expected = slices.Max(g.sizes[:])
	if g.expected < manyTogether || len(g.waiting) >= g.expected {
		return nil
	}
	g.gathered = make(chan struct{})
	return g.gathered
}

// submit queues a proposal unless this server is stopping.
func (c *Consensus) submit(p proposal) bool {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.closed {
		return false
	}
	if c.groups.add(p) {
		c.proposals.Go(c.applyGroups)
	}
	return true
}

func (c *Consensus) applyGroups() {
	for group := c.groups.take(); len(group) > 0; group = c.groups.take() {
		c.applyGroup(group)
		c.groups.gather()
	}
}

// applyGroup waits for the outcomes of a group, however long they take.
func (c *Consensus) applyGroup(group []proposal) {
	entries := entriesOf(group)
	c.fsm.proposed.add(entries)
	defer c.fsm.proposed.remove(entries) // those that were not applied
	futures := make([]raft.ApplyFuture, len(entries))
	for i, e := range entries {
		futures[i] = c.raft.Apply(e.data, 0)
	}
	answers := make([]answer, 0, len(group))
	for i, e := range entries {
		answers = append(answers, c.answers(e, futures[i])...)
	}
	answerAll(answers)
}

// answer is the outcome of a proposal.
type answer struct {
	to proposal
	is state.Outcome
}

// answerAll answers all of a group, which is applied at once, the largest proposals first. The goroutine that is woken last
// runs next, and all others wait behind it, which on a busy server takes tens of milliseconds: so small proposals, for
// which users wait, come last.
func answerAll(answers []answer) {
	slices.SortStableFunc(answers, func(a, b answer) int { return cmp.Compare(len(b.to.data), len(a.to.data)) })
	for _, a := range answers {
		a.to.outcome <- a.is
	}
}

// answers waits for those of an entry, one for each of its proposals.
func (c *Consensus) answers(e entry, future raft.ApplyFuture) []answer {
	all := make([]answer, len(e.proposals))
	outcomes, err := c.outcomes(e, future)
	for i, p := range e.proposals {
		if all[i] = (answer{to: p, is: state.Outcome{Err: err}}); err == nil {
			all[i].is = outcomes[i]
		}
	}
	return all
}

// outcomes waits for those of an entry, one for each of its proposals. It does not read raft's response of a failed
// entry: when raft stops, it may still be writing there.
func (c *Consensus) outcomes(e entry, future raft.ApplyFuture) ([]state.Outcome, error) {
	switch err := future.Error(); {
	case errors.Is(err, raft.ErrRaftShutdown): // raft had it, and does not say whether the others have
		return nil, fmt.Errorf("the server that was asked stops: %w", ErrUncertain)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress): // raft has not accepted it
		return nil, c.translate(err)
	case err != nil: // what could not be written may still be on disk, and be found at the next start
		return nil, fmt.Errorf("%w: %w", err, ErrUncertain)
	}
	outcomes, _ := future.Response().([]state.Outcome)
	if len(outcomes) != len(e.proposals) { // this server could not understand it
		return nil, ErrUncertain
	}
	return outcomes, nil
}
