package replicas

import (
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// note remembers which replicas the changes preempt.
func (f *forecast) note(changes []state.Change) {
	for _, c := range changes {
		before, _ := c.Old.(*v1.Replica)
		if after, _ := c.New.(*v1.Replica); after.GetSpec().GetPreemptedFor() != "" && before.GetSpec().GetPreemptedFor() == "" {
			f.preempted = append(f.preempted, after)
		}
	}
}

// preemptions lists the preempted replicas that existed before, with the reason and the
// nodes of their replacements.
func (f *forecast) preemptions(before *state.Snapshot) []*v1.Preemption {
	after := f.fork.Snapshot()
	var all []*v1.Preemption
	places := map[string][]string{} // by workload: the nodes of the new replicas
	for _, r := range f.preempted {
		if before.Replica(r.GetMetadata().GetUid()) == nil {
			continue // it would not exist without the change
		}
		by := after.Replica(r.GetSpec().GetPreemptedFor())
		p := &v1.Preemption{
			Namespace: r.GetMetadata().GetNamespace(), Workload: r.GetSpec().GetWorkload(), Replica: r.GetMetadata().GetName(),
			Node: r.GetSpec().GetNode(), Priority: proto.Int32(placement.PriorityOf(after, r)),
			ForNamespace: by.GetMetadata().GetNamespace(), ForWorkload: by.GetSpec().GetWorkload(), ForPriority: proto.Int32(placement.PriorityOf(after, by)),
		}
		uid := r.GetSpec().GetWorkloadUid()
		if _, known := places[uid]; !known {
			places[uid] = newPlaces(before, after, uid)
		}
		if list := places[uid]; len(list) > 0 {
			p.ToNode, places[uid] = list[0], list[1:]
		}
		all = append(all, p)
	}
	return all
}

// newPlaces lists the nodes of a workload's new replicas.
func newPlaces(before, after *state.Snapshot, workloadUID string) []string {
	nodes := []string{}
	for _, r := range placement.ByUID(after, workloadUID) {
		if before.Replica(r.GetMetadata().GetUid()) == nil && spec.Live(r.GetStatus().GetPhase()) && placement.Wanted(r) && r.GetSpec().GetNode() != "" {
			nodes = append(nodes, r.GetSpec().GetNode())
		}
	}
	return nodes
}
