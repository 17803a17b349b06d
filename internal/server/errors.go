package server

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// refusal is an answer that is not a failure of ours: the call asked for
// something that cannot be.
type refusal struct {
	code    codes.Code
	message string
}

func (r *refusal) Error() string { return r.message }

func refuse(code codes.Code, format string, args ...any) error {
	return &refusal{code: code, message: fmt.Sprintf(format, args...)}
}

// isRefusal reports whether trying again would give the same answer.
func isRefusal(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.code != codes.Unavailable
}

func notFound(kind, namespace, name string) error {
	if namespace == "" {
		return refuse(codes.NotFound, "%s %s does not exist", kind, name)
	}
	return refuse(codes.NotFound, "%s %s does not exist in namespace %s", kind, name, namespace)
}

// outdated is a refused update, with the object as it is now.
type outdated struct {
	err     *state.ConflictError
	current proto.Message
}

func (o *outdated) Error() string { return o.err.Error() }

// statusOf maps every error of this package to its code.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code, details := classify(err)
	st := status.New(code, err.Error())
	if len(details) > 0 {
		if with, detailErr := st.WithDetails(details...); detailErr == nil {
			st = with
		}
	}
	return st.Err()
}

func classify(err error) (codes.Code, []protoadapt.MessageV1) {
	if e, ok := errors.AsType[*refusal](err); ok {
		return e.code, nil
	}
	if e, ok := errors.AsType[*spec.Error](err); ok {
		return codes.InvalidArgument, []protoadapt.MessageV1{badRequest(e)}
	}
	if e, ok := errors.AsType[*outdated](err); ok {
		return codes.Aborted, []protoadapt.MessageV1{protoadapt.MessageV1Of(e.current)}
	}
	if _, ok := errors.AsType[unknownJoinToken](err); ok {
		return codes.Unauthenticated, nil
	}
	if _, ok := errors.AsType[*forbidden](err); ok {
		return codes.PermissionDenied, nil
	}
	if _, ok := errors.AsType[*state.ConflictError](err); ok {
		return codes.Aborted, nil
	}
	if _, ok := errors.AsType[*state.ExistsError](err); ok {
		return codes.AlreadyExists, nil
	}
	if _, ok := errors.AsType[*state.NotFoundError](err); ok {
		return codes.NotFound, nil
	}
	if _, ok := errors.AsType[*consensus.TooLargeError](err); ok {
		return codes.InvalidArgument, nil
	}
	if _, ok := errors.AsType[*consensus.FullError](err); ok {
		return codes.ResourceExhausted, nil
	}
	switch {
	case errors.Is(err, consensus.ErrNotLeader): // a server that passed the call on may try another one
		return codes.Unavailable, []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reasonNotLeader, Domain: "cloudless"}}
	case errors.Is(err, consensus.ErrShutdown):
		return codes.Unavailable, nil
	case errors.Is(err, context.Canceled):
		return codes.Canceled, nil
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded, nil
	case errors.Is(err, consensus.ErrUncertain):
		// Not Unavailable, which clients take as leave to repeat the call.
		return codes.Unknown, []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reasonUncertain, Domain: "cloudless"}}
	}
	return codes.Internal, nil
}

func badRequest(e *spec.Error) *errdetails.BadRequest {
	detail := &errdetails.BadRequest{}
	for _, v := range e.Violations {
		detail.FieldViolations = append(detail.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: v.Field, Description: v.Message,
		})
	}
	return detail
}
