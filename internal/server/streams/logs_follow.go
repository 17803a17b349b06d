package streams

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// untilGrace is how long the last lines before the requested end of a followed log may take.
const untilGrace = 2 * time.Second

const (
	// retryPause is the wait before a broken log stream is opened again.
	retryPause = 200 * time.Millisecond
	// quietPeriod is how long a reader is not told about a broken log stream.
	quietPeriod = 5 * time.Second
)

// followLogs follows existing and new replicas until the caller leaves, the requested end
// has passed, or the workload and all its replicas are gone.
func (s *Streams) followLogs(request *v1.LogsRequest, target logSelection, stream grpc.ServerStreamingServer[v1.LogEntry]) error {
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
		if following[uid] || !target.includes(r) {
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
		following[r.GetMetadata().GetUid()] = true // a change must not make it look new
	}
	for _, r := range chosen {
		follow(r, false)
	}
	changed := s.changedReplicas(ctx, feed, target)
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
		case r, ok := <-changed:
			if !ok {
				return core.Refuse(codes.Unavailable, "following the log fell too far behind; begin again")
			}
			if r == nil {
				continue // the workload is gone
			}
			follow(r, true) // all of its log is new
		}
	}
}

// sendMarks names the replicas that a reader begins with, before their nodes have answered,
// and those that were left out. If the reader resumes later, only other replicas are new.
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

// followReplica follows one log to its end. If the agent disconnects, it waits for the
// agent and resumes after the last line that it has sent. It reports this to the reader
// only if it takes long, because no line is lost.
func (s *Streams) followReplica(ctx context.Context, r *v1.Replica, open *v1.OpenLogs, merged chan<- *v1.LogEntry, ended chan<- struct{}) {
	defer func() {
		select {
		case ended <- struct{}{}:
		case <-ctx.Done():
		}
	}()
	send := func(e *v1.LogEntry) error {
		select {
		case merged <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	node := r.GetSpec().GetNodeUid()
	progress := readProgress{open: open}
	var outage outage
	complain := func(why string) {
		outage.reported = true
		_ = send(&v1.LogEntry{Replica: r.GetMetadata().GetName(), Error: why})
	}
	for {
		began := time.Now()
		err := s.readLog(ctx, r, progress.open, func(e *v1.LogEntry) error {
			outage.end()
			progress.note(e)
			return send(e)
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		if core.IsRefusal(err) {
			complain(err.Error())
			return
		}
		if !progress.resume() {
			complain("its node runs an older version, which cannot say where its log was left: lines may be missing here")
		}
		if time.Since(began) > quietPeriod {
			outage.end() // it was connected, and there was no output
		}
		quiet := outage.quiet()
		switch {
		case quiet >= 0 || outage.reported:
		case status.Code(err) == codes.Unavailable: // its session breaks again and again
			complain(silent(r.GetSpec().GetNode()))
		default: // the node is connected, but its log cannot be read
			complain(status.Convert(err).Message())
		}
		if !s.awaitNode(ctx, node, quiet, complain) {
			return
		}
		select {
		case <-time.After(retryPause): // a node that reconnects all the time must not keep this loop busy
		case <-ctx.Done():
			return
		}
	}
}

// outage is a period in which a log cannot be read.
type outage struct {
	since    time.Time
	reported bool // to the reader
}

// quiet begins the outage, unless it has begun, and returns how much longer the reader is
// not told about it; negative if that time is over.
func (o *outage) quiet() time.Duration {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	return quietPeriod - time.Since(o.since)
}

func (o *outage) end() { *o = outage{} }

// silent is what a reader is told while a node is away.
func silent(node string) string {
	return "node " + node + " does not answer; its log continues when the node is back"
}

// awaitNode waits for a node's session and returns false if there will be none. It
// complains, once, when the quiet time is over.
func (s *Streams) awaitNode(ctx context.Context, node string, quiet time.Duration, complain func(why string)) bool {
	var overdue <-chan time.Time
	if quiet >= 0 {
		timer := time.NewTimer(quiet)
		defer timer.Stop()
		overdue = timer.C
	}
	for {
		connected, changed := s.connected(node)
		if connected {
			return true
		}
		n := s.Store.Snapshot().Node(node)
		if n == nil {
			return false // it was removed from the cluster
		}
		select {
		case <-changed:
		case <-overdue:
			complain(silent(n.GetMetadata().GetName()))
		case <-ctx.Done():
			return false
		}
	}
}

// changedReplicas yields every selected replica that changes, and nil when the workload is
// gone. The channel is closed when changes were lost.
func (s *Streams) changedReplicas(ctx context.Context, feed *state.Follower, target logSelection) <-chan *v1.Replica {
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
				if !gone && !(isReplica && target.includes(r)) {
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
