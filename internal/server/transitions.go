package server

import (
	"context"
	"fmt"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// fewTransitions is how many replicas that start or stop are told one by one. An
// event is as dear as what it tells of, and nobody reads thousands of them.
const fewTransitions = 32

// transitions are those of one batch of reports of which there is no more to say
// than that they happened.
type transitions struct {
	all []transitioned
}

type transitioned struct {
	replica *v1.Replica
	reason  string
}

func (t *transitions) add(r *v1.Replica, reason string) {
	t.all = append(t.all, transitioned{r, reason})
}

// tell makes events of them: one for each replica where they are few, else one
// for each workload.
func (t *transitions) tell(ctx context.Context, s *Server, snap *state.Snapshot, b *state.Batch) {
	type group struct{ workload, reason string }
	of := map[group]int{}
	for _, one := range t.all {
		of[group{one.replica.GetSpec().GetWorkloadUid(), one.reason}]++
	}
	told := map[group]bool{}
	for _, one := range t.all {
		key := group{one.replica.GetSpec().GetWorkloadUid(), one.reason}
		w := snap.Workload(key.workload)
		switch {
		case len(t.all) <= fewTransitions, of[key] == 1, w == nil:
			b.Create(s.replicaEvent(ctx, one.replica, one.reason, "", false))
		case !told[key]:
			told[key] = true
			b.Create(s.Event(ctx, w, one.reason, fmt.Sprintf("%d replicas", of[key])))
		}
	}
}
