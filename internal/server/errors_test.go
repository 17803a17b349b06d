package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/replicas"
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
		{refuse(codes.ResourceExhausted, "full"), codes.ResourceExhausted, 0},
		{notFound("node", "", "n1"), codes.NotFound, 0},
		{&spec.Error{Violations: []spec.Violation{{Field: "spec.image", Message: "is missing"}}}, codes.InvalidArgument, 1},
		{&outdated{err: conflict, current: &v1.Workload{}}, codes.Aborted, 1},
		{conflict, codes.Aborted, 0},
		{&forbidden{}, codes.PermissionDenied, 0},
		{&state.ExistsError{}, codes.AlreadyExists, 0},
		{&state.NotFoundError{}, codes.NotFound, 0},
		{&state.InvalidError{}, codes.Internal, 0},
		{&consensus.NotLeaderError{}, codes.Unavailable, 1},
		{consensus.ErrShutdown, codes.Unavailable, 0},
		{&consensus.TooLargeError{Size: 1}, codes.InvalidArgument, 0},
		{&consensus.FullError{Dir: "/d"}, codes.ResourceExhausted, 0},
		// A call that may have been made must not look like one that can be repeated.
		{consensus.ErrUncertain, codes.Unknown, 1},
		{fmt.Errorf("%w: %w", context.Canceled, consensus.ErrUncertain), codes.Canceled, 0},
		{context.Canceled, codes.Canceled, 0},
		{context.DeadlineExceeded, codes.DeadlineExceeded, 0},
		{status.Error(codes.DataLoss, "as it is"), codes.DataLoss, 0},
		{errors.New("anything else"), codes.Internal, 0},
	} {
		for _, err := range []error{one.err, wrapped(one.err)} {
			got := status.Convert(statusOf(err))
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

// brokenPlacement has a bug.
type brokenPlacement struct{ replicas.Placement }

func (brokenPlacement) Explain(*state.Snapshot, string) []*v1.NodeReason {
	panic("a bug in the explanation")
}

func TestPanicOfOneCallEndsNothingElse(t *testing.T) {
	c := newCluster(t, func(o *Options) { o.Placement = brokenPlacement{} })
	op := c.as(roleOperator)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool { return snap.Count(state.KindReplica) == 1 })
	_, err = op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.Internal, "its log says more", "(request ")
	if strings.Contains(status.Convert(err).Message(), "a bug in the explanation") {
		t.Error("the caller is told what only the log should say")
	}
	if !strings.Contains(c.log.String(), "a bug in the explanation") {
		t.Error("the log does not say what happened")
	}
	_, err = op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{})
	must(t, err)
}
