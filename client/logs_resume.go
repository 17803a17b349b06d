package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

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

// logFollower receives a log, and knows how far each replica's has come.
type logFollower struct {
	client  *Client
	request *cloudlessv1.LogsRequest
	stream  cloudlessv1.WorkloadService_LogsClient
	places  map[string]*logPlace
	// called is when the log was asked for first, opened when a server answered last, and broken since when none does.
	called, opened, broken time.Time
}

// logPlace counts the entries of the newest time, because entries may share theirs.
type logPlace struct {
	last         time.Time
	count, again int
}

func (c *Client) followLogs(ctx context.Context, request *cloudlessv1.LogsRequest) (*logFollower, error) {
	f := &logFollower{client: c, request: proto.CloneOf(request), places: map[string]*logPlace{}, called: time.Now()}
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

// next returns the next entry that was not returned before.
func (f *logFollower) next(ctx context.Context) (*cloudlessv1.LogEntry, error) {
	for {
		entry, err := f.stream.Recv()
		if err == nil {
			f.broken = time.Time{}
			if f.isNew(entry) {
				return entry, nil
			}
			continue
		}
		if f.broken.IsZero() || time.Since(f.opened) > followProof {
			f.broken = time.Now()
		}
		if err := f.resume(ctx, err); err != nil {
			return nil, err
		}
	}
}

// resume goes on at a server that is there, after an error that may mean that the last one is not.
func (f *logFollower) resume(ctx context.Context, err error) error {
	for f.request.GetFollow() && status.Code(err) == codes.Unavailable && time.Since(f.broken) < followPatience {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(followPause):
		}
		f.rewind()
		if err = f.open(ctx); err == nil {
			return nil
		}
	}
	return err
}

// rewind asks for what comes after the entries that were returned. Who wanted no old ones and has got none is given
// those since he called.
func (f *logFollower) rewind() {
	var since time.Time
	for _, place := range f.places {
		place.again, place.count = max(place.again, place.count), 0
		if since.IsZero() || place.last.Before(since) {
			since = place.last
		}
	}
	if since.IsZero() && f.request.Tail != nil && f.request.GetTail() == 0 {
		since = f.called
	}
	if !since.IsZero() {
		f.request.Since, f.request.Tail = timestamppb.New(since), nil
	}
}

func (f *logFollower) isNew(entry *cloudlessv1.LogEntry) bool {
	if entry.GetError() != "" {
		return true
	}
	place := f.places[entry.GetReplica()]
	if place == nil {
		place = &logPlace{}
		f.places[entry.GetReplica()] = place
	}
	at := entry.GetTime().AsTime()
	if at.Before(place.last) && place.again > 0 {
		return false
	}
	if !at.Equal(place.last) {
		place.last, place.count, place.again = at, 0, 0
	}
	place.count++
	return place.count > place.again
}
