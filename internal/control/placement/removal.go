package placement

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// LoseReplicas ends the replicas of a node that is being removed, and counts them: it will never report again. Those of
// singletons may still run there until their lease has expired. They stay as they are, and package replicas ends them.
func LoseReplicas(now time.Time, snap *state.Snapshot, b *state.Batch, n *v1.Node) (lost int) {
	for old := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if spec.Ended(old.GetStatus().GetPhase()) {
			continue
		}
		lost++
		if Leased(snap, old) || snap.Workload(old.GetSpec().GetWorkloadUid()).GetSpec().GetSingleton() {
			continue
		}
		r := proto.CloneOf(old)
		r.Status.Phase, r.Status.Reason = spec.PhaseLost, "node "+n.GetMetadata().GetName()+" was removed"
		r.Status.EndTime = timestamppb.New(now)
		b.Update(r, old.GetMetadata().GetVersion())
	}
	return lost
}
