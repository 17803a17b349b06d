package disks

import (
	"context"
	"sync"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

// lane is one stream of chunks to a node. The chunks follow each other without waiting for answers, each as a whole:
// mixing them would make all of them late. gRPC gives the streams of a connection turns, so a chunk waits only for those
// on its own lane.
type lane struct {
	link *link
	// room has a place for each chunk that is under way.
	room chan struct{}
	// turn is held by the chunk whose frames are being sent.
	turn chan struct{}
	// frames are sent by a goroutine of the lane, because gRPC blocks without regard to the context of one chunk.
	frames chan *transfer.Encoded
	// wake says that chunks were abandoned.
	wake  chan struct{}
	start sync.Once

	mu        sync.Mutex
	next      uint64
	waiting   map[uint64]chan error
	abandoned []uint64
}

func newLane(l *link, ahead int) *lane {
	return &lane{
		link: l, room: make(chan struct{}, ahead), turn: make(chan struct{}, 1),
		frames: make(chan *transfer.Encoded), wake: make(chan struct{}, 1), waiting: map[uint64]chan error{},
	}
}

// open opens the stream. If that fails the whole connection ends.
func (l *lane) open() {
	l.link.task(func() {
		stream, err := l.link.client.PutChunks(l.link.ctx)
		if err != nil {
			l.link.fail(err)
			return
		}
		l.link.task(func() { l.link.fail(l.receive(stream)) })
		l.link.fail(l.transmit(stream))
	})
}

// put returns when the node has the chunk on its disk.
func (l *lane) put(ctx context.Context, hash object.Hash, data []byte, epoch uint64) error {
	l.start.Do(l.open)
	if err := l.enter(ctx, l.room); err != nil {
		return err
	}
	defer func() { <-l.room }()
	number, answer := l.expect()
	if err := l.send(ctx, number, hash, data, epoch); err != nil {
		l.abandon(number)
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		l.forget(number)
		return context.Cause(ctx)
	case <-l.link.ctx.Done():
		return context.Cause(l.link.ctx)
	}
}

// send sends the frames of a chunk, in its turn.
func (l *lane) send(ctx context.Context, number uint64, hash object.Hash, data []byte, epoch uint64) error {
	if err := l.enter(ctx, l.turn); err != nil {
		return err
	}
	defer func() { <-l.turn }()
	first := transfer.Frame{Number: number, Hash: hash[:], Size: uint32(len(data)), Epoch: epoch}
	for frame := first; ; frame = (transfer.Frame{Number: number}) {
		n := min(len(data), transfer.PieceSize)
		frame.Data, data = data[:n], data[n:]
		encoded := frame.Encode()
		select {
		case l.frames <- encoded:
		case <-ctx.Done():
			encoded.Free()
			return context.Cause(ctx)
		case <-l.link.ctx.Done():
			encoded.Free()
			return context.Cause(l.link.ctx)
		}
		if len(data) == 0 {
			return nil
		}
	}
}

// enter waits for a place.
func (l *lane) enter(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.link.ctx.Done():
		return context.Cause(l.link.ctx)
	}
}

// expect returns the number of the next chunk, and where its answer will be.
func (l *lane) expect() (uint64, <-chan error) {
	answer := make(chan error, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.waiting[l.next] = answer
	return l.next, answer
}

// forget stops waiting for an answer.
func (l *lane) forget(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, number)
}

// abandon tells the node that the rest of a chunk does not follow.
func (l *lane) abandon(number uint64) {
	l.mu.Lock()
	delete(l.waiting, number)
	l.abandoned = append(l.abandoned, number)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lane) takeAbandoned() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.abandoned
	l.abandoned = nil
	return all
}

type sender interface{ SendMsg(any) error }

// transmit sends frames until the connection ends.
func (l *lane) transmit(stream sender) error {
	for {
		select {
		case <-l.link.ctx.Done():
			return context.Cause(l.link.ctx)
		case frame := <-l.frames:
			if err := stream.SendMsg(frame); err != nil {
				return err
			}
		case <-l.wake:
			for _, number := range l.takeAbandoned() {
				if err := stream.SendMsg(transfer.Frame{Number: number}.Encode()); err != nil {
					return err
				}
			}
		}
	}
}

type receiver interface {
	Recv() (*v1.ChunkStored, error)
}

// receive passes answers on until the connection ends.
func (l *lane) receive(stream receiver) error {
	for {
		stored, err := stream.Recv()
		if err != nil {
			return err
		}
		l.mu.Lock()
		answer := l.waiting[stored.GetNumber()]
		delete(l.waiting, stored.GetNumber())
		l.mu.Unlock()
		if answer != nil {
			answer <- transfer.FromWord(stored.GetProblem(), stored.GetReason())
		}
	}
}
