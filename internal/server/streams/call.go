package streams

import (
	"cmp"
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// call is a call that acts inside a running replica. The server finds the replica and
// passes messages between the caller and the replica's node. It does not interpret them.
type call[Request, Response any] struct {
	// name is the name of the call in logs, and what is its name in errors.
	name, what string
	// reason and message are those of the event that records the call.
	reason, message string
	find            func(*state.Snapshot) (*v1.Replica, error)
	open            func(replicaUID string) *v1.Open
	down            func(*Request) *v1.AttachDown
	// up extracts the answer from a message of the node, and reports whether it is the
	// last one. The answer is nil if the message has none.
	up func(*v1.AttachUp) (answer *Response, last bool)
	// check refuses messages that must not follow the first one; it may be nil.
	check func(*Request) error
}

// relay passes messages until the node has sent its last answer.
func (c call[Request, Response]) relay(s *Streams, stream grpc.BidiStreamingServer[Request, Response], about ...any) error {
	snap, err := s.Consensus.Read(stream.Context()) // it includes workloads that were created a moment ago
	if err != nil {
		return err
	}
	r, err := c.find(snap)
	if err != nil {
		return err
	}
	if err := s.record(stream.Context(), r, c.reason, c.message); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	node, release, err := s.attach(ctx, r.GetSpec().GetNodeUid(), c.open(r.GetMetadata().GetUid()))
	if err != nil {
		return err
	}
	defer release()
	// Answers are read from the agent's stream, which does not end by itself when the
	// caller leaves or loses its permission.
	defer context.AfterFunc(ctx, release)()
	s.Logger.InfoContext(ctx, c.name, append(about, "replica", r.GetMetadata().GetName(), "caller", core.Caller(ctx).ID.String())...)
	go c.forward(stream, node, cancel) // ends with either stream
	if err := c.answer(node, stream); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// forward passes messages from the caller to the node until one is refused.
func (c call[Request, Response]) forward(from grpc.BidiStreamingServer[Request, Response], to AgentStream, refuse func(error)) {
	for {
		request, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return // the caller has sent its last message
		}
		if err == nil && c.check != nil {
			err = c.check(request)
		}
		if err != nil {
			refuse(err)
			return
		}
		if to.Send(c.down(request)) != nil {
			return
		}
	}
}

// answer passes answers from the node to the caller.
func (c call[Request, Response]) answer(from AgentStream, to grpc.BidiStreamingServer[Request, Response]) error {
	for {
		message, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return core.Refuse(codes.Unavailable, "the node ended the stream before the %s had ended", c.what)
		}
		if err != nil {
			return core.Refuse(codes.Unavailable, "connection to the node lost: %s", err)
		}
		if refusal, ok := message.GetMessage().(*v1.AttachUp_Error); ok {
			return core.Refuse(codes.FailedPrecondition, "%s", refusal.Error)
		}
		answer, last := c.up(message)
		if answer == nil {
			continue
		}
		if err := to.Send(answer); err != nil || last {
			return err
		}
	}
}
