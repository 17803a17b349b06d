package api

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRemovedNodeNeedsTheReasonAndTheEpoch(t *testing.T) {
	with := func(detail *errdetails.ErrorInfo) error {
		s, err := status.New(codes.Unauthenticated, "node box is not a member any more").WithDetails(detail)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Errorf("session: %w", s.Err())
	}
	if epoch, removed := RemovedNode(with(NodeRemoved(7))); !removed || epoch != 7 {
		t.Errorf("a removal in epoch 7 is read as removed %t in epoch %d", removed, epoch)
	}
	for what, err := range map[string]error{
		"no error":              nil,
		"an error of no server": errors.New("connection refused"),
		"a refusal only":        status.Error(codes.Unauthenticated, "not a member"),
		"another reason":        with(&errdetails.ErrorInfo{Reason: "REMOVED", Domain: errorDomain, Metadata: map[string]string{keyEpoch: "7"}}),
		"another domain":        with(&errdetails.ErrorInfo{Reason: reasonNodeRemoved, Domain: "proxy", Metadata: map[string]string{keyEpoch: "7"}}),
		"no epoch":              with(&errdetails.ErrorInfo{Reason: reasonNodeRemoved, Domain: errorDomain}),
	} {
		if _, removed := RemovedNode(err); removed {
			t.Errorf("%s is taken for a removal", what)
		}
	}
}
