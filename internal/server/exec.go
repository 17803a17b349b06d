package server

import (
	"cmp"
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func (s *workloads) Exec(stream grpc.BidiStreamingServer[v1.ExecRequest, v1.ExecResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return refuse(codes.InvalidArgument, "exec begins with start")
	}
	r, err := runningReplica(s.store.Snapshot(), start)
	if err != nil {
		return err
	}
	down, release, err := s.attach(stream.Context(), r.GetSpec().GetNodeUid(), &v1.Open{
		What: &v1.Open_Exec{Exec: &v1.OpenExec{ReplicaUid: r.GetMetadata().GetUid(), Start: start}},
	})
	if err != nil {
		return err
	}
	defer release()
	// The output is read from the agent's stream, which knows nothing of a
	// caller who leaves or may no longer be here.
	defer context.AfterFunc(stream.Context(), release)()
	s.logger.InfoContext(stream.Context(), "exec", "replica", r.GetMetadata().GetName(), "caller", caller(stream.Context()).ID.String())
	go forwardInput(stream, down) // ends with either stream
	if err := forwardOutput(down, stream); err != nil {
		return cmp.Or(context.Cause(stream.Context()), err)
	}
	return nil
}

func forwardInput(from grpc.BidiStreamingServer[v1.ExecRequest, v1.ExecResponse], to attachStream) {
	for {
		request, err := from.Recv()
		if err != nil {
			return
		}
		if to.Send(&v1.AttachDown{Message: &v1.AttachDown_Exec{Exec: request}}) != nil {
			return
		}
	}
}

func forwardOutput(from attachStream, to grpc.BidiStreamingServer[v1.ExecRequest, v1.ExecResponse]) error {
	for {
		up, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return refuse(codes.Unavailable, "the node ended the stream before the command had ended")
		}
		if err != nil {
			return refuse(codes.Unavailable, "connection to the node lost: %s", err)
		}
		switch m := up.GetMessage().(type) {
		case *v1.AttachUp_Error:
			return refuse(codes.FailedPrecondition, "%s", m.Error)
		case *v1.AttachUp_Exec:
			if err := to.Send(m.Exec); err != nil {
				return err
			}
			if m.Exec.GetExit() != nil {
				return nil
			}
		}
	}
}
