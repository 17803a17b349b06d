package objects

import (
	"context"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/telemetry"
)

const (
	// mostReported bounds the memory for reports. What is beyond is found by the next comparison of the node.
	mostReported = 100_000
	// damageAgain is how soon a report that could not be handled is tried again.
	damageAgain = 10 * time.Second
)

// damaged takes a report of a node. Only the leader handles it: the node tells every server.
func (l *Loops) damaged(node string, hashes []object.Hash) {
	t := l.leading()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reported[node] == nil {
		t.reported[node] = map[object.Hash]bool{}
	}
	for _, hash := range hashes {
		if len(t.reported[node]) < mostReported {
			t.reported[node][hash] = true
		}
	}
	wake(t.damage)
}

// replaceDamaged takes nodes off chunks that they found damaged, so that other nodes or they themselves get them again,
// until ctx ends.
func (l *Loops) replaceDamaged(ctx context.Context, t *term) {
	for pause := time.Hour; rest(ctx, t.damage, pause); {
		pause = time.Hour
		for node, hashes := range t.reports() {
			err := l.dropDamaged(ctx, node, hashes)
			l.note(ctx, "damaged pieces of objects could not be replaced; trying again", err, "node", node)
			if err != nil {
				l.damaged(node, hashes)
				pause = damageAgain
			}
		}
		if pause == damageAgain { // not at once
			select {
			case <-t.damage:
			default:
			}
			continue
		}
		wake(t.repair)
	}
}

// reports takes what nodes have reported.
func (t *term) reports() map[string][]object.Hash {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string][]object.Hash, len(t.reported))
	for node, hashes := range t.reported {
		for hash := range hashes {
			all[node] = append(all[node], hash)
		}
	}
	clear(t.reported)
	return all
}

func (l *Loops) dropDamaged(ctx context.Context, node string, hashes []object.Hash) error {
	numbers, err := l.numbers(ctx)
	if err != nil || numbers[node] == 0 {
		return err
	}
	var changes []*objectv1.Located
	err = l.read(ctx, func(view *names.View) error {
		for i := range hashes {
			chunk, err := view.Chunk(hashes[i])
			if err != nil {
				return err
			}
			if chunk != nil {
				changes = append(changes, &objectv1.Located{Hash: hashes[i][:], Remove: []uint32{numbers[node]}})
			}
		}
		return nil
	})
	if err != nil || len(changes) == 0 {
		return err
	}
	if err := l.locate(ctx, changes); err != nil {
		return err
	}
	l.o.Metrics.Corrected(telemetry.CorrectDamaged, len(changes))
	l.o.Tell(Event{Node: node, Warning: true, Reason: DataDamaged, Message: pieces(int64(len(changes)), "was", "were") +
		" damaged on the disk of the node; copies of other nodes replace what is damaged"})
	return nil
}
