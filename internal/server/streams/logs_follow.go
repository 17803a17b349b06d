package streams

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
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
func (s *Streams) followLogs(request *v1.LogsRequest, target logWorkload, stream grpc.ServerStreamingServer[v1.LogEntry]) error {
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
	follow := func(r *v1.Replica, isNew bool) {
		uid := r.GetMetadata().GetUid()
		if following[uid] || !target.wants(r) {
			return
		}
		following[uid] = true
		active++
		go s.followReplica(ctx, r, openLogs(request, r, isNew), merged, ended)
	}
	feed := s.Store.Follow()
	chosen, others := chooseReplicas(target.replicas(feed.Newest().Snapshot), request)
	if err := sendMarks(stream, request, chosen, others); err != nil {
		return err
	}
	for _, r := range others {
		following[r.GetMetadata().GetUid()] = true // it is not new when something about it changes
	}
	for _, r := range chosen {
		follow(r, false)
	}
	newcomers := s.newcomers(ctx, feed, target)
	for {
		if active == 0 && s.Store.Snapshot().Workload(target.uid) == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return nil
		case e := <-merged:
			if e.GetMark() && !request.GetMarks() {
				continue
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-ended:
			active--
		case r, ok := <-newcomers:
			if !ok {
				return core.Refuse(codes.Unavailable, "following the log fell too far behind; begin again")
			}
			if r == nil {
				continue // the workload is gone
			}
			follow(r, true) // it has nothing from before: show all of it
		}
	}
}

// sendMarks names the replicas that a reader begins with, before their nodes have said anything, and those that it is
// not to have: should the reader resume, only what is neither is new.
func sendMarks(stream grpc.ServerStreamingServer[v1.LogEntry], request *v1.LogsRequest, chosen, others []*v1.Replica) error {
	if !request.GetMarks() || request.GetResume() != nil {
		return nil
	}
	for i, r := range slices.Concat(chosen, others) {
		mark := &v1.LogEntry{Replica: r.GetMetadata().GetName(), Mark: true, Position: positionStart}
		if i >= len(chosen) {
			mark.Position = positionLeftOut
		}
		if err := stream.Send(mark); err != nil {
			return err
		}
	}
	return nil
}

// followReplica follows one log to its end. When the agent goes away it waits for
// it, and resumes behind the last line that it has passed on. It says so only if
// that takes long: nothing is lost by it.
func (s *Streams) followReplica(ctx context.Context, r *v1.Replica, open *v1.OpenLogs, merged chan<- *v1.LogEntry, ended chan<- struct{}) {
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
	place := logPlace{open: open}
	var absence absence
	complain := func(why string) {
		absence.said = true
		_ = pass(&v1.LogEntry{Replica: r.GetMetadata().GetName(), Error: why})
	}
	for {
		began := time.Now()
		err := s.readLog(ctx, r, place.open, func(e *v1.LogEntry) error {
			absence.end()
			place.note(e)
			return pass(e)
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		if core.IsRefusal(err) {
			complain(err.Error())
			return
		}
		if !place.resume() {
			complain("its node runs an older version, which cannot say where its log was left: lines may be missing here")
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
func (s *Streams) awaitNode(ctx context.Context, node string, hush time.Duration, complain func(why string)) bool {
	var patience <-chan time.Time
	if hush >= 0 {
		timer := time.NewTimer(hush)
		defer timer.Stop()
		patience = timer.C
	}
	for {
		connected, changed := s.connected(node)
		if connected {
			return true
		}
		n := s.Store.Snapshot().Node(node)
		if n == nil {
			return false // removed from the cluster, with all that was on it
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

// newcomers gives every replica of the target that changes, and nil when its
// workload is gone. It is closed when changes were lost.
func (s *Streams) newcomers(ctx context.Context, feed *state.Follower, target logWorkload) <-chan *v1.Replica {
	found := make(chan *v1.Replica)
	go func() {
		defer close(found)
		for {
			news, err := feed.Next(ctx)
			if err != nil || news.Resync {
				return
			}
			for _, c := range news.Changes {
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
