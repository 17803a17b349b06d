package transfer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// How much may be under way to a receiver that has not read it: on one stream, and on one connection. With fixed windows
// gRPC does not measure the connection. A large chunk fits, so that a connection of 4 MiB within a round trip is fast.
const (
	streamWindow = ChunkSize
	connWindow   = 4 * ChunkSize
)

// Every node has a connection to every server, most of them idle: the buffer for reading is small, because gRPC reads
// large frames past it, and an idle connection has none for writing.
const (
	readBuffer  = 1 << 10
	writeBuffer = 64 << 10
)

// A peer that does not answer a ping is dead.
const (
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// handshakeTimeout is how long a new connection may take until it can be used.
	handshakeTimeout = 10 * time.Second
)

// memory holds whole chunks.
var memory = mem.NewTieredBufferPool(4<<10, 64<<10, 512<<10, ChunkSize)

// Memory is a pool of buffers for chunks of up to ChunkSize.
func Memory() mem.BufferPool { return memory }

// ServerOptions are for the end of a connection that has the chunks. Without credentials, the connections must be
// authenticated already.
func ServerOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return []grpc.ServerOption{
		grpc.Creds(creds), grpc.ForceServerCodecV2(Codec()), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.WaitForHandlers(true), // they use a store that is closed afterwards
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2, PermitWithoutStream: true}),
	}
}

// DialOptions are for the end that asks for chunks.
func DialOptions(creds credentials.TransportCredentials) []grpc.DialOption {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec())),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithReadBufferSize(readBuffer), grpc.WithWriteBufferSize(writeBuffer),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithDisableRetry(), // a call that is made again would be made on another connection
		grpc.WithDisableServiceConfig(),
	}
}

// errUsed ends attempts to use a connection again that has ended.
var errUsed = errors.New("the connection has ended")

// ClientOn makes calls on a connection that is authenticated already. When it ends, so do all calls.
func ClientOn(conn net.Conn) (*grpc.ClientConn, error) {
	var used atomic.Bool
	return grpc.NewClient("passthrough:///chunks", append(DialOptions(nil),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errUsed
			}
			return conn, nil
		}))...)
}

// Get appends a part of a chunk to buf; a length of 0 is up to its end. It checks no digest.
func Get(ctx context.Context, client v1.ChunkServiceClient, hash Hash, offset, length uint32, buf []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream if it is not read to its end
	defer cancel()
	stream, err := client.GetChunk(ctx, &v1.GetChunkRequest{Hash: hash[:], Offset: offset, Length: length})
	if err != nil {
		return buf, FromStatus(err)
	}
	most := ChunkSize
	if length != 0 {
		most = int(length)
	}
	into := &Appender{Bytes: buf, Most: len(buf) + most}
	for {
		err := stream.RecvMsg(into)
		if errors.Is(err, io.EOF) {
			return into.Bytes, nil
		}
		if err != nil {
			return into.Bytes[:len(buf)], FromStatus(err)
		}
	}
}
