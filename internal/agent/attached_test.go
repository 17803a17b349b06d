package agent

import (
	"context"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// attached is an Attach stream as the server sees it.
type attached struct {
	stream grpc.BidiStreamingServer[v1.AttachUp, v1.AttachDown]
	id     string
	end    chan struct{} // closed by the test to end the stream
}

func (s *server) Attach(stream grpc.BidiStreamingServer[v1.AttachUp, v1.AttachDown]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	a := &attached{stream: stream, id: first.GetId(), end: make(chan struct{})}
	select {
	case s.attached <- a:
	case <-stream.Context().Done():
		return context.Cause(stream.Context())
	}
	select {
	case <-a.end:
	case <-stream.Context().Done():
	}
	return nil
}
