package replicas

import (
	"fmt"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// maxPlacedEvents is how many placements of one tick get an event each. An event costs as much as
// a replica, and thousands of them help no reader.
const maxPlacedEvents = 32

// placed is a replica that this tick has placed. because says why it was created, if that is
// worth an event.
type placed struct {
	replica *v1.Replica
	because string
}

// recordPlaced records where a replica was placed, in an event of its own or together with
// others.
func (t *tick) recordPlaced(r *v1.Replica) {
	p := placed{replica: r}
	if why := t.covers[r.GetMetadata().GetUid()]; why != "" {
		p.because = ", because " + why
	}
	if from, moves := t.relocations[r.GetMetadata().GetUid()]; moves {
		t.announceMove(from, r)
		return
	}
	if t.many {
		t.placed = append(t.placed, p)
		return
	}
	t.event(r, "Placed", "on node "+r.GetSpec().GetNode()+p.because, state.SeverityInfo)
}

// announce writes one event per workload with the number of replicas placed since the last
// call. It announces decisions: if the commit leaves a placement out, the next tick
// announces it again.
func (t *tick) announce() {
	type group struct{ workload, because string }
	of := map[group][]*v1.Replica{}
	var order []group
	for _, p := range t.placed {
		key := group{p.replica.GetSpec().GetWorkloadUid(), p.because}
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], p.replica)
	}
	for _, key := range order {
		nodes := map[string]bool{}
		for _, r := range of[key] {
			nodes[r.GetSpec().GetNodeUid()] = true
		}
		message := fmt.Sprintf("%s on %s%s", spec.Count(len(of[key]), "replica"), spec.Count(len(nodes), "node"), key.because)
		t.event(t.snap.Workload(key.workload), "Placed", message, state.SeverityInfo)
	}
	t.placed = nil
}
