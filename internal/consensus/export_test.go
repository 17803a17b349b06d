package consensus

import (
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Store returns the store that was given.
func (c *Consensus) Store() *state.Store { return c.store }

// Raft returns what is beneath.
func (c *Consensus) Raft() *raft.Raft { return c.raft }

// FirstLogIndex returns the index of the oldest entry of the log.
func (c *Consensus) FirstLogIndex(t testing.TB) uint64 {
	first, err := c.disk.log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	return first
}

// ApplyRaw brings a transaction into the log without asking whether it is understood.
func (c *Consensus) ApplyRaw(tx *statev1.Transaction) error {
	data, err := proto.Marshal(tx)
	if err != nil {
		return err
	}
	p := proposal{tx: tx, data: data, outcome: make(chan state.Outcome, 1)}
	c.applyGroup([]proposal{p})
	return (<-p.outcome).Err
}

// CheckSegment checks the bytes of one segment of the log.
func CheckSegment(data []byte, newest bool) string { return checkSegment(data, newest) }

// Silent is a logger for parts of raft that tests make.
func Silent() hclog.Logger { return newHCLogger(slog.New(slog.DiscardHandler)) }

// OnTheirWay returns how many transactions of this server are remembered in order not to decode them.
func (c *Consensus) OnTheirWay() int {
	c.fsm.proposed.mu.Lock()
	defer c.fsm.proposed.mu.Unlock()
	return len(c.fsm.proposed.byStart)
}

// MissTerm makes this server believe what it knew before raft elected it the last time, and returns what it learns
// when it takes note of that.
func (c *Consensus) MissTerm() (learn func()) {
	c.leadership.mu.Lock()
	defer c.leadership.mu.Unlock()
	number := c.leadership.term.number
	c.leadership.term.number--
	return func() {
		c.leadership.end(ErrNotLeader)
		c.leadership.begin(number)
	}
}
