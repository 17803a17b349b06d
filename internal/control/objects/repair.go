package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// repairEvery is how often chunks are surveyed when nothing is known to have changed, and repairAgain how soon after
	// something could not be copied.
	repairEvery = 2 * time.Minute
	repairAgain = 20 * time.Second
	// restShare bounds the share of time that surveys take: a large store has one less often.
	restShare = 20
	// batchBytes and batchChunks bound what a node is asked to get at once.
	batchBytes  = 32 << 20
	batchChunks = 256
	// batchTimeout ends what a node does not get done. It is less than an epoch.
	batchTimeout = 3 * time.Minute
	// batchesPerNode is how many batches go on at once for each node.
	batchesPerNode = 2
	maxBatches     = 32
)

// copying is how far the repair that goes on is.
type copying struct {
	active bool
	began  time.Time
	// done and total are in bytes, copies and failed are chunks.
	done, total    int64
	copies, failed int64
	// recent are the bytes since mark, from which the rate is computed.
	recent int64
	mark   time.Time
	rate   float64
}

// keepRepaired copies what has too few copies, until ctx ends.
func (l *Loops) keepRepaired(ctx context.Context, t *term) {
	defer t.refuse()
	for pause := time.Duration(0); rest(ctx, t.repair, pause); {
		waiting := t.callers()
		next, err := l.repair(ctx, t, len(waiting) > 0)
		l.note(ctx, "the object store could not be repaired; trying again", err)
		for _, caller := range waiting {
			caller <- err
		}
		pause = next
	}
}

// repair makes one survey, copies what it can, and returns when to come again.
func (l *Loops) repair(ctx context.Context, t *term, forced bool) (time.Duration, error) {
	found, err := l.survey(ctx, t, forced)
	if err != nil {
		return repairAgain, err
	}
	l.noteSurvey(t, found)
	pause := max(repairEvery, restShare*found.took)
	if next := found.fleet.nextLost(l.circumstances(t, false)); !next.IsZero() {
		pause = max(time.Second, min(pause, time.Until(next)))
	}
	if found.todo == 0 && found.drops == 0 {
		return pause, nil
	}
	failed, err := l.copyAll(ctx, t, found, forced)
	if err != nil || failed > 0 {
		return min(pause, repairAgain), err
	}
	again, err := l.survey(ctx, t, forced)
	if err != nil {
		return repairAgain, err
	}
	l.noteSurvey(t, again)
	if again.todo+again.drops > 0 {
		return time.Second, nil
	}
	return pause, nil
}

// noteSurvey remembers a survey for Status, and tells of data that nobody has any more.
func (l *Loops) noteSurvey(t *term, s survey) {
	t.mu.Lock()
	before := t.found
	t.found = s
	t.mu.Unlock()
	l.o.Metrics.Lacking(s.lacking, s.unreachable)
	if s.lost > before.lost {
		l.o.Tell(Event{Warning: true, Reason: DataLost, Message: pieces(s.lost, "is", "are") +
			" on no node any more: put what is damaged again, or bring back a node that has it"})
	}
	for uid, was := range before.on {
		m := s.fleet.byUID[uid]
		if was > 0 && m != nil && m.standing == leaving && s.on[uid] == 0 {
			l.o.Tell(Event{Node: uid, Reason: Drained, Message: fmt.Sprintf("all objects on node %s have their copies on other nodes", m.Name)})
		}
	}
}

// copyAll makes the copies that chunks lack, and returns how many it could not make.
func (l *Loops) copyAll(ctx context.Context, t *term, found survey, forced bool) (failed int64, err error) {
	t.beginCopying(found.bytes)
	defer t.endCopying()
	began := time.Now()
	if found.todo > 0 {
		l.o.Tell(Event{Reason: RepairStarted, Message: fmt.Sprintf("%s copied to other nodes (%s)", pieces(found.todo, "is", "are"), sizeOf(found.bytes))})
	}
	c := &copier{
		loops: l, term: t, open: map[string]*batch{}, full: map[string]bool{}, due: time.Now(),
	}
	c.running.SetLimit(min(maxBatches, batchesPerNode*max(1, len(found.fleet.targets))))
	walk := &scan{loops: l, term: t, forced: forced, hurry: true}
	err = walk.each(ctx, func(g glance) error { return c.take(ctx, g) })
	err = errors.Join(err, c.finish(ctx))
	done := t.copied()
	if found.todo > 0 && err == nil {
		message := fmt.Sprintf("%s copied (%s in %s)", pieces(done.copies, "was", "were"), sizeOf(done.done), time.Since(began).Round(time.Second))
		if done.failed > 0 {
			message += "; " + pieces(done.failed, "could not be, and is", "could not be, and are") + " tried again"
		}
		l.o.Tell(Event{Reason: RepairFinished, Warning: done.failed > 0, Message: message})
	}
	return done.failed, err
}

// copier has nodes get chunks in batches.
type copier struct {
	loops *Loops
	term  *term
	// open are batches that still grow, by the UID of their node.
	open    map[string]*batch
	drops   []*objectv1.Located
	running errgroup.Group
	// due is when the rate permits the next batch.
	due time.Time

	mu sync.Mutex
	// full are nodes that get nothing more in this repair.
	full map[string]bool
}

type batch struct {
	target *member
	bytes  int64
	epoch  uint64
	chunks []object.Fetch
	// places is what to propose when the node has a chunk.
	places map[object.Hash]*objectv1.Located
}

// take plans what a chunk lacks.
func (c *copier) take(ctx context.Context, g glance) error {
	v := g.verdict
	switch {
	case len(v.sources) == 0:
		return nil
	case v.missing == 0 && len(v.leaving) > 0:
		c.drops = append(c.drops, &objectv1.Located{Hash: g.hash[:], Remove: v.leaving, Least: uint32(v.least)})
		if len(c.drops) >= locateBatch {
			return c.drop(ctx)
		}
		return nil
	case v.missing == 0:
		return nil
	}
	for _, target := range g.fleet.place(g.hash, g.chunk, v, c.avoid(), v.missing) {
		b := c.open[target.UID]
		if b == nil {
			b = &batch{target: target, epoch: g.epoch, places: map[object.Hash]*objectv1.Located{}}
			c.open[target.UID] = b
		}
		if b.places[g.hash] != nil {
			continue
		}
		b.epoch = min(b.epoch, g.epoch)
		b.bytes += int64(g.chunk.GetSize())
		b.chunks = append(b.chunks, object.Fetch{Hash: g.hash, Size: g.chunk.GetSize(), Nodes: from(g.hash, v.sources)})
		b.places[g.hash] = &objectv1.Located{
			Hash: g.hash[:], Add: []uint32{target.number}, Remove: v.leaving, Least: uint32(v.least),
		}
		if b.bytes >= batchBytes || len(b.chunks) >= batchChunks {
			if err := c.start(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *copier) avoid() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	avoid := make(map[string]bool, len(c.full))
	for uid := range c.full {
		avoid[uid] = true
	}
	return avoid
}

func (c *copier) drop(ctx context.Context) error {
	drops := c.drops
	c.drops = nil
	return c.loops.locate(ctx, drops)
}

// start runs a batch when the rate permits it and others have made room.
func (c *copier) start(ctx context.Context, b *batch) error {
	delete(c.open, b.target.UID)
	if err := c.pace(ctx, b); err != nil {
		return err
	}
	c.running.Go(func() error {
		c.run(ctx, b)
		return nil
	})
	return ctx.Err()
}

// pace waits until the rate permits a batch, or until its node is idle.
func (c *copier) pace(ctx context.Context, b *batch) error {
	for time.Until(c.due) > 0 {
		if c.loops.idle(b.target.UID) {
			return ctx.Err()
		}
		if err := sleep.For(ctx, min(time.Until(c.due), time.Second)); err != nil {
			return err
		}
	}
	if now := time.Now(); c.due.Before(now) {
		c.due = now
	}
	seconds := float64(b.bytes) / float64(c.loops.o.Settings().RepairRate)
	c.due = c.due.Add(time.Duration(seconds * float64(time.Second)))
	return ctx.Err()
}

// idle is whether a node has time for a repair. Those that it copies from have little to do with it, as there are many.
func (l *Loops) idle(node string) bool {
	for _, n := range l.o.Disks.Nodes() {
		if n.UID == node {
			return n.Idle
		}
	}
	return false
}

// finish runs what is left.
func (c *copier) finish(ctx context.Context) error {
	var failed error
	for _, b := range c.open {
		failed = errors.Join(failed, c.start(ctx, b))
	}
	failed = errors.Join(failed, c.running.Wait())
	if len(c.drops) > 0 && ctx.Err() == nil {
		failed = errors.Join(failed, c.drop(ctx))
	}
	return failed
}

// run has the node get the chunks of a batch, and says in the names that it has them.
func (c *copier) run(ctx context.Context, b *batch) {
	l := c.loops
	got, err := l.fetch(ctx, b)
	if err != nil {
		c.refuse(b.target.UID)
		l.note(ctx, "a node could not copy pieces of objects; others do", err, "node", b.target.Name)
	}
	for _, one := range b.chunks {
		if err := got[one.Hash]; err != nil {
			c.failed(ctx, b, one, err)
		}
	}
	err = l.record(ctx, b, got)
	l.note(ctx, "places of copied pieces of objects could not be written; trying again", err)
	missed := 0
	for _, one := range b.chunks {
		if outcome, answered := got[one.Hash]; err != nil || !answered || outcome != nil {
			missed++
			l.o.Metrics.RepairFailed()
			continue
		}
		l.o.Metrics.Repaired(int64(one.Size))
		c.term.progressed(int64(one.Size))
	}
	c.term.missed(missed)
}

// outcomes are what a node has said of chunks that it should get: nil if it has the chunk.
type outcomes map[object.Hash]error

// fetch has a node get the chunks of a batch.
func (l *Loops) fetch(ctx context.Context, b *batch) (outcomes, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	got := make(outcomes, len(b.chunks))
	var answering sync.Mutex
	err := l.o.Disks.Fetch(ctx, b.target.UID, b.chunks, b.epoch, func(hash object.Hash, err error) {
		answering.Lock()
		defer answering.Unlock()
		got[hash] = err
	})
	return got, err
}

// record adds the node to the chunks that it has got. Copies that were made too long ago may be collected already; the
// comparison of the node with the names finds them if they are not.
func (l *Loops) record(ctx context.Context, b *batch, got outcomes) error {
	var changes []*objectv1.Located
	for _, one := range b.chunks {
		if err, answered := got[one.Hash]; answered && err == nil {
			changes = append(changes, b.places[one.Hash])
		}
	}
	if len(changes) == 0 {
		return nil
	}
	err := l.read(ctx, func(view *names.View) error {
		if b.epoch+1 < view.Epoch() {
			return errors.New("copying took longer than an epoch of the garbage")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.locate(ctx, changes)
}

// failed finds out more about a chunk that was not copied.
func (c *copier) failed(ctx context.Context, b *batch, chunk object.Fetch, err error) {
	switch {
	case errors.Is(err, object.ErrDiskFull):
		c.refuse(b.target.UID)
	case errors.Is(err, object.ErrChunkMissing) || errors.Is(err, object.ErrChunkDamaged):
		c.term.suspect(chunk.Nodes)
	}
	c.loops.note(ctx, "a piece of an object could not be copied; trying again", err, "node", b.target.Name)
}

// refuse lets a node get nothing more in this repair.
func (c *copier) refuse(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full[uid] = true
}
