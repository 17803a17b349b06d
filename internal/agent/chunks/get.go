package chunks

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

// leastWeight is what even a tiny chunk weighs, so that the number of those in memory is bounded, too.
const leastWeight = 64 << 10

// GetChunk implements the ChunkService, for servers.
func (c *Chunks) GetChunk(request *v1.GetChunkRequest, stream grpc.ServerStreamingServer[v1.ChunkPiece]) error {
	c.idle.asked.Store(true)
	return c.send(request, stream)
}

// send sends a chunk to a server, or to a node that copies it.
func (c *Chunks) send(request *v1.GetChunkRequest, stream grpc.ServerStreamingServer[v1.ChunkPiece]) error {
	hash, err := hashOf(request.GetHash())
	if err != nil {
		return err
	}
	size := int64(min(request.GetLength(), transfer.ChunkSize))
	if size == 0 {
		size = transfer.ChunkSize
	}
	weight := max(size, leastWeight)
	if err := c.reading.Acquire(stream.Context(), weight); err != nil {
		return transfer.Status(err)
	}
	defer c.reading.Release(weight)
	memory := transfer.Memory().Get(int(size))
	*memory, err = c.store.Get(stream.Context(), hash, request.GetOffset(), request.GetLength(), (*memory)[:0])
	c.opts.Metrics.Chunk("get", resultOf(err), len(*memory))
	if err != nil {
		transfer.Memory().Put(memory)
		return transfer.Status(err)
	}
	whole := mem.NewBuffer(memory, transfer.Memory())
	defer whole.Free()
	for begin, all := 0, whole.Len(); begin < all; begin += transfer.PieceSize {
		if err := stream.SendMsg(transfer.EncodePiece(whole, begin, min(begin+transfer.PieceSize, all))); err != nil {
			return err
		}
	}
	return nil
}

func hashOf(digest []byte) (transfer.Hash, error) {
	if len(digest) != len(transfer.Hash{}) {
		return transfer.Hash{}, status.Errorf(codes.InvalidArgument, "the digest of a chunk has %d bytes, not %d", len(transfer.Hash{}), len(digest))
	}
	return transfer.Hash(digest), nil
}
