package chunks

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

// fetchedAtOnce is how many chunks of one call are fetched at a time.
const fetchedAtOnce = 8

// FetchChunks implements the ChunkService.
func (c *Chunks) FetchChunks(request *v1.FetchChunksRequest, stream grpc.ServerStreamingServer[v1.ChunkStored]) error {
	wanted := make(chan *v1.FetchChunk)
	answers := make(chan *v1.ChunkStored)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var workers sync.WaitGroup
	for range min(fetchedAtOnce, len(request.GetChunks())) {
		workers.Go(func() {
			for one := range wanted {
				err := c.fetch(ctx, one, request.GetEpoch())
				c.opts.Metrics.Chunk("fetch", resultOf(err), int(one.GetSize()))
				answer := &v1.ChunkStored{Hash: one.GetHash()}
				answer.Problem, answer.Reason = transfer.Word(err)
				answers <- answer
			}
		})
	}
	workers.Go(func() {
		defer close(wanted)
		for _, one := range request.GetChunks() {
			select {
			case wanted <- one:
			case <-ctx.Done():
				return
			}
		}
	})
	go func() { // ends with the workers
		workers.Wait()
		close(answers)
	}()
	var failed error
	for answer := range answers {
		if failed == nil {
			if failed = stream.Send(answer); failed != nil {
				cancel()
			}
		}
	}
	return failed
}

// fetch gets a chunk from the first of its sources that has it, unless it is here already.
func (c *Chunks) fetch(ctx context.Context, wanted *v1.FetchChunk, epoch uint64) error {
	hash, err := hashOf(wanted.GetHash())
	if err != nil {
		return err
	}
	if had, err := c.store.Stamp(ctx, hash, epoch); had || err != nil {
		return err
	}
	size := int64(min(wanted.GetSize(), transfer.ChunkSize))
	weight := max(size, leastWeight)
	if err := c.storing.Acquire(ctx, weight); err != nil {
		return err
	}
	defer c.storing.Release(weight)
	memory := transfer.Memory().Get(int(size))
	defer transfer.Memory().Put(memory)
	failures := make([]error, 0, len(wanted.GetSources()))
	for _, source := range wanted.GetSources() {
		data, err := c.peers.get(ctx, source, hash, (*memory)[:0])
		if err == nil { // the store checks the digest
			err = c.store.Put(ctx, hash, data, epoch)
		}
		if err == nil || errors.Is(err, transfer.ErrFull) || ctx.Err() != nil {
			return err
		}
		failures = append(failures, fmt.Errorf("node %s: %w", source.GetNodeUid(), err))
	}
	return together(failures)
}

// together is the error of a chunk that no source has given: that it is missing or damaged if that is certain, because
// every source has answered.
func together(failures []error) error {
	if len(failures) == 0 {
		return errors.New("no node is named that has the chunk and can be reached over the mesh")
	}
	for _, err := range failures {
		if !errors.Is(err, transfer.ErrMissing) && !errors.Is(err, transfer.ErrDamaged) {
			return errors.New(errors.Join(failures...).Error()) // in words alone: some may say that it is missing
		}
	}
	return failures[0]
}
