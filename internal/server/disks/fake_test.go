package disks_test

import (
	"crypto/tls"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object/transfer"
	"github.com/cloudless/cloudless/internal/server/disks"
)

// dial connects to the server as a member, and returns an error if the server refuses it.
func (c *cluster) dial(uid string, kind identity.Kind) error {
	conn, err := c.connect(uid, kind)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A client of gRPC speaks first, and one that is refused hears why.
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func (c *cluster) connect(uid string, kind identity.Kind) (net.Conn, error) {
	config := identity.ClientTLS(c.ca.Trust(), c.member(kind, uid).Certificate)
	config.NextProtos = []string{disks.Protocol}
	return tls.Dial("tcp", c.port.Addr().String(), config)
}

// fake is a node that takes chunks, and does not go on with them before it may.
type fake struct {
	v1.UnimplementedChunkServiceServer
	once struct{ watched, received sync.Once }
	// watched and received are closed when the server watches the disk, and when it has sent the first chunk.
	watched, received chan struct{}
	// proceed lets the node go on.
	proceed chan struct{}
	// takesSmall is whether it goes on at once with chunks that fit into one message.
	takesSmall bool
}

// fake connects such a node.
func (c *cluster) fake(uid string, takesSmall bool) *fake {
	c.t.Helper()
	f := &fake{takesSmall: takesSmall, watched: make(chan struct{}), received: make(chan struct{}), proceed: make(chan struct{})}
	server := grpc.NewServer(transfer.ServerOptions(nil)...)
	v1.RegisterChunkServiceServer(server, f)
	conn, err := c.connect(uid, identity.KindNode)
	must(c.t, err)
	listener := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.conn <- conn
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	c.t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return f
}

// WatchDisk implements the ChunkService.
func (f *fake) WatchDisk(_ *v1.WatchDiskRequest, stream grpc.ServerStreamingServer[v1.DiskReport]) error {
	if err := stream.Send(&v1.DiskReport{Status: &v1.DiskStatus{Capacity: 1, Free: 1}}); err != nil {
		return err
	}
	f.once.watched.Do(func() { close(f.watched) })
	<-stream.Context().Done()
	return nil
}

// PutChunks implements the ChunkService.
func (f *fake) PutChunks(stream grpc.BidiStreamingServer[v1.PutChunk, v1.ChunkStored]) error {
	left := map[uint64]int{}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		_, known := left[frame.GetNumber()]
		switch {
		case len(frame.GetHash()) > 0:
			left[frame.GetNumber()] = int(frame.GetSize())
		case !known:
			continue
		case len(frame.GetData()) == 0: // it is given up
			delete(left, frame.GetNumber())
			continue
		}
		if small := int(frame.GetSize()) == len(frame.GetData()) && len(frame.GetHash()) > 0; !small || !f.takesSmall {
			f.once.received.Do(func() { close(f.received) })
			select {
			case <-f.proceed:
			case <-stream.Context().Done():
				return nil
			}
		}
		if left[frame.GetNumber()] -= len(frame.GetData()); left[frame.GetNumber()] > 0 {
			continue
		}
		delete(left, frame.GetNumber())
		if err := stream.Send(&v1.ChunkStored{Number: frame.GetNumber()}); err != nil {
			return err
		}
	}
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (o *oneConn) Accept() (net.Conn, error) {
	select {
	case conn := <-o.conn:
		return conn, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *oneConn) Close() error {
	o.once.Do(func() { close(o.closed) })
	return nil
}

func (o *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
