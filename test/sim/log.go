package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/control/lease"
	"github.com/cloudless/cloudless/internal/retentionclock"
	"github.com/cloudless/cloudless/internal/state"
)

// server is one of those that keep the log. Its store is that of the product.
type server struct {
	uid, name string
	address   string
	up        bool
	// dark is set while its machine is without power: there is no notification that it is
	// gone.
	dark  bool
	store *state.Store
	// applied is the position in the log that the store has reached.
	applied int
	// saved is the newest snapshot on its disk, with its position and index.
	saved   []byte
	savedAt int
	// skew is by how much its clock is wrong.
	skew    time.Duration
	watch   *watch
	leases  *lease.Table
	lastUID uint64
	// clock is retention's clock, begun its uptime 0.
	clock *retentionclock.Clock
	begun time.Duration
}

// entry is one committed transaction, and its outcome on the first server that applied it:
// it must be the same on all.
type entry struct {
	index   uint64
	data    []byte
	outcome string
}

// replicated is the log that the servers agree on.
type replicated struct {
	entries []entry
	// first is the position of entries[0]; earlier ones are only in snapshots.
	first int
	index uint64
	// agreed is the state after the last entry. Sometimes no server has it: followers lag,
	// and a restarted leader begins with the snapshot on its disk.
	agreed *state.Snapshot
}

func (l *replicated) end() int { return l.first + len(l.entries) }

// wall is the wall time on a server.
func (w *World) wall(s *server) time.Time { return w.clock().Add(s.skew) }

// start starts a server's process: it has what is on its disk.
func (w *World) start(s *server) {
	s.up, s.dark = true, false
	if s.address == "" || w.rng.IntN(4) == 0 { // it may have moved
		s.address = fmt.Sprintf("192.0.2.%d:7700", 1+w.rng.IntN(254))
	}
	s.store = state.New()
	s.applied = 0
	s.watch, s.leases = newWatch(), &lease.Table{}
	s.clock, s.begun = retentionclock.At(w.wall(s)), w.now
	if s.saved != nil {
		if err := s.store.Restore(bytes.NewReader(s.saved)); err != nil {
			w.fail("a snapshot can be restored", "server %s: %v", s.name, err)
			return
		}
		s.applied = s.savedAt
	}
}

// follow applies what a server has not applied yet.
func (w *World) follow(s *server) {
	if s.applied < w.log.first {
		w.install(s)
	}
	behind := w.log.entries[s.applied-w.log.first:]
	batch := make([]state.Entry, len(behind))
	for i, e := range behind {
		tx := &statev1.Transaction{}
		if err := proto.Unmarshal(e.data, tx); err != nil {
			w.fail("the log can be read", "entry %d: %v", e.index, err)
			return
		}
		if w.flaw == Wilful {
			tx.Time = timestamppb.New(w.wall(s))
		}
		batch[i] = state.Entry{Index: e.index, Transaction: tx}
	}
	if len(batch) == 0 {
		return
	}
	for i, outcome := range s.store.ApplyAll(batch) {
		if got := outcomeOf(outcome.Result, outcome.Err); got != behind[i].outcome {
			w.fail("an entry has the same outcome everywhere", "entry %d on server %s: %q, before: %q", behind[i].index, s.name, got, behind[i].outcome)
			return
		}
	}
	s.applied = w.log.end()
}

// install gives a server that is too far behind a snapshot of another one.
func (w *World) install(s *server) {
	for _, other := range w.servers {
		if other != s && other.up && other.applied >= w.log.first {
			s.saved, s.savedAt = w.save(other), other.applied
			if err := s.store.Restore(bytes.NewReader(s.saved)); err != nil {
				w.fail("a snapshot can be restored", "server %s: %v", s.name, err)
			}
			s.applied = s.savedAt
			w.note("server %s is installed from a snapshot of %s", s.name, other.name)
			return
		}
	}
	w.fail("simulation", "no server has what is before position %d of the log", w.log.first)
}

func (w *World) save(s *server) []byte {
	var b bytes.Buffer
	if err := s.store.Snapshot().Save(&b); err != nil {
		w.fail("a snapshot can be saved", "server %s: %v", s.name, err)
	}
	return b.Bytes()
}

// How long the log may become, and what is kept of it then.
const (
	maxLog  = 600
	keepLog = 100
)

// compact saves the state of every server when the log is long, and drops its beginning.
func (w *World) compact() {
	if len(w.log.entries) < maxLog {
		return
	}
	for _, s := range w.servers {
		if s.up && s.applied >= w.log.first {
			w.follow(s)
			s.saved, s.savedAt = w.save(s), s.applied
		}
	}
	drop := len(w.log.entries) - keepLog
	w.log.entries = append([]entry(nil), w.log.entries[drop:]...)
	w.log.first += drop
}

// sameEverywhere compares the states of all servers that are up, to the byte.
func (w *World) sameEverywhere() {
	var first []byte
	var name string
	for _, s := range w.servers {
		if !s.up {
			continue
		}
		w.follow(s)
		saved := w.save(s)
		if first == nil {
			first, name = saved, s.name
			again := state.New()
			if err := again.Restore(bytes.NewReader(saved)); err != nil {
				w.fail("a snapshot can be restored", "server %s: %v", s.name, err)
				return
			}
			var b bytes.Buffer
			if err := again.Snapshot().Save(&b); err != nil || !bytes.Equal(b.Bytes(), saved) {
				w.fail("a restored snapshot is the same to the byte", "server %s (%v)", s.name, err)
			}
			continue
		}
		// An index without a transaction does not matter.
		if !bytes.Equal(saved, first) {
			w.fail("the same log gives the same state to the byte", "servers %s and %s differ at position %d", name, s.name, s.applied)
		}
	}
}

func outcomeOf(result state.Result, err error) string {
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, part := range slices.Sorted(maps.Keys(result.LeftOut)) {
		text += fmt.Sprintf("without part %d: %v; ", part, result.LeftOut[part])
	}
	return text
}

// The errors of proposals that were not committed.
var (
	errNoRoom    = errors.New("the disk is full")
	errUncertain = errors.New("leadership was lost: the change may have been made or not")
)

// proposal is a transaction in flight.
type proposal struct {
	who  string
	tx   *statev1.Transaction
	data []byte
	// base is the state that it was made from.
	base *state.Snapshot
	done func(error)
	// result is its outcome.
	result state.Result
}

// made are the changes that were not left out.
func (p *proposal) made() []*statev1.Change {
	return slices.DeleteFunc(slices.Clone(p.tx.GetChanges()), func(c *statev1.Change) bool { return p.result.LeftOut[c.GetPart()] != nil })
}

// propose asks the servers to agree. done is called once, unless the term ends and the
// caller is gone.
func (t *term) propose(who string, b *state.Batch, base *state.Snapshot, done func(error)) *proposal {
	w := t.w
	tx := b.Transaction(w.wall(t.server))
	if err := state.Validate(tx); err != nil {
		w.fail("proposals are valid", "%s: %v", who, err)
		return nil
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(tx)
	if err != nil {
		w.fail("proposals are valid", "%s: %v", who, err)
		return nil
	}
	p := &proposal{who: who, tx: tx, data: data, base: base, done: done}
	t.flight = append(t.flight, p)
	if t.frozen {
		return p // it waits for a majority that is not there
	}
	at := max(w.now+w.commitTime(), t.lastCommit)
	t.lastCommit = at
	if len(w.ambushes) > 0 && who != "ambush" {
		spring := w.ambushes[0]
		w.ambushes = w.ambushes[1:]
		w.after((at-w.now)/2, spring)
	}
	w.after(at-w.now, func() { t.commit(p) })
	return p
}

// commitTime is how long agreeing takes.
func (w *World) commitTime() time.Duration {
	switch {
	case w.tidy:
		return 5 * time.Millisecond
	case w.now < w.slowUntil:
		return w.between(200*time.Millisecond, 2*time.Second)
	}
	return w.between(time.Millisecond, 15*time.Millisecond)
}

// commit makes a proposal an entry of the log.
func (t *term) commit(p *proposal) {
	w := t.w
	if t.over || t.frozen {
		return
	}
	t.flight = t.flight[1:]
	if w.now < w.fullUntil {
		w.note("%s: refused, the disk is full", p.who)
		p.done(errNoRoom)
		return
	}
	before := t.server.store.Snapshot()
	w.log.index++
	// The leader applies the original, the others a decoded copy.
	var err error
	p.result, err = t.server.store.Apply(w.log.index, p.tx)
	w.append(t.server, p.data, outcomeOf(p.result, err))
	w.note("%s: entry %d, %d changes%s", p.who, w.log.index, len(p.made()), refusal(err))
	if err == nil {
		w.checkEntry(p, before, t.server.store.Snapshot())
		t.published()
	} else if !state.MovedOn(err) {
		w.fail("proposals are valid", "%s: %v", p.who, err)
	}
	w.compact()
	p.done(err)
}

func refusal(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" refused: %v", err)
}

// maxPerMinute is far more entries than the busiest minute of such a small
// cluster needs.
const maxPerMinute = 2000

// append adds what a server has applied to the end of the log.
func (w *World) append(s *server, data []byte, outcome string) {
	if minute := w.now / time.Minute; minute != w.minute {
		w.minute, w.perMinute = minute, 0
	}
	if w.perMinute++; w.perMinute > maxPerMinute {
		w.fail("progress", "%d entries within one minute: the cluster runs in circles", w.perMinute)
	}
	w.log.entries = append(w.log.entries, entry{index: w.log.index, data: data, outcome: outcome})
	s.applied = w.log.end()
	w.log.agreed = s.store.Snapshot()
}

// inherit applies what the last leader had in flight and a majority has.
func (t *term) inherit(p *proposal) {
	w := t.w
	tx := &statev1.Transaction{}
	if err := proto.Unmarshal(p.data, tx); err != nil {
		w.fail("the log can be read", "%v", err)
		return
	}
	before := t.server.store.Snapshot()
	w.log.index++
	result, err := t.server.store.Apply(w.log.index, proto.CloneOf(tx))
	w.append(t.server, p.data, outcomeOf(result, err))
	w.note("inherited: entry %d%s", w.log.index, refusal(err))
	if err == nil {
		w.checkEntry(&proposal{who: "inherited", tx: tx, base: p.base, result: result}, before, t.server.store.Snapshot())
	}
}
