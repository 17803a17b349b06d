package object

import (
	"context"
	"fmt"
)

// renew makes a chunk that nothing refers to safe from the collection of garbage of an epoch: its nodes stamp it again,
// or it is written again.
func (s *Store) renew(ctx context.Context, l *landing, copies int, epoch uint64) error {
	has := s.numbers.known(l.stored().GetNodes())
	if len(has) == 0 {
		var err error
		if has, err = s.nodesOf(ctx, l.hash); err != nil {
			return err
		}
	}
	if len(has) == 0 {
		return fmt.Errorf("%w: nothing is known of chunk %x any more", ErrUnreachable, l.hash[:8])
	}
	renewed := make([]uint32, 0, len(has))
	var failed error
	for _, node := range has {
		chunk := Fetch{Hash: l.hash, Size: l.block.GetSize(), Nodes: others(has, node)}
		if err := s.fetchTo(ctx, node, chunk, epoch); err != nil {
			failed = err
			continue
		}
		if number, known := s.numbers.number(node); known {
			renewed = append(renewed, number)
		}
	}
	if need := quorum(copies, len(has), len(has)); len(renewed) < need {
		return fmt.Errorf("%w: %d have chunk %x and %d are needed: %w", ErrNoQuorum, len(renewed), l.hash[:8], need, failed)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes, l.late = renewed, nil
	return nil
}

func others(all []string, one string) []string {
	rest := make([]string, 0, len(all))
	for _, node := range all {
		if node != one {
			rest = append(rest, node)
		}
	}
	return rest
}
