package streams

import (
	"cmp"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Forward connects the caller with a port inside a replica.
func (s *Streams) Forward(stream grpc.BidiStreamingServer[v1.ForwardRequest, v1.ForwardResponse]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) { // without any message there is no start either
		return err
	}
	start := first.GetStart()
	if start == nil {
		return core.Refuse(codes.InvalidArgument, "forward begins with start")
	}
	find := func(snap *state.Snapshot) (*v1.Replica, error) { return s.forwardTarget(snap, start) }
	if start.GetCheck() {
		snap, err := s.Consensus.Read(stream.Context())
		if err != nil {
			return err
		}
		r, err := find(snap)
		if err != nil {
			return err
		}
		return stream.Send(&v1.ForwardResponse{Message: &v1.ForwardResponse_Started{Started: &v1.ForwardStarted{Replica: r.GetMetadata().GetName()}}})
	}
	return call[v1.ForwardRequest, v1.ForwardResponse]{
		name: "forward", what: "connection", find: find, reason: reasonForward, message: forwardMessage(start),
		open: func(uid string) *v1.Open {
			return &v1.Open{What: &v1.Open_Forward{Forward: &v1.OpenForward{ReplicaUid: uid, Start: start}}}
		},
		down: func(r *v1.ForwardRequest) *v1.AttachDown {
			return &v1.AttachDown{Message: &v1.AttachDown_Forward{Forward: r}}
		},
		up: func(m *v1.AttachUp) (*v1.ForwardResponse, bool) {
			return m.GetForward(), m.GetForward().GetDone() != nil
		},
		check: func(r *v1.ForwardRequest) error {
			if r.GetStart() != nil {
				return core.Refuse(codes.InvalidArgument, "start is the first message of forward, and only the first: each connection has a call of its own")
			}
			return nil
		},
	}.relay(s, stream, "port", start.GetPort())
}

// forwardTarget is the replica that a new connection goes to: the preferred one, as long as it can be reached.
func (s *Streams) forwardTarget(snap *state.Snapshot, start *v1.ForwardStart) (*v1.Replica, error) {
	best, err := RunningReplica(snap, start)
	if err != nil {
		return nil, err
	}
	if _, replica := resolve(snap, cmp.Or(start.GetNamespace(), spec.DefaultNamespace), start); replica != "" {
		return best, nil
	}
	for r := range snap.ReplicasOf(best.GetSpec().GetWorkloadUid()) {
		if spec.Serves(r) && s.reachability(r, start) > s.reachability(best, start) {
			best = r
		}
	}
	return best, nil
}

// reachability ranks replicas: first those whose node is connected, and among them the preferred one.
func (s *Streams) reachability(r *v1.Replica, start *v1.ForwardStart) (rank int) {
	if connected, _ := s.connected(r.GetSpec().GetNodeUid()); connected {
		rank += 2
	}
	if r.GetMetadata().GetName() == start.GetPrefer() {
		rank++
	}
	return rank
}
