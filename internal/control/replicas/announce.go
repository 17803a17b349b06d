package replicas

import (
	"fmt"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// fewPlaced is how many placements of one tick are told one by one. An event is
// as dear as a replica, and nobody reads thousands of them.
const fewPlaced = 32

// placed is a replica that this tick has placed, and why it was made if that is
// worth telling.
type placed struct {
	replica *v1.Replica
	because string
}

// tellPlaced says where a replica was placed, at once or together with others.
func (t *tick) tellPlaced(r *v1.Replica) {
	p := placed{replica: r}
	if why := t.covers[r.GetMetadata().GetUid()]; why != "" {
		p.because = ", because " + why
	}
	if t.many {
		t.placed = append(t.placed, p)
		return
	}
	t.event(r, "Placed", "on node "+r.GetSpec().GetNode()+p.because, state.SeverityInfo)
}

// announce says of each workload how many of its replicas were placed since it said
// so last. It tells what was decided: of what goes to a node and is left out by the
// commit, the next tick tells again.
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
		message := fmt.Sprintf("%s on %s%s", plural(len(of[key]), "replica"), plural(len(nodes), "node"), key.because)
		t.event(t.snap.Workload(key.workload), "Placed", message, state.SeverityInfo)
	}
	t.placed = nil
}
