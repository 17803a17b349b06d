package streams

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// Copy copies files into or out of a running replica.
func (s *Streams) Copy(stream grpc.BidiStreamingServer[v1.CopyRequest, v1.CopyResponse]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) { // without any message there is no start either
		return err
	}
	start := first.GetStart()
	if start == nil {
		return core.Refuse(codes.InvalidArgument, "copy begins with start")
	}
	return call[v1.CopyRequest, v1.CopyResponse]{
		name: "copy", what: "copy", find: running(start), reason: reasonCopy, message: copyMessage(start),
		open: func(uid string) *v1.Open {
			return &v1.Open{What: &v1.Open_Copy{Copy: &v1.OpenCopy{ReplicaUid: uid, Start: start}}}
		},
		down: func(r *v1.CopyRequest) *v1.AttachDown {
			return &v1.AttachDown{Message: &v1.AttachDown_Copy{Copy: r}}
		},
		up: func(m *v1.AttachUp) (*v1.CopyResponse, bool) {
			return m.GetCopy(), m.GetCopy().GetDone() != nil
		},
	}.relay(s, stream, "path", start.GetPath(), "into", start.GetInto())
}
