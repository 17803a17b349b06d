package disks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/transfer"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// How many chunks one message names at most.
const (
	deleteBatch = 8192
	fetchBatch  = 1024
)

// Put implements object.Disks.
func (d *Disks) Put(ctx context.Context, node string, hash object.Hash, data []byte, epoch uint64) error {
	began := time.Now()
	if len(data) > transfer.ChunkSize {
		return fmt.Errorf("a chunk of %d bytes is put on node %s, and may have %d", len(data), d.name(node), transfer.ChunkSize)
	}
	l, err := d.reach(node)
	if err != nil {
		return err
	}
	err = d.explain(l, l.lane(len(data)).put(ctx, hash, data, epoch))
	d.metrics.Done(telemetry.ChunkPut, resultOf(err), len(data), time.Since(began))
	return err
}

// Get implements object.Disks.
func (d *Disks) Get(ctx context.Context, node string, hash object.Hash, offset, length uint32, buf []byte) ([]byte, error) {
	began := time.Now()
	l, err := d.reach(node)
	if err != nil {
		return buf, err
	}
	whole, err := transfer.Get(ctx, l.client, hash, offset, length, buf)
	err = d.explain(l, err)
	d.metrics.Done(telemetry.ChunkGet, resultOf(err), len(whole)-len(buf), time.Since(began))
	return whole, err
}

// Delete implements object.Disks.
func (d *Disks) Delete(ctx context.Context, node string, hashes []object.Hash, epoch uint64) (gone []object.Hash, err error) {
	l, err := d.reach(node)
	if err != nil {
		return nil, err
	}
	for batch := range slices.Chunk(hashes, deleteBatch) {
		answer, err := l.client.DeleteChunks(ctx, &v1.DeleteChunksRequest{Hashes: digests(batch), Epoch: epoch})
		if err != nil {
			return gone, d.explain(l, transfer.FromStatus(err))
		}
		for _, one := range answer.GetDeleted() {
			if len(one) == len(object.Hash{}) {
				gone = append(gone, object.Hash(one))
			}
		}
		d.metrics.Deleted(len(answer.GetDeleted()))
	}
	return gone, nil
}

func digests(hashes []object.Hash) [][]byte {
	all := make([][]byte, len(hashes))
	for i := range hashes {
		all[i] = hashes[i][:]
	}
	return all
}

// List implements object.Disks.
func (d *Disks) List(ctx context.Context, node string, after object.Hash, limit int) (page []object.Held, last bool, err error) {
	l, err := d.reach(node)
	if err != nil {
		return nil, false, err
	}
	request := &v1.ListChunksRequest{Limit: uint32(max(0, limit))}
	if after != (object.Hash{}) {
		request.After = after[:]
	}
	answer, err := l.client.ListChunks(ctx, request)
	if err != nil {
		return nil, false, d.explain(l, transfer.FromStatus(err))
	}
	const size = len(object.Hash{})
	hashes, epochs := answer.GetHashes(), answer.GetEpochs()
	if len(hashes) != size*len(epochs) {
		return nil, false, fmt.Errorf("node %s lists %d bytes of digests and %d epochs: update the older one of node and server", d.name(node), len(hashes), len(epochs))
	}
	page = make([]object.Held, len(epochs))
	for i, epoch := range epochs {
		page[i] = object.Held{Hash: object.Hash(hashes[i*size : (i+1)*size]), Epoch: epoch}
	}
	return page, answer.GetLast(), nil
}

// Scrub implements object.Disks.
func (d *Disks) Scrub(ctx context.Context, node string, rate int64, progress func(checked, total, damaged int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := d.reach(node)
	if err != nil {
		return err
	}
	stream, err := l.client.ScrubChunks(ctx, &v1.ScrubChunksRequest{Rate: rate})
	for done := false; err == nil && !done; {
		var now *v1.ScrubProgress
		if now, err = stream.Recv(); err == nil {
			progress(now.GetChecked(), now.GetTotal(), now.GetDamaged())
			done = now.GetDone()
		}
	}
	return d.explain(l, transfer.FromStatus(err))
}

// Fetch implements object.Disks. A chunk that the node cannot get over the mesh goes through this server.
func (d *Disks) Fetch(ctx context.Context, node string, chunks []object.Fetch, epoch uint64, done func(object.Hash, error)) error {
	l, err := d.reach(node)
	if err != nil {
		return err
	}
	for len(chunks) > 0 {
		n := min(len(chunks), fetchBatch)
		rest, err := d.fetch(ctx, l, chunks[:n], epoch, done)
		chunks = chunks[n:]
		if err != nil {
			for _, one := range slices.Concat(rest, chunks) {
				done(one.Hash, err)
			}
			return err
		}
		d.relay(ctx, node, rest, epoch, done)
	}
	return nil
}

// fetch has a node get chunks over the mesh. It returns those that it could not get from anywhere, or, with an error,
// those that it has not answered.
func (d *Disks) fetch(ctx context.Context, l *link, chunks []object.Fetch, epoch uint64, done func(object.Hash, error)) ([]object.Fetch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	open := make(map[object.Hash]object.Fetch, len(chunks))
	request := &v1.FetchChunksRequest{Epoch: epoch}
	for _, one := range chunks {
		open[one.Hash] = one
		request.Chunks = append(request.Chunks, &v1.FetchChunk{Hash: one.Hash[:], Size: one.Size, Sources: d.sources(one.Nodes)})
	}
	stream, err := l.client.FetchChunks(ctx, request)
	if err != nil {
		return chunks, d.explain(l, transfer.FromStatus(err))
	}
	var failed []object.Fetch
	for {
		stored, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return slices.AppendSeq(failed, maps.Values(open)), d.explain(l, transfer.FromStatus(err))
		}
		if len(stored.GetHash()) != len(object.Hash{}) {
			continue
		}
		hash := object.Hash(stored.GetHash())
		one, known := open[hash]
		delete(open, hash)
		switch {
		case !known:
		case stored.GetProblem() == transfer.Failed:
			failed = append(failed, one)
		default:
			err := d.explain(l, transfer.FromWord(stored.GetProblem(), stored.GetReason()))
			d.metrics.Done(telemetry.ChunkFetch, resultOf(err), int(one.Size), 0)
			done(hash, err)
		}
	}
	return slices.AppendSeq(failed, maps.Values(open)), nil
}

// sources are nodes with their addresses inside of the mesh, as far as they are known.
func (d *Disks) sources(nodes []string) []*v1.ChunkSource {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*v1.ChunkSource
	for _, node := range nodes {
		if address := d.known[node].GetAddress(); address != "" {
			all = append(all, &v1.ChunkSource{NodeUid: node, Address: address})
		}
	}
	return all
}

// relayed is how many chunks go through this server at a time.
const relayed = 4

// relay gets chunks from nodes and puts them on another.
func (d *Disks) relay(ctx context.Context, node string, chunks []object.Fetch, epoch uint64, done func(object.Hash, error)) {
	places := make(chan struct{}, relayed)
	var tasks sync.WaitGroup
	var answering sync.Mutex
	for _, one := range chunks {
		places <- struct{}{}
		tasks.Go(func() {
			defer func() { <-places }()
			err := d.relayOne(ctx, node, one, epoch)
			answering.Lock()
			defer answering.Unlock()
			done(one.Hash, err)
		})
	}
	tasks.Wait()
}

func (d *Disks) relayOne(ctx context.Context, node string, one object.Fetch, epoch uint64) error {
	pool := transfer.Memory()
	memory := pool.Get(int(min(one.Size, transfer.ChunkSize)))
	defer pool.Put(memory)
	var failures []error
	for _, from := range one.Nodes {
		data, err := d.Get(ctx, from, one.Hash, 0, 0, (*memory)[:0])
		if err == nil {
			if err = d.Put(ctx, node, one.Hash, data, epoch); err == nil || !errors.Is(err, object.ErrChunkDamaged) {
				return err
			}
		}
		failures = append(failures, err)
	}
	if len(failures) == 0 {
		return fmt.Errorf("no node is named that has the chunk: %w", object.ErrChunkMissing)
	}
	return errors.Join(failures...)
}

// explain says which node an error is about, in the words of package object.
func (d *Disks) explain(l *link, err error) error {
	if err == nil {
		return nil
	}
	for ours, theirs := range map[error]error{
		transfer.ErrMissing: object.ErrChunkMissing, transfer.ErrDamaged: object.ErrChunkDamaged, transfer.ErrFull: object.ErrDiskFull,
	} {
		if errors.Is(err, ours) {
			return fmt.Errorf("node %s: %w", d.name(l.node), theirs)
		}
	}
	if cause := context.Cause(l.ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("node %s: %w", d.name(l.node), err)
}

// resultOf is an error as metrics count it.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, object.ErrChunkMissing):
		return "missing"
	case errors.Is(err, object.ErrChunkDamaged):
		return "damaged"
	case errors.Is(err, object.ErrDiskFull):
		return "full"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "failed"
}
