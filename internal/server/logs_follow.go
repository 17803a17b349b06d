package server

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// untilGrace is what the last lines before the end of a followed log may take.
const untilGrace = 2 * time.Second

// followPause is how long to wait before a broken log is followed again, followHush
// how long a reader is not told of it.
const (
	followPause = 200 * time.Millisecond
	followHush  = 5 * time.Second
)

// followLogs follows the replicas that are there and those that come later,
// until the caller leaves, the wished end has passed, or the workload and all
// its replicas are gone.
func (s *workloads) followLogs(request *v1.LogsRequest, target logWorkload, stream grpc.ServerStreamingServer[v1.LogEntry]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var over <-chan time.Time
	if until := request.GetUntil(); until != nil {
		timer := time.NewTimer(time.Until(until.AsTime()) + untilGrace)
		defer timer.Stop()
		over = timer.C
	}
	merged := make(chan *v1.LogEntry)
	ended := make(chan struct{})
	following := map[string]bool{}
	active := 0
	follow := func(r *v1.Replica, request *v1.LogsRequest) {
		uid := r.GetMetadata().GetUid()
		if following[uid] || !target.wants(r) {
			return
		}
		following[uid] = true
		active++
		go s.followReplica(ctx, r, request, merged, ended)
	}
	snap, feed := s.store.Subscribe()
	for _, r := range target.replicas(snap) {
		follow(r, request)
	}
	newcomers := s.newcomers(ctx, feed, target)
	for {
		if active == 0 && s.store.Snapshot().Workload(target.uid) == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return nil
		case e := <-merged:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-ended:
			active--
		case r, ok := <-newcomers:
			if !ok {
				return refuse(codes.Unavailable, "following the log fell too far behind; begin again")
			}
			if r == nil {
				continue // the workload is gone
			}
			// A replica that is new has nothing from before: show all of it.
			follow(r, &v1.LogsRequest{Follow: true, Until: request.GetUntil()})
		}
	}
}

// followReplica follows one log to its end. When the agent goes away it waits for
// it, and goes on after the last line that it has passed on. It says so only if
// that takes long: nothing is lost by it.
func (s *Server) followReplica(ctx context.Context, r *v1.Replica, request *v1.LogsRequest, merged chan<- *v1.LogEntry, ended chan<- struct{}) {
	defer func() {
		select {
		case ended <- struct{}{}:
		case <-ctx.Done():
		}
	}()
	pass := func(e *v1.LogEntry) error {
		select {
		case merged <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	node := r.GetSpec().GetNodeUid()
	place := bookmark{request: proto.CloneOf(request)}
	var absence absence
	complain := func(why string) {
		absence.said = true
		_ = pass(&v1.LogEntry{Replica: r.GetMetadata().GetName(), Error: why})
	}
	for {
		began := time.Now()
		err := s.readLog(ctx, r, place.next(), func(e *v1.LogEntry) error {
			absence.end()
			if !place.isNew(e) {
				return nil
			}
			return pass(e)
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		if isRefusal(err) {
			complain(err.Error())
			return
		}
		if time.Since(began) > followHush {
			absence.end() // it was there, and had nothing to say
		}
		hush := absence.hush()
		if hush < 0 && !absence.said { // the node is there, and its log is not
			complain(status.Convert(err).Message())
		}
		if !s.awaitNode(ctx, node, hush, complain) {
			return
		}
		select {
		case <-time.After(followPause): // a node that comes and goes must not keep us busy
		case <-ctx.Done():
			return
		}
	}
}

// absence is a time in which nothing is heard of a log.
type absence struct {
	since time.Time
	said  bool // the reader was told of it
}

// hush is how long nothing is to be said of an absence that lasts; negative if it
// has lasted too long for that.
func (a *absence) hush() time.Duration {
	if a.since.IsZero() {
		a.since = time.Now()
	}
	return followHush - time.Since(a.since)
}

func (a *absence) end() { *a = absence{} }

// awaitNode waits for a node's session and reports whether there can be one. It
// complains, once, when the hush is over.
func (s *Server) awaitNode(ctx context.Context, node string, hush time.Duration, complain func(why string)) bool {
	var patience <-chan time.Time
	if hush >= 0 {
		timer := time.NewTimer(hush)
		defer timer.Stop()
		patience = timer.C
	}
	for {
		current, changed := s.sessions.look(node)
		if current != nil {
			return true
		}
		n := s.store.Snapshot().Node(node)
		if n == nil {
			complain("its node was removed from the cluster")
			return false
		}
		select {
		case <-changed:
		case <-patience:
			complain(fmt.Sprintf("node %s does not answer; it goes on when the node is back", n.GetMetadata().GetName()))
		case <-ctx.Done():
			return false
		}
	}
}

// bookmark is how far a log has been read, so that reading can go on there:
// lines may share their time stamp, so those of the last one are counted.
type bookmark struct {
	request *v1.LogsRequest
	last    time.Time
	count   int // lines passed on that have the time last
	again   int // lines with the time last that will come once more
}

// next is what to ask for now.
func (b *bookmark) next() *v1.LogsRequest {
	if !b.last.IsZero() {
		b.request.Since, b.request.Tail = timestamppb.New(b.last), nil
		b.again, b.count = max(b.again, b.count), 0
	}
	return b.request
}

// isNew counts a line and reports whether it has not been passed on before.
func (b *bookmark) isNew(e *v1.LogEntry) bool {
	if e.GetError() != "" {
		return true // no line, and does not come once more
	}
	at := e.GetTime().AsTime()
	if !at.Equal(b.last) {
		b.last, b.count, b.again = at, 0, 0
	}
	b.count++
	return b.count > b.again
}

// newcomers gives every replica of the target that changes, and nil when its
// workload is gone. It is closed when changes were lost.
func (s *Server) newcomers(ctx context.Context, feed *state.Subscription, target logWorkload) <-chan *v1.Replica {
	found := make(chan *v1.Replica)
	go func() {
		defer close(found)
		for {
			changes, err := feed.Next(ctx)
			if err != nil {
				return
			}
			for _, c := range changes {
				r, isReplica := c.New.(*v1.Replica)
				gone := c.Kind == state.KindWorkload && c.New == nil && c.Old.GetMetadata().GetUid() == target.uid
				if !gone && !(isReplica && target.wants(r)) {
					continue
				}
				select {
				case found <- r:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return found
}
