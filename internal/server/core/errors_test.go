package core

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func TestEveryErrorHasItsCode(t *testing.T) {
	conflict := &state.ConflictError{Kind: state.KindWorkload, Name: "web"}
	for _, one := range []struct {
		err     error
		want    codes.Code
		details int
	}{
		{nil, codes.OK, 0},
		{Refuse(codes.ResourceExhausted, "full"), codes.ResourceExhausted, 0},
		{NotFound("node", "", "n1"), codes.NotFound, 0},
		{&spec.Error{Violations: []spec.Violation{{Field: "spec.image", Message: "is missing"}}}, codes.InvalidArgument, 1},
		{&Outdated{Err: conflict, Current: &v1.Workload{}}, codes.Aborted, 1},
		{conflict, codes.Aborted, 0},
		{forbidden{}, codes.PermissionDenied, 0},
		{&state.ExistsError{}, codes.AlreadyExists, 0},
		{&state.NotFoundError{}, codes.NotFound, 0},
		{&state.InvalidError{}, codes.Internal, 0},
		{&consensus.NotLeaderError{}, codes.Unavailable, 1},
		{consensus.ErrShutdown, codes.Unavailable, 0},
		{&consensus.TooLargeError{Size: 1}, codes.InvalidArgument, 0},
		{&consensus.FullError{Dir: "/d"}, codes.ResourceExhausted, 0},
		// A call that may have taken effect must not look like one that can be retried.
		{consensus.ErrUncertain, codes.Unknown, 1},
		{fmt.Errorf("%w: %w", context.Canceled, consensus.ErrUncertain), codes.Canceled, 0},
		{context.Canceled, codes.Canceled, 0},
		{context.DeadlineExceeded, codes.DeadlineExceeded, 0},
		{status.Error(codes.DataLoss, "as it is"), codes.DataLoss, 0},
		{errors.New("anything else"), codes.Internal, 0},
	} {
		for _, err := range []error{one.err, wrapped(one.err)} {
			got := status.Convert(StatusOf(err))
			if got.Code() != one.want || len(got.Details()) != one.details {
				t.Errorf("%v (%T) becomes %v, want %v with %d details", err, one.err, got, one.want, one.details)
			}
		}
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("while doing something: %w", err)
}

// forbidden is an error that carries its own code.
type forbidden struct{}

func (forbidden) Error() string { return "forbidden" }

func (forbidden) Code() codes.Code { return codes.PermissionDenied }
