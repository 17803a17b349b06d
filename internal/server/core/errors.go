package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Refusal is an answer to an impossible request. It is not a failure of the server.
type Refusal struct {
	code    codes.Code
	message string
	// narrow is the message for callers who may not see all namespaces; empty if it is the same.
	narrow string
	kind   string
}

func (r *Refusal) Error() string { return r.message }

// Refuse returns a refusal with a message.
func Refuse(code codes.Code, format string, args ...any) error {
	return &Refusal{code: code, message: fmt.Sprintf(format, args...)}
}

// For returns the refusal without what it says about other namespaces, unless the caller may see them all.
func For(p Principal, err error) error {
	r, ok := errors.AsType[*Refusal](err)
	if !ok || r.narrow == "" || p.Sees(r.kind, "") {
		return err
	}
	return &Refusal{code: r.code, message: r.narrow}
}

// Elsewhere adds to a refusal what is in other namespaces, for callers who may see objects of a kind in all of them.
func Elsewhere(kind string, refusal error, format string, args ...any) error {
	r := refusal.(*Refusal)
	return &Refusal{code: r.code, message: fmt.Sprintf(format, args...), narrow: r.message, kind: kind}
}

// IsRefusal reports whether a retry would give the same answer.
func IsRefusal(err error) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && r.code != codes.Unavailable
}

// Reasons in the details of errors, for clients and other servers.
const (
	// ReasonNotLeader: nothing was done, because the called server does not lead.
	ReasonNotLeader = "NOT_LEADER"
	// ReasonUncertain: it is unknown whether the call took effect.
	ReasonUncertain = "UNCERTAIN"
	// ReasonNoLeader: this server reaches no leader, but another one may.
	ReasonNoLeader = "NO_LEADER"
	// ReasonRemoved: the calling server was removed from the cluster.
	ReasonRemoved = "REMOVED"
	// ReasonNotMember: the calling server is not a member of the cluster.
	ReasonNotMember = "NOT_MEMBER"
	// ReasonNotEmpty: the bucket has objects.
	ReasonNotEmpty = "NOT_EMPTY"
)

// NotFound refuses a name that does not exist.
func NotFound(kind, namespace, name string) error {
	if namespace == "" {
		return Refuse(codes.NotFound, "%s %s does not exist", kind, name)
	}
	return Refuse(codes.NotFound, "%s %s does not exist in namespace %s", kind, name, namespace)
}

// coded is an error that carries its own code.
type coded interface {
	error
	Code() codes.Code
}

// Outdated is a refused update, with the object as it is now.
type Outdated struct {
	Err     *state.ConflictError
	Current proto.Message
}

func (o *Outdated) Error() string { return o.Err.Error() }

// StatusOf maps every error of the server to its code.
func StatusOf(err error) error {
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
	if e, ok := errors.AsType[*Refusal](err); ok {
		return e.code, nil
	}
	if e, ok := errors.AsType[*spec.Error](err); ok {
		return codes.InvalidArgument, []protoadapt.MessageV1{badRequest(e)}
	}
	if e, ok := errors.AsType[*Outdated](err); ok {
		return codes.Aborted, []protoadapt.MessageV1{protoadapt.MessageV1Of(e.Current)}
	}
	if e, ok := errors.AsType[coded](err); ok {
		return e.Code(), nil
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
	case errors.Is(err, consensus.ErrNotLeader): // a server that relayed the call may try another one
		return codes.Unavailable, []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: ReasonNotLeader, Domain: "cloudless"}}
	case errors.Is(err, consensus.ErrShutdown):
		return codes.Unavailable, nil
	case errors.Is(err, context.Canceled):
		return codes.Canceled, nil
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded, nil
	case errors.Is(err, consensus.ErrUncertain):
		// Not Unavailable: clients retry such calls.
		return codes.Unknown, []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: ReasonUncertain, Domain: "cloudless"}}
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

// WithReason returns an error with a reason for clients and other servers.
func WithReason(reason, message string) error {
	return WithReasons(codes.Unavailable, message, reason)
}

func WithReasons(code codes.Code, message string, reasons ...string) error {
	details := make([]*errdetails.ErrorInfo, len(reasons))
	for i, reason := range reasons {
		details[i] = &errdetails.ErrorInfo{Reason: reason, Domain: "cloudless"}
	}
	return WithDetails(code, message, details...)
}

func WithDetails(code codes.Code, message string, details ...*errdetails.ErrorInfo) error {
	st := status.New(code, message)
	for _, detail := range details {
		if with, err := st.WithDetails(detail); err == nil {
			st = with
		}
	}
	return st.Err()
}

// HasReason reports whether an error carries a reason in its details.
func HasReason(err error, reason string) bool {
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	return slices.ContainsFunc(s.Details(), func(detail any) bool {
		info, ok := detail.(*errdetails.ErrorInfo)
		return ok && info.GetReason() == reason
	})
}
