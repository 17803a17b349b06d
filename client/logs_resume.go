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

// A followed log resumes at another server if its server dies.
const (
	followPause = 200 * time.Millisecond
	// followPatience is how long to look for a server.
	followPatience = 30 * time.Second
	// followProof is how long a stream must have lasted to prove that its server was healthy.
	followProof = 5 * time.Second
)

// logFollower receives a log, and knows how far each replica's log was read.
type logFollower struct {
	client    *Client
	request   *cloudlessv1.LogsRequest
	stream    cloudlessv1.WorkloadService_LogsClient
	positions map[string]string // by replica name
	// blind is whether lines came without a position: the server is of an older version, and the log cannot resume.
	blind bool
	// opened is when a server last answered, and broken since when none does.
	opened, broken time.Time
}

func (c *Client) followLogs(ctx context.Context, request *cloudlessv1.LogsRequest) (*logFollower, error) {
	f := &logFollower{client: c, request: proto.CloneOf(request), positions: map[string]string{}}
	f.request.Marks = f.request.GetMarks() || f.request.GetFollow()
	maps.Copy(f.positions, request.GetResume().GetReplicas())
	return f, f.open(ctx)
}

// open returns when a server has answered, which it does before the first line.
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

// next returns the next entry, from any server.
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

// note remembers where reading resumes after the entry.
func (f *logFollower) note(entry *cloudlessv1.LogEntry) {
	switch {
	case entry.GetPosition() != "":
		f.positions[entry.GetReplica()] = entry.GetPosition()
	case entry.GetError() == "":
		f.blind = true
	}
}

// resume continues at another server, after an error that may mean that the last one is gone.
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
