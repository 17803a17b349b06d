package streams

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// Exec runs a command in a running replica.
func (s *Streams) Exec(stream grpc.BidiStreamingServer[v1.ExecRequest, v1.ExecResponse]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) { // without any message there is no start either
		return err
	}
	start := first.GetStart()
	if start == nil {
		return core.Refuse(codes.InvalidArgument, "exec begins with start")
	}
	return call[v1.ExecRequest, v1.ExecResponse]{
		name: "exec", what: "command", find: running(start), reason: reasonExec, message: execMessage(start),
		open: func(uid string) *v1.Open {
			return &v1.Open{What: &v1.Open_Exec{Exec: &v1.OpenExec{ReplicaUid: uid, Start: start}}}
		},
		down: func(r *v1.ExecRequest) *v1.AttachDown {
			return &v1.AttachDown{Message: &v1.AttachDown_Exec{Exec: r}}
		},
		up: func(m *v1.AttachUp) (*v1.ExecResponse, bool) {
			return m.GetExec(), m.GetExec().GetExit() != nil
		},
		check: func(r *v1.ExecRequest) error { return checkExec(start, r) },
	}.relay(s, stream)
}

// checkExec refuses messages that the agent would ignore.
func checkExec(start *v1.ExecStart, r *v1.ExecRequest) error {
	switch r.GetMessage().(type) {
	case nil:
		return core.Refuse(codes.InvalidArgument, "a message of exec says nothing: it has start, stdin, closeStdin, resize or signal")
	case *v1.ExecRequest_Start:
		return core.Refuse(codes.InvalidArgument, "start is the first message of exec, and only the first: each command has a call of its own")
	case *v1.ExecRequest_Stdin:
		if !start.GetStdin() {
			return core.Refuse(codes.InvalidArgument, "the command has no standard input: set stdin in start")
		}
	}
	return nil
}
