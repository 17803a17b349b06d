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
)

// inside is a call that happens inside a running replica: the server finds the
// replica and hands messages on between the caller and its node. What is in them
// is none of its business.
type inside[Request, Response any] struct {
	name, what string // of the call, and of what it does, in words
	where      inReplica
	open       func(replicaUID string) *v1.Open
	down       func(*Request) *v1.AttachDown
	// up takes an answer out of what the node says, nil if it is none, and tells
	// whether it is the last one.
	up func(*v1.AttachUp) (answer *Response, last bool)
	// check refuses what may not come after the first message; it may be nil.
	check func(*Request) error
}

// relay serves the call until the node has given its last answer.
func (c inside[Request, Response]) relay(s *Streams, stream grpc.BidiStreamingServer[Request, Response], about ...any) error {
	snap, err := s.Consensus.Read(stream.Context()) // which has what was started a moment ago
	if err != nil {
		return err
	}
	r, err := runningReplica(snap, c.where)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	node, release, err := s.attach(ctx, r.GetSpec().GetNodeUid(), c.open(r.GetMetadata().GetUid()))
	if err != nil {
		return err
	}
	defer release()
	// The answers are read from the agent's stream, which knows nothing of a
	// caller who leaves or may no longer be here.
	defer context.AfterFunc(ctx, release)()
	s.Logger.InfoContext(ctx, c.name, append(about, "replica", r.GetMetadata().GetName(), "caller", core.Caller(ctx).ID.String())...)
	go c.forward(stream, node, cancel) // ends with either stream
	if err := c.answer(node, stream); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// forward hands on what the caller says, until that is something wrong.
func (c inside[Request, Response]) forward(from grpc.BidiStreamingServer[Request, Response], to AgentStream, refuse func(error)) {
	for {
		request, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return // the caller has no more to say
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

func (c inside[Request, Response]) answer(from AgentStream, to grpc.BidiStreamingServer[Request, Response]) error {
	for {
		said, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return core.Refuse(codes.Unavailable, "the node ended the stream before the %s had ended", c.what)
		}
		if err != nil {
			return core.Refuse(codes.Unavailable, "connection to the node lost: %s", err)
		}
		if refusal, ok := said.GetMessage().(*v1.AttachUp_Error); ok {
			return core.Refuse(codes.FailedPrecondition, "%s", refusal.Error)
		}
		answer, last := c.up(said)
		if answer == nil {
			continue
		}
		if err := to.Send(answer); err != nil || last {
			return err
		}
	}
}
