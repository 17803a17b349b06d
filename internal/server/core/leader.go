package core

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
)

// TellLeader has the leader of the cluster take a request: here if this server leads, otherwise there, on the connection that
// conn returns. A leader of an older release does not know the request, and need not hear of it.
func TellLeader[Request, Response any](
	ctx context.Context, c *Core, conn func(ctx context.Context, server string) (*grpc.ClientConn, error), request Request,
	here func(context.Context, Request) (Response, error),
	there func(v1.PeerServiceClient, context.Context, Request, ...grpc.CallOption) (Response, error),
) error {
	leader, known := c.Consensus.Leader()
	if !known {
		return consensus.ErrNotLeader
	}
	if leader.ID == c.UID {
		_, err := here(ctx, request)
		return err
	}
	to, err := conn(ctx, leader.ID)
	if err != nil {
		return err
	}
	_, err = there(v1.NewPeerServiceClient(to), ctx, request)
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}
