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
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
)

// Logs merges the output of a workload's replicas. What is already written is
// merged by time, for people; while following, entries come as they arrive. What is
// sent is decided by positions alone: no clock can drop or repeat a line.
func (s *Streams) Logs(request *v1.LogsRequest, stream grpc.ServerStreamingServer[v1.LogEntry]) error {
	if err := checkSpan(request); err != nil {
		return err
	}
	if err := checkPositions(request); err != nil {
		return err
	}
	snap, err := s.Consensus.Read(stream.Context()) // which has what was started a moment ago
	if err != nil {
		return err
	}
	target, err := s.logTarget(snap, request)
	if err != nil {
		return err
	}
	// Before there is output, of which there may be none for long: so a client knows that it is heard.
	if err := core.BeginStream(stream); err != nil {
		return err
	}
	if request.GetFollow() {
		if until := request.GetUntil(); until == nil || until.AsTime().After(time.Now()) {
			return s.followLogs(request, target, stream)
		}
		request = proto.CloneOf(request)
		request.Follow = false // all of it is written already
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

// checkSpan refuses a time in which there can be nothing.
func checkSpan(request *v1.LogsRequest) error {
	since, until := request.GetSince(), request.GetUntil()
	if since == nil || until == nil || !since.AsTime().After(until.AsTime()) {
		return nil
	}
	return &spec.Error{Violations: []spec.Violation{{Field: "until", Message: fmt.Sprintf("%s is before %s, where the output is to begin",
		until.AsTime().Format(time.RFC3339), since.AsTime().Format(time.RFC3339))}}}
}

// logWorkload is the workload whose logs are wanted. It may have been deleted
// already: its ended replicas are kept as long as their logs.
type logWorkload struct {
	uid     string
	replica string
}

func (s *Streams) logTarget(snap *state.Snapshot, request *v1.LogsRequest) (logWorkload, error) {
	namespace := cmp.Or(request.GetNamespace(), spec.DefaultNamespace)
	workload, replica := meantReplica(snap, namespace, request)
	target := logWorkload{replica: replica}
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
	target.uid = r.GetSpec().GetWorkloadUid() // which may be that of an earlier workload of the name
	return target, nil
}

// deletedWorkload finds the newest workload that had the name by what is left
// of its replicas.
func deletedWorkload(snap *state.Snapshot, namespace, name string) (uid string) {
	var newest string
	for r := range snap.Replicas(namespace, "") {
		if r.GetSpec().GetWorkload() == name && r.GetMetadata().GetUid() > newest {
			newest, uid = r.GetMetadata().GetUid(), r.GetSpec().GetWorkloadUid()
		}
	}
	return uid
}

// wants leaves out replicas that were stopped before they ran: they have no log.
func (t logWorkload) wants(r *v1.Replica) bool {
	never := r.GetStatus().GetPhase() == spec.PhaseStopped && !hasRun(r)
	return r.GetSpec().GetWorkloadUid() == t.uid && r.GetSpec().GetNodeUid() != "" && !never &&
		(t.replica == "" || t.replica == r.GetMetadata().GetName())
}

// hasRun reports whether a replica is known to have run.
func hasRun(r *v1.Replica) bool {
	st := r.GetStatus()
	return st.GetPhase() == spec.PhaseRunning || st.GetStartTime() != nil || st.GetLastExit() != nil || st.GetRestarts() > 0
}

// replicas are all that have a log. Logs of nodes that were removed went with them.
func (t logWorkload) replicas(snap *state.Snapshot) []*v1.Replica {
	var all []*v1.Replica
	for r := range snap.ReplicasOf(t.uid) {
		if t.wants(r) && snap.Node(r.GetSpec().GetNodeUid()) != nil {
			all = append(all, r)
		}
	}
	return all
}

// logSource reads one replica's log from its node in the background, until it
// ends or ctx does.
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

func (s *Streams) readLog(ctx context.Context, r *v1.Replica, open *v1.OpenLogs, emit func(*v1.LogEntry) error) error {
	stream, release, err := s.attach(ctx, r.GetSpec().GetNodeUid(), &v1.Open{What: &v1.Open_Logs{Logs: proto.CloneOf(open)}}) // the session sends it when it can
	if err != nil {
		return err
	}
	defer release()
	// Recv knows only the agent's context; let go of the stream when the reader leaves.
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
				return nil // its node never got round to it, and has nothing to show
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
