package enroll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/peering"
	"github.com/cloudless/cloudless/internal/sleep"
)

// A machine asks again if the answer is lost. With the same token and key it gets the answer for the same member, and
// no other use of the token is spent.
const (
	askPatience = 30 * time.Second
	askPause    = 500 * time.Millisecond
)

// errAnswerLost says that the cluster may have taken this machine.
var errAnswerLost = errors.New("its answer was lost, join again with the same token and data folder")

// connect connects to a server of the token's cluster. The token is not sent before the server has proved itself.
func connect(ctx context.Context, address string, token identity.JoinToken) (*grpc.ClientConn, error) {
	if err := peering.Reach(ctx, address, identity.JoinTLS(token.CA())); err != nil {
		return nil, fmt.Errorf("join the cluster at %s: %w", address, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(identity.JoinTLS(token.CA()))))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return conn, nil
}

// ask asks a cluster to take this machine, until it has answered.
func ask(ctx context.Context, conn *grpc.ClientConn, address string, request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	connected := waitConnected(ctx, conn)
	for end := time.Now().Add(askPatience); ; {
		answer, err := v1.NewEnrollmentServiceClient(conn).Enroll(ctx, request, grpc.WaitForReady(false))
		if err == nil {
			return answer, nil
		}
		said := status.Convert(err).Message()
		if !connected || !answerLost(err) {
			return nil, fmt.Errorf("join the cluster at %s: %s", address, said)
		}
		if time.Now().After(end) || sleep.For(ctx, askPause) != nil {
			return nil, fmt.Errorf("join the cluster at %s: %w: %s", address, errAnswerLost, said)
		}
	}
}

// waitConnected waits until a server is connected or cannot be.
func waitConnected(ctx context.Context, conn *grpc.ClientConn) bool {
	conn.Connect()
	for {
		switch now := conn.GetState(); now {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		default:
			if !conn.WaitForStateChange(ctx, now) {
				return false
			}
		}
	}
}

// answerLost reports whether a server may have done what it was asked for.
func answerLost(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown: // Unknown if leadership was lost meanwhile
		return true
	}
	return false
}
