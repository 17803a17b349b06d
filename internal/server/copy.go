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

type copyStream = grpc.BidiStreamingServer[v1.CopyRequest, v1.CopyResponse]

// Copy hands an archive on between the caller and the node of a replica. What is
// in it is none of the server's business.
func (s *workloads) Copy(stream copyStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return refuse(codes.InvalidArgument, "copy begins with start")
	}
	r, err := runningReplica(s.store.Snapshot(), start)
	if err != nil {
		return err
	}
	node, release, err := s.attach(stream.Context(), r.GetSpec().GetNodeUid(), &v1.Open{
		What: &v1.Open_Copy{Copy: &v1.OpenCopy{ReplicaUid: r.GetMetadata().GetUid(), Start: start}},
	})
	if err != nil {
		return err
	}
	defer release()
	// The answers are read from the agent's stream, which knows nothing of a
	// caller who leaves or may no longer be here.
	defer context.AfterFunc(stream.Context(), release)()
	s.logger.InfoContext(stream.Context(), "copy", "replica", r.GetMetadata().GetName(), "path", start.GetPath(),
		"into", start.GetInto(), "caller", caller(stream.Context()).ID.String())
	go forwardFiles(stream, node) // ends with either stream
	if err := forwardCopied(node, stream); err != nil {
		return cmp.Or(context.Cause(stream.Context()), err)
	}
	return nil
}

func forwardFiles(from copyStream, to attachStream) {
	for {
		request, err := from.Recv()
		if err != nil {
			return
		}
		if to.Send(&v1.AttachDown{Message: &v1.AttachDown_Copy{Copy: request}}) != nil {
			return
		}
	}
}

func forwardCopied(from attachStream, to copyStream) error {
	for {
		up, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return refuse(codes.Unavailable, "the node ended the stream before the copy had ended")
		}
		if err != nil {
			return refuse(codes.Unavailable, "connection to the node lost: %s", err)
		}
		switch m := up.GetMessage().(type) {
		case *v1.AttachUp_Error:
			return refuse(codes.FailedPrecondition, "%s", m.Error)
		case *v1.AttachUp_Copy:
			if err := to.Send(m.Copy); err != nil {
				return err
			}
			if m.Copy.GetDone() != nil {
				return nil
			}
		}
	}
}
