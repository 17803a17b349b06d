package server

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// The kinds of changes that a watch reports.
const (
	changeAdded   = "added"
	changeChanged = "changed"
	changeRemoved = "removed"
	changeSynced  = "synced"
)

// watch follows the state: it calls start with the first snapshot, then change for every
// batch of changes, with a snapshot that contains it. It ends with errBehind if the watcher
// is too slow.
func (s *Server) watch(ctx context.Context, start func(*state.Snapshot) error, change func(*state.Snapshot, []state.Change) error) error {
	// Like every read, a watch begins with everything that was acknowledged before.
	if _, err := s.Consensus.Read(ctx); err != nil {
		return err
	}
	feed := s.Store.Follow()
	if err := start(feed.Newest().Snapshot); err != nil {
		return err
	}
	for {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		if news.Resync {
			return errBehind
		}
		if err := change(news.Snapshot, news.Changes); err != nil {
			return err
		}
	}
}

// errBehind ends a watch that has lost changes. The caller has to begin again, because it
// may have acted on what it received.
var errBehind = core.Refuse(codes.Unavailable, "this watch fell too far behind; begin again")

// tracker turns "this object may differ" into added, changed and removed, and drops objects
// that look the same as before.
type tracker[T proto.Message] struct {
	sent map[string]T
	send func(change string, object T) error
}

func newTracker[T proto.Message](send func(string, T) error) *tracker[T] {
	return &tracker[T]{sent: map[string]T{}, send: send}
}

func (t *tracker[T]) present(uid string, object T) error {
	old, known := t.sent[uid]
	if known && proto.Equal(old, object) {
		return nil
	}
	t.sent[uid] = object
	if known {
		return t.send(changeChanged, object)
	}
	return t.send(changeAdded, object)
}

func (t *tracker[T]) absent(uid string) error {
	old, known := t.sent[uid]
	if !known {
		return nil
	}
	delete(t.sent, uid)
	return t.send(changeRemoved, old)
}

func (s *workloads) WatchWorkloads(request *v1.WatchWorkloadsRequest, stream grpc.ServerStreamingServer[v1.WorkloadChange]) error {
	return s.watch(stream.Context(), selection[*v1.Workload]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
		also: func(w *v1.Workload) bool {
			return request.GetName() == "" || request.GetName() == w.GetMetadata().GetName()
		},
	}, func(change string, w *v1.Workload) error {
		return stream.Send(&v1.WorkloadChange{Change: change, Workload: w})
	})
}

// touchedWorkloads returns the uids of those that may look different after the changes.
func touchedWorkloads(snap *state.Snapshot, changes []state.Change) map[string]bool {
	touched := map[string]bool{}
	for _, c := range changes {
		if c.Kind == state.KindNode {
			for r := range affectedReplicas(snap, c) {
				touched[r.GetSpec().GetWorkloadUid()] = true
			}
		}
		for _, m := range []state.Object{c.Old, c.New} {
			switch o := m.(type) {
			case *v1.Workload:
				touched[o.GetMetadata().GetUid()] = true
				if owner := o.GetStatus().GetOwnerUid(); owner != "" {
					touched[owner] = true
				}
			case *v1.Replica:
				touched[o.GetSpec().GetWorkloadUid()] = true
			}
		}
	}
	return touched
}

func (s *workloads) WatchReplicas(request *v1.WatchReplicasRequest, stream grpc.ServerStreamingServer[v1.ReplicaChange]) error {
	namespace := request.GetSelection().GetNamespace()
	matches, err := s.replicas.matcher(stream.Context(), selection[*v1.Replica]{
		namespace: namespace, labels: request.GetSelection().GetLabels(),
		also: func(r *v1.Replica) bool {
			return (request.GetWorkload() == "" || request.GetWorkload() == r.GetSpec().GetWorkload()) &&
				(request.GetNode() == "" || request.GetNode() == r.GetSpec().GetNode())
		},
	})
	if err != nil {
		return err
	}
	out := newTracker(func(change string, r *v1.Replica) error {
		return stream.Send(&v1.ReplicaChange{Change: change, Replica: r})
	})
	show := func(snap *state.Snapshot, r *v1.Replica) error {
		return out.present(r.GetMetadata().GetUid(), s.presentReplica(snap, r))
	}
	return s.watchReplicas(stream.Context(), func(snap *state.Snapshot) error {
		for r := range snap.Replicas(namespace, "") {
			if matches(r) {
				if err := show(snap, r); err != nil {
					return err
				}
			}
		}
		return stream.Send(&v1.ReplicaChange{Change: changeSynced})
	}, func(changes []state.Change) error {
		return eachChanged(s.presentReplicas(s.Store.Snapshot(), changes), out, matches)
	}, func(snap *state.Snapshot) error {
		for uid := range out.sent {
			if r := snap.Replica(uid); r != nil && matches(r) {
				if err := show(snap, r); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// eachChanged passes every changed object of one kind to the tracker.
func eachChanged[T state.Object](changes []state.Change, out *tracker[T], matches func(T) bool) error {
	for _, c := range changes {
		if now, ok := c.New.(T); ok && matches(now) {
			if err := out.present(now.GetMetadata().GetUid(), now); err != nil {
				return err
			}
			continue
		}
		if old, ok := c.Old.(T); ok {
			if err := out.absent(old.GetMetadata().GetUid()); err != nil {
				return err
			}
		}
	}
	return nil
}

// watchReplicas is watch for objects that also show progress: refresh is called
// with every replica that may look different.
func (s *Server) watchReplicas(ctx context.Context, start func(*state.Snapshot) error, change func([]state.Change) error, refresh func(*state.Snapshot) error) error {
	if _, err := s.Consensus.Read(ctx); err != nil { // as watch does
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	progressed := s.sessions.Progressed()
	feed := s.Store.Follow()
	begin := feed.Newest().Snapshot
	type batch struct {
		state.News
		err error
	}
	batches := make(chan batch)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer cancel()
	reader.Go(func() {
		for {
			news, err := feed.Next(ctx)
			select {
			case batches <- batch{news, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	if err := start(begin); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-progressed:
			progressed = s.sessions.Progressed()
			if err := refresh(s.Store.Snapshot()); err != nil {
				return err
			}
		case b := <-batches:
			if b.err != nil {
				return b.err
			}
			if b.Resync {
				return errBehind
			}
			if err := change(b.Changes); err != nil {
				return err
			}
		}
	}
}
