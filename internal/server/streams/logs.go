package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Logs merges the output of a workload's replicas. Entries that exist already are merged
// by time. While following, entries are sent as they arrive. Only positions decide which
// entries are sent, so that a wrong clock can neither drop nor repeat a line.
func (s *Streams) Logs(request *v1.LogsRequest, stream grpc.ServerStreamingServer[v1.LogEntry]) error {
	if err := checkSpan(request); err != nil {
		return err
	}
	if err := checkPositions(request); err != nil {
		return err
	}
	snap, err := s.Consensus.Read(stream.Context()) // it includes workloads that were created a moment ago
	if err != nil {
		return err
	}
	target, err := s.selectLogs(snap, request)
	if err != nil {
		return err
	}
	// The first output may take long. Headers tell the client at once that its call was accepted.
	if err := core.BeginStream(stream); err != nil {
		return err
	}
	if request.GetFollow() {
		if until := request.GetUntil(); until == nil || until.AsTime().After(time.Now()) {
			return s.followLogs(request, target, stream)
		}
		request = proto.CloneOf(request)
		request.Follow = false // all of it exists already
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var sources []<-chan *v1.LogEntry
	chosen, _ := chooseReplicas(target.replicas(s.Store.Snapshot()), request)
	for _, r := range chosen {
		sources = append(sources, s.logSource(ctx, r, openLogs(request, r, false)))
	}
	return mergeLogs(sources, stream.Send)
}

// checkSpan refuses an empty time span.
func checkSpan(request *v1.LogsRequest) error {
	since, until := request.GetSince(), request.GetUntil()
	if since == nil || until == nil || !since.AsTime().After(until.AsTime()) {
		return nil
	}
	return &spec.Error{Violations: []spec.Violation{{Field: "until", Message: fmt.Sprintf("%s is before %s, where the output begins",
		until.AsTime().Format(time.RFC3339), since.AsTime().Format(time.RFC3339))}}}
}

// logSelection selects the replicas of one workload, or one of them. The workload may be
// deleted already: its ended replicas are kept as long as their logs.
type logSelection struct {
	uid     string
	replica string
}

// selectLogs finds the workload and the replica that a request names.
func (s *Streams) selectLogs(snap *state.Snapshot, request *v1.LogsRequest) (logSelection, error) {
	namespace := cmp.Or(request.GetNamespace(), spec.DefaultNamespace)
	workload, replica := resolve(snap, namespace, request)
	target := logSelection{replica: replica}
	if w := snap.WorkloadByName(namespace, workload); w != nil {
		if err := s.hasOutput(snap, w); err != nil {
			return target, err
		}
		target.uid = w.GetMetadata().GetUid()
	} else {
		target.uid = deletedWorkload(snap, namespace, workload)
	}
	if target.uid == "" {
		return target, notfound.Workload(snap, namespace, workload)
	}
	if target.replica == "" {
		return target, nil
	}
	r := snap.ReplicaByName(namespace, target.replica)
	if r.GetSpec().GetWorkload() != workload {
		return target, core.Refuse(codes.NotFound, "workload %s has no replica %s; see: %s", workload, target.replica, spec.Hint(namespace, "cloudless ps --all"))
	}
	if snap.Node(r.GetSpec().GetNodeUid()) == nil && r.GetSpec().GetNodeUid() != "" {
		return target, core.Refuse(codes.FailedPrecondition, "the log of replica %s is gone: it was on node %s, which was removed from the cluster",
			target.replica, r.GetSpec().GetNode())
	}
	target.uid = r.GetSpec().GetWorkloadUid() // it may belong to an earlier workload of that name
	return target, nil
}

// deletedWorkload returns the uid of the newest deleted workload with a name, according to
// its remaining replicas; empty if none remains.
func deletedWorkload(snap *state.Snapshot, namespace, name string) (uid string) {
	var newest string
	for r := range snap.Replicas(namespace, "") {
		if r.GetSpec().GetWorkload() == name && r.GetMetadata().GetUid() > newest {
			newest, uid = r.GetMetadata().GetUid(), r.GetSpec().GetWorkloadUid()
		}
	}
	return uid
}

// includes reports whether a replica is selected and may have a log. Replicas that were
// stopped before they ran have none.
func (t logSelection) includes(r *v1.Replica) bool {
	never := r.GetStatus().GetPhase() == spec.PhaseStopped && !hasRun(r)
	return r.GetSpec().GetWorkloadUid() == t.uid && r.GetSpec().GetNodeUid() != "" && !never &&
		(t.replica == "" || t.replica == r.GetMetadata().GetName())
}

// hasRun reports whether a replica is known to have run.
func hasRun(r *v1.Replica) bool {
	st := r.GetStatus()
	return st.GetPhase() == spec.PhaseRunning || st.GetStartTime() != nil || st.GetLastExit() != nil || st.GetRestarts() > 0
}

// replicas returns the selected replicas. A removed node has taken its logs along.
func (t logSelection) replicas(snap *state.Snapshot) []*v1.Replica {
	var all []*v1.Replica
	for r := range snap.ReplicasOf(t.uid) {
		if t.includes(r) && snap.Node(r.GetSpec().GetNodeUid()) != nil {
			all = append(all, r)
		}
	}
	return all
}

// logSource reads one replica's log from its node in the background, until the log or ctx
// ends.
func (s *Streams) logSource(ctx context.Context, r *v1.Replica, open *v1.OpenLogs) <-chan *v1.LogEntry {
	entries := make(chan *v1.LogEntry, 64)
	go func() {
		defer close(entries)
		err := s.readLog(ctx, r, open, func(e *v1.LogEntry) error {
			select {
			case entries <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if err != nil && ctx.Err() == nil {
			select {
			case entries <- &v1.LogEntry{Replica: r.GetMetadata().GetName(), Error: fmt.Sprintf("log of %s: %s", r.GetMetadata().GetName(), err)}:
			case <-ctx.Done():
			}
		}
	}()
	return entries
}

// readLog reads one replica's log from its node until it ends.
func (s *Streams) readLog(ctx context.Context, r *v1.Replica, open *v1.OpenLogs, emit func(*v1.LogEntry) error) error {
	stream, release, err := s.attach(ctx, r.GetSpec().GetNodeUid(), &v1.Open{What: &v1.Open_Logs{Logs: proto.CloneOf(open)}}) // a clone, because the session sends it later
	if err != nil {
		return err
	}
	defer release()
	// Recv ends only with the agent's context, so the stream is released when the reader leaves.
	defer context.AfterFunc(ctx, release)()
	for first := true; ; first = false {
		up, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch m := up.GetMessage().(type) {
		case *v1.AttachUp_Error:
			if !hasRun(s.Store.Snapshot().Replica(r.GetMetadata().GetUid())) {
				return nil // its node has not started it yet, so there is no log
			}
			return core.Refuse(codes.FailedPrecondition, "%s", m.Error)
		case *v1.AttachUp_Log:
			if first && open.GetAfter() != "" && !m.Log.GetMark() {
				return core.Refuse(codes.FailedPrecondition, "node %s runs an older version, which cannot resume a log; upgrade it", r.GetSpec().GetNode())
			}
			m.Log.Replica = r.GetMetadata().GetName()
			if err := emit(m.Log); err != nil {
				return err
			}
		}
	}
}
