package chunks

import (
	"context"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

const (
	// listPage is how many chunks one answer lists at most.
	listPage = 65536
	// scrubRate is how many bytes a second are read to check them, unless the server says otherwise.
	scrubRate = 50 << 20
)

// DeleteChunks implements the ChunkService.
func (c *Chunks) DeleteChunks(ctx context.Context, request *v1.DeleteChunksRequest) (*v1.DeleteChunksResponse, error) {
	hashes := make([]transfer.Hash, len(request.GetHashes()))
	for i, digest := range request.GetHashes() {
		var err error
		if hashes[i], err = hashOf(digest); err != nil {
			return nil, err
		}
	}
	deleted, err := c.store.Delete(ctx, hashes, request.GetEpoch())
	if err != nil {
		return nil, transfer.Status(err)
	}
	answer := &v1.DeleteChunksResponse{Deleted: make([][]byte, len(deleted))}
	for i := range deleted {
		answer.Deleted[i] = deleted[i][:]
	}
	return answer, nil
}

// ListChunks implements the ChunkService.
func (c *Chunks) ListChunks(ctx context.Context, request *v1.ListChunksRequest) (*v1.ListChunksResponse, error) {
	var after transfer.Hash
	if len(request.GetAfter()) > 0 {
		var err error
		if after, err = hashOf(request.GetAfter()); err != nil {
			return nil, err
		}
	}
	limit := int(request.GetLimit())
	if limit == 0 || limit > listPage {
		limit = listPage
	}
	page, last, err := c.store.List(ctx, after, limit)
	if err != nil {
		return nil, transfer.Status(err)
	}
	answer := &v1.ListChunksResponse{Hashes: make([]byte, 0, len(page)*len(after)), Epochs: make([]uint64, 0, len(page)), Last: last}
	for _, one := range page {
		answer.Hashes = append(answer.Hashes, one.Hash[:]...)
		answer.Epochs = append(answer.Epochs, one.Epoch)
	}
	return answer, nil
}

// ScrubChunks implements the ChunkService.
func (c *Chunks) ScrubChunks(request *v1.ScrubChunksRequest, stream grpc.ServerStreamingServer[v1.ScrubProgress]) error {
	rate := request.GetRate()
	if rate <= 0 {
		rate = scrubRate
	}
	now := &v1.ScrubProgress{}
	var broken error
	err := c.store.Scrub(stream.Context(), rate, func(checked, total, damaged int64) {
		now = &v1.ScrubProgress{Checked: checked, Total: total, Damaged: damaged}
		if broken == nil {
			broken = stream.Send(now)
		}
	})
	if err == nil {
		err = broken
	}
	if err != nil {
		return transfer.Status(err)
	}
	return stream.Send(&v1.ScrubProgress{Checked: now.GetChecked(), Total: now.GetTotal(), Damaged: now.GetDamaged(), Done: true})
}
