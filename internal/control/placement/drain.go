package placement

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// defaultDrainTimeout is how long jobs on a draining node may go on.
const defaultDrainTimeout = 10 * time.Minute

// DrainOf is how a node is drained after a change of its settings from old to n; nil if it is not. asked is how to drain
// it, if the operator has said so.
func DrainOf(now time.Time, snap *state.Snapshot, old, n *v1.Node, asked *v1.DrainNodeRequest) *v1.Drain {
	if n.GetSpec().GetAvailability() != spec.AvailabilityDraining {
		return nil
	}
	at := timestamppb.New(now)
	drain := proto.CloneOf(old.GetSpec().GetDrain())
	if drain == nil {
		drain = &v1.Drain{StartTime: at, Replicas: int32(LiveOn(snap, old))}
	}
	if asked == nil {
		return drain
	}
	timeout := defaultDrainTimeout
	if d, err := spec.ParseDuration(asked.GetTimeout()); err == nil && asked.GetTimeout() != "" {
		timeout = d
	}
	if drain.GetEndTime() != nil { // what has come since then has to leave again
		drain.StartTime, drain.EndTime, drain.Replicas = at, nil, int32(LiveOn(snap, old))
	}
	drain.Grace, drain.Force, drain.Deadline = asked.GetGrace(), asked.GetForce(), nil
	if timeout > 0 {
		drain.Deadline = timestamppb.New(now.Add(timeout))
	}
	return drain
}

// LiveOn counts the replicas on a node that have not ended.
func LiveOn(snap *state.Snapshot, n *v1.Node) (live int) {
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if !spec.Ended(r.GetStatus().GetPhase()) {
			live++
		}
	}
	return live
}
