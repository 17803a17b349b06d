package client

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A log that is followed goes on at another server when the one that gave it is gone.
const (
	followPause = 200 * time.Millisecond
	// followPatience is how long a server is looked for.
	followPatience = 30 * time.Second
	// followProof is how long a stream must have lasted for its server to have been there.
	followProof = 5 * time.Second
)

// logFollower receives a log, and knows how far each replica's was read.
type logFollower struct {
	client    *Client
	request   *cloudlessv1.LogsRequest
	stream    cloudlessv1.WorkloadService_LogsClient
	positions map[string]string // by the name of the replica
	// blind is whether lines came without a position: the server is of an older version, and nothing can be resumed.
	blind bool
	// opened is when a server answered last, and broken since when none does.
	opened, broken time.Time
}

func (c *Client) followLogs(ctx context.Context, request *cloudlessv1.LogsRequest) (*logFollower, error) {
	f := &logFollower{client: c, request: proto.CloneOf(request), positions: map[string]string{}}
	f.request.Marks = f.request.GetMarks() || f.request.GetFollow()
	maps.Copy(f.positions, request.GetResume().GetReplicas())
	return f, f.open(ctx)
}

// open returns when a server has answered, which it does before there is anything to tell.
func (f *logFollower) open(ctx context.Context) error {
	stream, err := f.client.Workloads().Logs(ctx, f.request)
	if err != nil {
		return err
	}
	if _, err := stream.Header(); err != nil {
		return err
	}
	f.stream, f.opened = stream, time.Now()
	return nil
}

// next returns the next entry, at whatever server it is.
func (f *logFollower) next(ctx context.Context) (*cloudlessv1.LogEntry, error) {
	for {
		entry, err := f.stream.Recv()
		if err == nil {
			f.broken = time.Time{}
			f.note(entry)
			return entry, nil
		}
		if f.broken.IsZero() || time.Since(f.opened) > followProof {
			f.broken = time.Now()
		}
		if err := f.resume(ctx, err); err != nil {
			return nil, err
		}
	}
}

// note remembers where reading resumes behind the entry.
func (f *logFollower) note(entry *cloudlessv1.LogEntry) {
	switch {
	case entry.GetPosition() != "":
		f.positions[entry.GetReplica()] = entry.GetPosition()
	case entry.GetError() == "":
		f.blind = true
	}
}

// resume goes on at a server that is there, after an error that may mean that the last one is not.
func (f *logFollower) resume(ctx context.Context, err error) error {
	for f.request.GetFollow() && !f.blind && status.Code(err) == codes.Unavailable && time.Since(f.broken) < followPatience {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(followPause):
		}
		f.request.Resume = &cloudlessv1.LogPositions{Replicas: f.positions}
		if err = f.open(ctx); err == nil {
			return nil
		}
	}
	return err
}
