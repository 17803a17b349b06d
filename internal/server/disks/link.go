package disks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

var (
	// ErrGone says that the connection of a node has ended during a call.
	ErrGone     = errors.New("its connection has ended")
	errReplaced = errors.New("it has another one now")
	errSilent   = errors.New("it does not say how its disk is")
)

// How large a chunk of the lane for small ones is at most, and how many chunks may be under way on each lane. The disk
// makes many small chunks durable at once.
const (
	smallChunk = 64 << 10
	smallAhead = 512
	largeAhead = 8
)

// link is a connection to a node.
type link struct {
	node   string
	conn   *grpc.ClientConn
	client v1.ChunkServiceClient
	// ctx ends with the connection.
	ctx          context.Context
	end          context.CancelCauseFunc
	small, large *lane

	mu     sync.Mutex
	closed bool
	tasks  sync.WaitGroup
}

func newLink(ctx context.Context, node string, raw net.Conn) (*link, error) {
	conn, err := transfer.ClientOn(raw)
	if err != nil {
		return nil, err
	}
	l := &link{node: node, conn: conn, client: v1.NewChunkServiceClient(conn)}
	l.ctx, l.end = context.WithCancelCause(ctx)
	l.small, l.large = newLane(l, smallAhead), newLane(l, largeAhead)
	return l, nil
}

// run follows the state of the node's disk until the connection ends.
func (l *link) run(d *Disks) error {
	err := l.watch(d)
	l.fail(err)
	_ = l.conn.Close()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.tasks.Wait()
	return context.Cause(l.ctx)
}

// fail ends the connection for a reason. Only the first reason counts.
func (l *link) fail(why error) { l.end(fmt.Errorf("%w: %w", ErrGone, why)) }

// task runs a part of the link, which must end with ctx. It does nothing once the link has ended.
func (l *link) task(run func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.tasks.Go(run)
	}
}

func (l *link) watch(d *Disks) error {
	silent := time.AfterFunc(firstReport, func() { l.fail(errSilent) })
	defer silent.Stop()
	stream, err := l.client.WatchDisk(l.ctx, &v1.WatchDiskRequest{})
	if err != nil {
		return err
	}
	report, err := stream.Recv()
	if err != nil {
		return err
	}
	silent.Stop()
	d.adopt(l)
	defer d.drop(l)
	for {
		d.reported(l, report)
		if report, err = stream.Recv(); err != nil {
			return err
		}
	}
}

// lane is the one of the link's lanes for chunks of a size.
func (l *link) lane(size int) *lane {
	if size <= smallChunk {
		return l.small
	}
	return l.large
}
