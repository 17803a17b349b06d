package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

const (
	// reportBatch is how many changes of places one operation has at most.
	reportBatch = 256
	// reportTimeout and repairTimeout end what cannot be done now. The loops of the cluster find it again.
	reportTimeout = 30 * time.Second
	repairTimeout = time.Minute
)

// locate reports that nodes got or lost a chunk, soon. If too much is waiting it is not reported: the comparison of what
// nodes have with what the names say finds it later.
func (s *Store) locate(l *objectv1.Located) {
	select {
	case s.located <- l:
	default:
		s.logger.Warn("a change of a chunk's places is not reported: too many are waiting")
	}
}

// report proposes what locate was given, in batches.
func (s *Store) report() {
	for {
		batch := s.gather()
		if batch == nil {
			return
		}
		if err := s.relocate(batch); err != nil && s.background.Err() == nil {
			s.logger.Warn("places of chunks were not reported", "chunks", len(batch), "error", err)
		}
	}
}

// gather waits for the first change, and returns it with all others that are waiting; nil at the end.
func (s *Store) gather() []*objectv1.Located {
	var batch []*objectv1.Located
	select {
	case l := <-s.located:
		batch = append(batch, l)
	case <-s.background.Done():
		return nil
	}
	for len(batch) < reportBatch {
		select {
		case l := <-s.located:
			batch = append(batch, l)
		default:
			return batch
		}
	}
	return batch
}

func (s *Store) relocate(batch []*objectv1.Located) error {
	ctx, cancel := context.WithTimeout(s.background, reportTimeout)
	defer cancel()
	result, err := s.proposeOne(ctx, &objectv1.Operation{What: &objectv1.Operation_Locate{
		Locate: &objectv1.Locate{Chunks: batch},
	}})
	if err != nil {
		return err
	}
	return refusal(result, 0)
}

// damage is a chunk that a node does not have any more as it was.
type damage struct {
	hash Hash
	size uint32
	node string
}

// damaged has the node's copy of a chunk replaced in the background.
func (s *Store) damaged(d damage, why error) {
	s.logger.Warn("a node does not have a chunk as it was stored: it gets it from another node",
		"node", s.fleet.name(d.node), "chunk", fmt.Sprintf("%x", d.hash[:8]), "reason", why)
	select {
	case s.damages <- d:
	default: // the scrub of the node finds it again
	}
}

// repair replaces damaged copies, one after the other.
func (s *Store) repair() {
	for {
		select {
		case <-s.background.Done():
			return
		case d := <-s.damages:
			ctx, cancel := context.WithTimeout(s.background, repairTimeout)
			err := s.replace(ctx, d)
			cancel()
			if err != nil && s.background.Err() == nil {
				s.logger.Warn("a damaged chunk was not replaced", "node", s.fleet.name(d.node),
					"chunk", fmt.Sprintf("%x", d.hash[:8]), "error", err)
			}
		}
	}
}

// replace takes a node from those that have a chunk, has it get the chunk again, and adds it.
func (s *Store) replace(ctx context.Context, d damage) error {
	number, err := s.numberOf(ctx, d.node)
	if err != nil {
		return err
	}
	view, err := s.view(ctx)
	if err != nil {
		return err
	}
	chunk, err := view.Chunk(d.hash)
	epoch := view.Epoch()
	var others []string
	if err == nil && chunk != nil {
		rest := slices.DeleteFunc(slices.Clone(chunk.GetNodes()), func(n uint32) bool { return n == number })
		others, err = s.numbers.uids(view, rest)
	}
	view.Close()
	if err != nil || chunk == nil || !slices.Contains(chunk.GetNodes(), number) {
		return err // it is not needed any more, or another read has found the damage too
	}
	located := &objectv1.Located{Hash: d.hash[:], Remove: []uint32{number}}
	if err := s.relocate([]*objectv1.Located{located}); err != nil {
		return err
	}
	if others = s.fleet.sources(others); len(others) == 0 {
		return errors.New("no other node that answers has it")
	}
	if err := s.fetchTo(ctx, d.node, Fetch{Hash: d.hash, Size: d.size, Nodes: others}, epoch); err != nil {
		return err
	}
	return s.relocate([]*objectv1.Located{{Hash: d.hash[:], Add: []uint32{number}}})
}

// fetchTo makes sure that a node has a chunk, and that it counts as written in an epoch.
func (s *Store) fetchTo(ctx context.Context, node string, chunk Fetch, epoch uint64) error {
	var failed error
	err := s.disks.Fetch(ctx, node, []Fetch{chunk}, epoch, func(_ Hash, err error) { failed = err })
	return errors.Join(err, failed)
}
