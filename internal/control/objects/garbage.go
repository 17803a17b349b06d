package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
)

const (
	// garbageEvery is how often the loop looks whether an epoch is over or garbage is old enough.
	garbageEvery = time.Minute
	// garbagePage is how many dead chunks are deleted at once.
	garbagePage = 1000
)

// collectGarbage begins an epoch when the one before has lasted long enough, and deletes what nothing has referred to
// since two epochs, until ctx ends.
//
// A chunk that died in epoch E is deleted in E+2. Whoever begins to refer to a chunk has had it written or stamped in the
// current epoch or the one before, or the names refuse the reference. Nodes keep copies that were written after E. So no
// order to delete, however late it arrives, can hit a copy that something refers to.
func (l *Loops) collectGarbage(ctx context.Context, _ *term) {
	// When the epoch began is not known after a change of the leader: it lasts from now.
	began := time.Now()
	for rest(ctx, nil, min(garbageEvery, l.o.Epoch)) {
		if time.Since(began) >= l.o.Epoch {
			err := l.advance(ctx)
			l.note(ctx, "an epoch of the object store's garbage could not begin; trying again", err)
			if err == nil {
				began = time.Now()
			}
		}
		err := l.collect(ctx)
		l.note(ctx, "garbage of the object store could not be deleted; trying again", err)
	}
}

// advance begins the next epoch.
func (l *Loops) advance(ctx context.Context) error {
	var epoch uint64
	err := l.read(ctx, func(view *names.View) error {
		epoch = view.Epoch()
		return nil
	})
	if err != nil {
		return err
	}
	// A refusal says that another leader has begun it.
	_, err = l.propose(ctx, &objectv1.Operation{What: &objectv1.Operation_AdvanceEpoch{
		AdvanceEpoch: &objectv1.AdvanceEpoch{From: epoch},
	}})
	return err
}

// collect deletes all dead chunks that are old enough.
func (l *Loops) collect(ctx context.Context) error {
	var after object.Hash
	for {
		var page []names.FoundDead
		var nodes map[uint32]string
		var epoch uint64
		err := l.read(ctx, func(view *names.View) error {
			epoch = view.Epoch()
			totals, err := view.Totals()
			if err != nil {
				return err
			}
			l.o.Metrics.Garbage(totals.Dead, epoch)
			if epoch < 2 || totals.Dead == 0 {
				return nil
			}
			if page, err = view.Dead(epoch-2, after, garbagePage); err != nil {
				return err
			}
			nodes, err = uidsOf(view)
			return err
		})
		if err != nil || len(page) == 0 {
			return err
		}
		if err := l.collectPage(ctx, page, nodes, epoch); err != nil {
			return err
		}
		if len(page) < garbagePage {
			return nil
		}
		after = page[len(page)-1].Hash
	}
}

// uidsOf are the UIDs of nodes by their numbers.
func uidsOf(view *names.View) (map[uint32]string, error) {
	numbers, err := view.Nodes()
	nodes := make(map[uint32]string, len(numbers))
	for uid, number := range numbers {
		nodes[number] = uid
	}
	return nodes, err
}

// collectPage deletes chunks from their nodes, and forgets those that are gone. A node that does not answer has them when
// it comes back; its comparison deletes them then.
func (l *Loops) collectPage(ctx context.Context, page []names.FoundDead, nodes map[uint32]string, epoch uint64) error {
	connected := map[string]bool{}
	for _, n := range l.o.Disks.Nodes() {
		connected[n.UID] = n.Connected
	}
	wanted, left := map[string][]object.Hash{}, map[object.Hash]int{}
	for _, dead := range page {
		for _, number := range dead.Dead.GetNodes() {
			if uid := nodes[number]; connected[uid] {
				wanted[uid] = append(wanted[uid], dead.Hash)
				left[dead.Hash]++
			}
		}
	}
	for hash, count := range l.deleteAll(ctx, wanted, epoch) {
		left[hash] -= count
	}
	var gone [][]byte
	for i := range page {
		if left[page[i].Hash] <= 0 {
			gone = append(gone, page[i].Hash[:])
		}
	}
	if len(gone) == 0 {
		return nil
	}
	_, err := l.propose(ctx, &objectv1.Operation{What: &objectv1.Operation_Forget{
		Forget: &objectv1.Forget{Hashes: gone, Epoch: epoch - 2},
	}})
	if err == nil {
		l.o.Metrics.Collected(len(gone))
	}
	return err
}

// deleteAll deletes chunks from several nodes at once, and returns from how many each one is gone.
func (l *Loops) deleteAll(ctx context.Context, wanted map[string][]object.Hash, epoch uint64) map[object.Hash]int {
	gone := map[object.Hash]int{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for uid, hashes := range wanted {
		running.Go(func() {
			deleted, err := l.deleteOn(ctx, uid, hashes, epoch)
			l.note(ctx, "a node could not delete garbage of the object store; trying again", err, "node", uid)
			mu.Lock()
			defer mu.Unlock()
			for _, hash := range deleted {
				gone[hash]++
			}
		})
	}
	running.Wait()
	return gone
}

// deleteOn deletes copies on a node that were written two epochs ago, and returns those that are gone.
func (l *Loops) deleteOn(ctx context.Context, uid string, hashes []object.Hash, epoch uint64) ([]object.Hash, error) {
	if epoch < 2 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	deleted, err := l.o.Disks.Delete(ctx, uid, hashes, epoch-2)
	if err != nil {
		return deleted, fmt.Errorf("deleting chunks: %w", err)
	}
	return deleted, nil
}
