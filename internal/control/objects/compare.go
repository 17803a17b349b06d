package objects

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/object/placement"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/telemetry"
)

const (
	// compareEvery is how often a node is compared with the names.
	compareEvery = 24 * time.Hour
	// compareAgain is how soon after a comparison something suspicious may cause another one, or one that failed is tried
	// again.
	compareAgain = 10 * time.Minute
	// comparePage is how many chunks are compared at once.
	comparePage = 4096
	// compareShare is how much longer a comparison pauses than it works.
	compareShare = 4
	// keepSurplus is for how long all nodes that have a chunk must have been connected before one of too many copies is
	// deleted: a node that comes and goes should not have its chunks copied each time.
	keepSurplus = time.Hour
)

// compareAt plans a comparison of a node, unless one is planned before.
func (t *term) compareAt(uid string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, planned := t.due[uid]; !planned || at.Before(before) {
		t.due[uid] = at
	}
	wake(t.compare)
}

// suspect plans comparisons of nodes that do not have what they should.
func (t *term) suspect(uids []string) {
	for _, uid := range uids {
		t.compareAt(uid, time.Now().Add(time.Minute))
	}
}

// compared plans the next comparison of a node.
func (t *term) compared(uid string, next time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due[uid] = time.Now().Add(next)
}

// nextCompared is the node whose comparison is due first, of those that are connected.
func (t *term) nextCompared() (uid string, in time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in = compareEvery
	for one, at := range t.due {
		if left := time.Until(at); t.presence[one].connected && (uid == "" || left < in || left == in && one < uid) {
			uid, in = one, left
		}
	}
	return uid, in
}

// keepCompared compares what nodes have with what the names say, one node after the other, until ctx ends.
func (l *Loops) keepCompared(ctx context.Context, t *term) {
	for {
		uid, in := t.nextCompared()
		if uid == "" || in > 0 {
			if !rest(ctx, t.compare, in) {
				return
			}
			continue
		}
		next, began := compareEvery, time.Now()
		again, err := l.compare(ctx, t, uid)
		l.note(ctx, "a node's chunks could not be compared with the names; trying again", err, "node", uid)
		if err != nil || again {
			next = max(compareAgain, restShare*time.Since(began))
		}
		t.compared(uid, next)
		if ctx.Err() != nil {
			return
		}
	}
}

// comparison is what of a range of hashes a node has and should have.
type comparison struct {
	node   *member
	held   map[object.Hash]uint64
	listed map[object.Hash]*objectv1.Chunk
	// until is the last hash of the range, unless it is the last range.
	until object.Hash
	last  bool
}

// compare walks over all chunks of a node. It returns whether something is left that can only be deleted later.
func (l *Loops) compare(ctx context.Context, t *term, uid string) (again bool, err error) {
	var after object.Hash
	for {
		began := time.Now()
		c, err := l.compareRange(ctx, t, uid, after)
		if err != nil || c == nil {
			return again, err
		}
		steps := []func(context.Context, *term, *comparison) (bool, error){l.dropMissing, l.adoptFound, l.dropSurplus}
		for _, step := range steps {
			left, err := step(ctx, t, c)
			again = again || left
			if err != nil {
				return again, err
			}
		}
		if c.last {
			return again, nil
		}
		after = c.until
		if err := sleep.For(ctx, compareShare*time.Since(began)); err != nil {
			return again, err
		}
	}
}

// compareRange asks a node and the names about the next range. It is nil for a node without a number.
func (l *Loops) compareRange(ctx context.Context, t *term, uid string, after object.Hash) (*comparison, error) {
	c := &comparison{held: map[object.Hash]uint64{}, listed: map[object.Hash]*objectv1.Chunk{}}
	var page []names.Found
	err := l.read(ctx, func(view *names.View) error {
		f, err := l.fleetOf(view, t)
		if err != nil {
			return err
		}
		if c.node = f.byUID[uid]; c.node == nil {
			return nil
		}
		page, err = view.ChunksOn(c.node.number, after, comparePage)
		return err
	})
	if err != nil || c.node == nil {
		return nil, err
	}
	// The node answers after the names: it had what they listed, unless it has lost it.
	has, last, err := l.list(ctx, uid, after, comparePage)
	if err != nil {
		return nil, err
	}
	c.last = last && len(page) < comparePage
	c.until = farthest
	if !last && len(has) > 0 {
		c.until = has[len(has)-1].Hash
	}
	if len(page) == comparePage && bytes.Compare(page[len(page)-1].Hash[:], c.until[:]) < 0 {
		c.until = page[len(page)-1].Hash
	}
	for _, found := range page {
		if bytes.Compare(found.Hash[:], c.until[:]) <= 0 {
			c.listed[found.Hash] = found.Chunk
		}
	}
	for _, one := range has {
		if bytes.Compare(one.Hash[:], c.until[:]) <= 0 {
			c.held[one.Hash] = one.Epoch
		}
	}
	return c, nil
}

// farthest is behind all hashes.
var farthest = object.Hash(bytes.Repeat([]byte{0xff}, len(object.Hash{})))

func (l *Loops) list(ctx context.Context, uid string, after object.Hash, limit int) ([]object.Held, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	return l.o.Disks.List(ctx, uid, after, limit)
}

// fleetOf is the nodes as they are now.
func (l *Loops) fleetOf(view *names.View, t *term) (*fleet, error) {
	numbers, err := view.Nodes()
	return newFleet(l.o.Disks.Nodes(), numbers, l.circumstances(t, false)), err
}

// dropMissing takes the node off chunks that it should have and has not.
func (l *Loops) dropMissing(ctx context.Context, t *term, c *comparison) (bool, error) {
	var changes []*objectv1.Located
	for hash := range c.listed {
		if _, has := c.held[hash]; !has {
			changes = append(changes, &objectv1.Located{Hash: hash[:], Remove: []uint32{c.node.number}})
		}
	}
	if len(changes) == 0 {
		return false, nil
	}
	l.o.Logger.WarnContext(ctx, "a node does not have pieces of objects that it should have: others replace them if they can",
		"node", c.node.Name, "pieces", len(changes))
	l.o.Metrics.Corrected(telemetry.CorrectMissing, len(changes))
	defer wake(t.repair)
	return false, l.locate(ctx, changes)
}

// adoptFound handles chunks that the node has and the names do not list there: those that lack a copy get this one, and
// the others are deleted when they are old enough.
func (l *Loops) adoptFound(ctx context.Context, t *term, c *comparison) (later bool, err error) {
	var adopt []object.Fetch
	var strays []object.Hash
	var epoch uint64
	err = l.read(ctx, func(view *names.View) error {
		f, err := l.fleetOf(view, t)
		if err != nil {
			return err
		}
		epoch = view.Epoch()
		for hash, written := range c.held {
			if c.listed[hash] != nil {
				continue
			}
			chunk, err := view.Chunk(hash)
			if err != nil {
				return err
			}
			switch v := f.judge(chunk); {
			case slices.Contains(chunk.GetNodes(), c.node.number):
			case chunk != nil && (len(v.sources) == 0 || v.missing > 0 && c.node.standing == serving):
				adopt = append(adopt, object.Fetch{Hash: hash, Size: chunk.GetSize(), Nodes: from(hash, v.sources)})
			case written+2 <= epoch && !v.lacking && v.missing == 0:
				strays = append(strays, hash)
			default:
				later = true
			}
		}
		return nil
	})
	if err != nil {
		return later, err
	}
	if err := l.adopt(ctx, c, adopt, epoch); err != nil {
		return later, err
	}
	return later, l.deleteStrays(ctx, c, strays, epoch)
}

// adopt adds the node to chunks that lack a copy. They are stamped before: an order to delete such a copy, which an
// earlier leader may have given, has no effect then.
func (l *Loops) adopt(ctx context.Context, c *comparison, chunks []object.Fetch, epoch uint64) error {
	for part := range slices.Chunk(chunks, batchChunks) {
		b := &batch{target: c.node, epoch: epoch, chunks: part, places: map[object.Hash]*objectv1.Located{}}
		for _, one := range part {
			b.places[one.Hash] = &objectv1.Located{Hash: one.Hash[:], Add: []uint32{c.node.number}}
		}
		got, err := l.fetch(ctx, b)
		if err == nil {
			err = l.record(ctx, b, got)
		}
		if err != nil {
			return err
		}
		l.o.Metrics.Corrected(telemetry.CorrectFound, len(got))
	}
	return nil
}

// deleteStrays deletes copies that nothing needs. Those that were written again meanwhile stay.
func (l *Loops) deleteStrays(ctx context.Context, c *comparison, strays []object.Hash, epoch uint64) error {
	if len(strays) == 0 {
		return nil
	}
	deleted, err := l.deleteOn(ctx, c.node.UID, strays, epoch)
	l.o.Metrics.Corrected(telemetry.CorrectStray, len(deleted))
	return err
}

// dropSurplus takes the node off chunks of which there are too many copies, if it is the one that should have it least.
// Another comparison deletes the copy.
func (l *Loops) dropSurplus(ctx context.Context, t *term, c *comparison) (later bool, err error) {
	var changes []*objectv1.Located
	for hash, chunk := range c.listed {
		if _, has := c.held[hash]; !has || len(chunk.GetNodes()) <= int(chunk.GetCopies()) {
			continue
		}
		later = true
		keep, err := l.surplus(ctx, t, hash, chunk, c.node.number)
		if err != nil {
			return later, err
		}
		if keep > 0 {
			changes = append(changes, &objectv1.Located{Hash: hash[:], Remove: []uint32{c.node.number}, Least: uint32(keep)})
		}
	}
	l.o.Metrics.Corrected(telemetry.CorrectSurplus, len(changes))
	return later, l.locate(ctx, changes)
}

// surplus returns how many nodes must be left if a node gives up its copy, or 0 if it has to keep it. The nodes that keep
// theirs are asked whether they really have it.
func (l *Loops) surplus(ctx context.Context, t *term, hash object.Hash, chunk *objectv1.Chunk, number uint32) (int, error) {
	var holders []placement.Node
	var f *fleet
	err := l.read(ctx, func(view *names.View) (err error) {
		f, err = l.fleetOf(view, t)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, one := range chunk.GetNodes() {
		m := f.members[one]
		if m == nil || m.standing != serving || time.Since(t.at(m.UID).since) < keepSurplus {
			return 0, nil
		}
		// The room that there is decides, also for what a node has already.
		holders = append(holders, placement.Node{UID: m.UID, Zone: m.Zone, Class: m.Class, Capacity: m.Capacity, Free: max(m.Free, 1<<30)})
	}
	order := placement.Order(holders, placement.Chunk{Hash: hash, Size: 0}, len(holders))
	copies := int(chunk.GetCopies())
	if slices.Contains(order[:copies], f.members[number].UID) {
		t.suspect(order[copies:])
		return 0, nil
	}
	for _, uid := range order[:copies] {
		if has, err := l.has(ctx, uid, hash); !has || err != nil {
			t.suspect([]string{uid})
			return 0, err
		}
	}
	return copies, nil
}

// has asks a node whether it has a chunk.
func (l *Loops) has(ctx context.Context, uid string, hash object.Hash) (bool, error) {
	page, _, err := l.list(ctx, uid, before(hash), 1)
	if err != nil {
		return false, fmt.Errorf("asking node %s for a chunk: %w", uid, err)
	}
	return len(page) == 1 && page[0].Hash == hash, nil
}

// before is the hash right before another one.
func before(hash object.Hash) object.Hash {
	for i := len(hash) - 1; i >= 0; i-- {
		hash[i]--
		if hash[i] != 0xff {
			break
		}
	}
	return hash
}
