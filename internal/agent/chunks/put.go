package chunks

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

const (
	// openChunks is how many chunks of a stream may be unfinished at a time.
	openChunks = 16
	// storedAtOnce is how many chunks of a stream are being stored at a time. The store makes them durable together.
	storedAtOnce = 512
)

// PutChunks implements the ChunkService.
func (c *Chunks) PutChunks(stream grpc.BidiStreamingServer[v1.PutChunk, v1.ChunkStored]) error {
	p := &puts{
		Chunks: c, ctx: stream.Context(), open: map[uint64]*incoming{},
		places: make(chan struct{}, storedAtOnce), answers: make(chan *v1.ChunkStored, storedAtOnce),
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		broken := false
		for answer := range p.answers {
			broken = broken || stream.Send(answer) != nil // the stream ends by itself then
		}
	})
	err := p.receive(stream)
	p.stores.Wait()
	close(p.answers)
	answering.Wait()
	for _, one := range p.open {
		one.free()
	}
	return err
}

// puts are the chunks that arrive on one stream.
type puts struct {
	*Chunks
	ctx     context.Context
	open    map[uint64]*incoming // by their numbers
	places  chan struct{}
	stores  sync.WaitGroup
	answers chan *v1.ChunkStored
}

// incoming is a chunk of which a part has arrived.
type incoming struct {
	number uint64
	hash   transfer.Hash
	epoch  uint64
	memory *[]byte
	have   int
}

func (i *incoming) free() { transfer.Memory().Put(i.memory) }

// receive takes frames until the stream ends. Chunks that are not complete then are dropped.
func (p *puts) receive(stream interface{ RecvMsg(any) error }) error {
	arrival := transfer.Arrival{Into: p.into}
	for {
		err := stream.RecvMsg(&arrival)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = p.take(&arrival.Frame)
		}
		if err != nil {
			return err
		}
	}
}

// into returns where the data of a frame belongs; nil for the rest of a chunk that was given up.
func (p *puts) into(f *transfer.Frame, n int) ([]byte, error) {
	if len(f.Hash) > 0 {
		if err := p.begin(f); err != nil {
			return nil, err
		}
	}
	one := p.open[f.Number]
	if one == nil {
		return nil, nil
	}
	if one.have+n > len(*one.memory) {
		return nil, status.Errorf(codes.InvalidArgument, "more than the %d bytes of chunk %x arrive", len(*one.memory), one.hash)
	}
	return (*one.memory)[one.have : one.have+n], nil
}

// begin makes room for a chunk.
func (p *puts) begin(f *transfer.Frame) error {
	switch {
	case p.open[f.Number] != nil:
		return status.Errorf(codes.InvalidArgument, "two chunks have the number %d", f.Number)
	case f.Size > transfer.ChunkSize:
		return status.Errorf(codes.InvalidArgument, "a chunk has at most %d bytes", transfer.ChunkSize)
	case len(p.open) >= openChunks:
		return status.Errorf(codes.InvalidArgument, "more than %d chunks of one stream are not complete", openChunks)
	}
	p.open[f.Number] = &incoming{number: f.Number, hash: transfer.Hash(f.Hash), epoch: f.Epoch, memory: transfer.Memory().Get(int(f.Size))}
	return nil
}

// take notes what has arrived, and stores a chunk that is complete.
func (p *puts) take(f *transfer.Frame) error {
	if len(f.Data) == 0 && len(f.Hash) > 0 {
		if err := p.begin(f); err != nil {
			return err
		}
	}
	one := p.open[f.Number]
	if one == nil {
		return nil
	}
	one.have += len(f.Data)
	complete := one.have == len(*one.memory)
	if !complete && (len(f.Data) > 0 || len(f.Hash) > 0) {
		return nil
	}
	delete(p.open, f.Number)
	if !complete { // the caller has given it up
		one.free()
		return nil
	}
	return p.enqueue(one)
}

// enqueue stores a chunk, without waiting for it unless too many are being stored. Only the store ends such a wait, so
// chunks that are not complete never wait for each other.
func (p *puts) enqueue(one *incoming) error {
	weight := int64(one.have)
	if err := p.storing.Acquire(p.ctx, weight); err != nil {
		one.free()
		return err
	}
	select {
	case p.places <- struct{}{}:
	case <-p.ctx.Done():
		p.storing.Release(weight)
		one.free()
		return p.ctx.Err()
	}
	p.idle.asked.Store(true)
	p.stores.Go(func() {
		err := p.store.Put(p.ctx, one.hash, *one.memory, one.epoch)
		p.opts.Metrics.Chunk("put", resultOf(err), one.have)
		one.free()
		p.storing.Release(weight)
		answer := &v1.ChunkStored{Number: one.number}
		answer.Problem, answer.Reason = transfer.Word(err)
		p.answers <- answer
		<-p.places
	})
	return nil
}

// resultOf is an error as metrics count it.
func resultOf(err error) string {
	if word, _ := transfer.Word(err); word != "" {
		return word
	}
	return "done"
}
