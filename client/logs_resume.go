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
	followPause    = 200 * time.Millisecond
	followPatience = 30 * time.Second // without a word
)

// logFollower receives a log, and knows how far each replica's has come.
type logFollower struct {
	client  *Client
	request *cloudlessv1.LogsRequest
	stream  cloudlessv1.WorkloadService_LogsClient
	places  map[string]*logPlace
	heard   time.Time // when something came last
}

// logPlace counts the entries of the newest time, because entries may share theirs.
type logPlace struct {
	last         time.Time
	count, again int
}

func (c *Client) followLogs(ctx context.Context, request *cloudlessv1.LogsRequest) (*logFollower, error) {
	f := &logFollower{client: c, request: proto.CloneOf(request), places: map[string]*logPlace{}}
	return f, f.open(ctx)
}

func (f *logFollower) open(ctx context.Context) (err error) {
	f.stream, err = f.client.Workloads().Logs(ctx, f.request)
	return err
}

// next returns the next entry that was not returned before.
func (f *logFollower) next(ctx context.Context) (*cloudlessv1.LogEntry, error) {
	for {
		entry, err := f.stream.Recv()
		if err == nil {
			f.heard = time.Now()
			if f.isNew(entry) {
				return entry, nil
			}
			continue
		}
		if !f.request.GetFollow() || f.heard.IsZero() || status.Code(err) != codes.Unavailable || time.Since(f.heard) > followPatience {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(followPause):
		}
		f.rewind()
		if again := f.open(ctx); again != nil && status.Code(again) != codes.Unavailable {
			return nil, again
		}
	}
}

// rewind asks for what comes after the entries that were returned.
func (f *logFollower) rewind() {
	var since time.Time
	for _, place := range f.places {
		place.again, place.count = max(place.again, place.count), 0
		if since.IsZero() || place.last.Before(since) {
			since = place.last
		}
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
