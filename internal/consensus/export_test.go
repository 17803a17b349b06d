package consensus

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
	wal "github.com/hashicorp/raft-wal"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Store returns the store that was given.
func (c *Consensus) Store() *state.Store { return c.store }

// Raft returns the underlying raft.
func (c *Consensus) Raft() *raft.Raft { return c.raft }

// RaftConfig is raft's configuration for the options.
func RaftConfig(o Options) (*raft.Config, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	return configOf(o, nil, nil), nil
}

// LeadAgain makes this server begin to lead as if raft had just elected it, and returns when it has or cannot.
func (c *Consensus) LeadAgain() {
	c.leadership.end(ErrNotLeader)
	c.take(true)
}

// FirstLogIndex returns the index of the oldest entry of the log.
func (c *Consensus) FirstLogIndex(t testing.TB) uint64 {
	first, err := c.disk.log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	return first
}

// ApplyRaw puts a transaction into the log without validating it, as if another server had.
func (c *Consensus) ApplyRaw(tx *statev1.Transaction) error {
	data, err := proto.Marshal(tx)
	if err != nil {
		return err
	}
	p := waiting{Proposal: Proposal{Data: data, Value: tx}, outcome: make(chan Outcome, 1)}
	answerAll(c.answers(entry{callers: []waiting{p}, proposals: []Proposal{p.Proposal}, data: data}, c.raft.Apply(data, 0)))
	return (<-p.outcome).Err
}

// AnswerOrder returns the order in which proposals of these sizes are answered.
func AnswerOrder(sizes ...int) (order []int) {
	outcome := make(chan Outcome, len(sizes))
	answers := make([]answer, len(sizes))
	for i, size := range sizes {
		answers[i] = answer{to: waiting{Proposal: Proposal{Data: make([]byte, size)}, outcome: outcome}, is: Outcome{Response: size}}
	}
	answerAll(answers)
	for range sizes {
		order = append(order, (<-outcome).Response.(int))
	}
	return order
}

// CheckSegment checks the bytes of one segment of the log.
func CheckSegment(data []byte, newest bool) string { return checkSegment(data, newest) }

// NewTransport is raft's transport over a network.
func NewTransport(network Network) interface {
	raft.Transport
	raft.WithClose
} {
	o := Options{Network: network, Address: "here", Addresses: func(string) string { return "there" }}
	return newTransport(o, &directory{}, newHCLogger(slog.New(slog.DiscardHandler)))
}

// Silent is a logger for parts of raft that tests make.
func Silent() hclog.Logger { return newHCLogger(slog.New(slog.DiscardHandler)) }

// OnTheirWay returns how many transactions of this server are remembered in order not to decode them.
func (c *Consensus) OnTheirWay() int {
	c.transactions.proposed.mu.Lock()
	defer c.transactions.proposed.mu.Unlock()
	return len(c.transactions.proposed.byStart)
}

// MissTerm makes this server forget that raft has elected it the last time, and returns a function that tells it.
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

// Look returns the verdicts of a new leader's pilot about another server, look by look.
func Look(c *Consensus, firstLook time.Duration) func(id string, healthy bool) Health {
	p := newPilot(c.Group, PilotOptions{FirstLook: firstLook})
	return func(id string, healthy bool) Health {
		status := autopilot.NodeFailed
		if healthy {
			status = autopilot.NodeAlive
		}
		p.NotifyState(&autopilot.State{Servers: map[raft.ServerID]*autopilot.ServerState{raft.ServerID(id): {
			Server: autopilot.Server{NodeStatus: status}, Health: autopilot.ServerHealth{Healthy: healthy},
			Stats: autopilot.ServerStats{LastIndex: c.raft.LastIndex()},
		}}})
		return c.Health()[0]
	}
}

// LagOfLeader is by how much a leader seems to be behind itself if something happens between its questions and its
// conclusion.
func LagOfLeader(t *testing.T, c *Consensus, between func()) uint64 {
	p := newPilot(c.Group, PilotOptions{})
	id := raft.ServerID(c.id)
	stats := p.FetchServerStats(t.Context(), map[raft.ServerID]*autopilot.Server{id: {ID: id}})
	between()
	p.NotifyState(&autopilot.State{Servers: map[raft.ServerID]*autopilot.ServerState{id: {Stats: *stats[id]}}})
	return c.Health()[0].Lag
}

// Batches counts proposals that wait for each other.
type Batches struct{ batches batches }

// Come adds proposals.
func (b *Batches) Come(n int) {
	for range n {
		b.batches.add(waiting{})
	}
}

// Take returns the size of a batch of all waiting proposals, and gathers the next one.
func (b *Batches) Take() int {
	batch := b.batches.take()
	b.batches.gather()
	return len(batch)
}

// Save writes so many bytes to a snapshot, and returns whether its file was found and how many are not synced yet.
func Save(t *testing.T, bytes int) (found bool, fresh int) {
	dir := t.TempDir()
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, 1, Silent())
	if err != nil {
		t.Fatal(err)
	}
	sink, err := store.Create(raft.SnapshotVersionMax, 1, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSnapshotWriter(sink, filepath.Join(dir, "snapshots"), nil)
	for range bytes >> 16 {
		if _, err := s.Write(make([]byte, 1<<16)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Close(), sink.Cancel()); err != nil {
		t.Error(err)
	}
	return s.file != nil, s.fresh
}

// DeleteRange deletes entries from a log, and returns the first and last one left.
func DeleteRange(t *testing.T, oldest, newest, first, last uint64) (uint64, uint64) {
	dir := t.TempDir()
	log, err := wal.Open(dir, wal.WithLogger(Silent()), wal.WithSegmentSize(4<<10)) // about thirty entries
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for index := oldest; index <= newest; index++ {
		if err := log.StoreLog(&raft.Log{Index: index, Term: 1, Data: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	if segments, err := segmentsOf(dir); err != nil || len(segments) < 3 {
		t.Fatalf("the log has %d files: %v", len(segments), err)
	}
	if err := (steppedLog{log, dir}).DeleteRange(first, last); err != nil {
		t.Fatal(err)
	}
	oldestLeft, err := log.FirstIndex()
	newestLeft, err2 := log.LastIndex()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return oldestLeft, newestLeft
}
