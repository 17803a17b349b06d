package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	snapshotObjects = 100_000
	snapshotPart    = 500 // how many are created in one transaction
	snapshotRounds  = 5
)

// measureSnapshotStall makes one write after the other while snapshots are written.
func measureSnapshotStall(ctx context.Context, l *lab) (_ result, err error) {
	c, err := consensus.Open(ctx, consensus.Options{
		Dir: filepath.Join(l.dir, "snapshot"), ServerID: "lone", Store: state.New(), Logger: slog.New(slog.DiscardHandler), Bootstrap: true,
	})
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := fillState(ctx, c); err != nil {
		return result{}, err
	}
	var during, otherwise, lengths sample
	for range snapshotRounds {
		began := time.Now()
		saved := make(chan error, 1)
		go func() { saved <- c.Snapshot(ctx) }()
		writes, longest, err := writeUntil(ctx, c, saved)
		if err != nil {
			return result{}, err
		}
		during, lengths = append(during, longest), append(lengths, float64(time.Since(began).Milliseconds()))
		if longest, err = writeTimes(ctx, c, writes); err != nil {
			return result{}, err
		}
		otherwise = append(otherwise, longest)
	}
	return result{
		value: during.median(), floor: otherwise.median(),
		notes: []string{during.spread("longest write during a snapshot in ms"), otherwise.spread("otherwise"), lengths.spread("a snapshot took")},
	}, nil
}

func fillState(ctx context.Context, c *consensus.Consensus) error {
	if err := c.WaitLeader(ctx); err != nil {
		return err
	}
	for n := 0; n < snapshotObjects; n += snapshotPart {
		var batch state.Batch
		for i := range snapshotPart {
			batch.Create(snapshotNode(n+i, "10.64.0.0/24"))
		}
		if _, err := c.Propose(ctx, batch.Transaction(time.Now())); err != nil {
			return fmt.Errorf("fill the state: %w", err)
		}
	}
	return nil
}

func snapshotNode(n int, subnet string) *v1.Node {
	return &v1.Node{
		Metadata: &v1.Metadata{Uid: fmt.Sprintf("%08d", n), Name: fmt.Sprintf("node-%d", n), Labels: map[string]string{"disk": "ssd"}},
		Spec:     &v1.NodeSpec{SubnetV4: subnet},
	}
}

// writeUntil returns how many writes there were until the snapshot was saved,
// and how long the longest took in ms.
func writeUntil(ctx context.Context, c *consensus.Consensus, saved <-chan error) (writes int, longest float64, err error) {
	for {
		select {
		case err := <-saved:
			return writes, longest, err
		default:
		}
		took, err := writeTimes(ctx, c, 1)
		if err != nil {
			return 0, 0, err
		}
		writes, longest = writes+1, max(longest, took)
	}
}

func writeTimes(ctx context.Context, c *consensus.Consensus, times int) (longest float64, err error) {
	for n := range times {
		var batch state.Batch
		batch.Put(snapshotNode(0, fmt.Sprintf("10.64.%d.0/24", n%256)))
		began := time.Now()
		if _, err := c.Propose(ctx, batch.Transaction(began)); err != nil {
			return 0, fmt.Errorf("write beside a snapshot: %w", err)
		}
		longest = max(longest, float64(time.Since(began).Microseconds())/1000)
	}
	return longest, nil
}
