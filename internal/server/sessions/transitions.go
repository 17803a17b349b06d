package sessions

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// transition describes the event between two statuses of a replica. The reason is empty
// if the change is not worth an event.
func transition(before, after *v1.ReplicaStatus) (reason, message string, severe bool) {
	exit := after.GetLastExit()
	switch {
	case exit != nil && !proto.Equal(before.GetLastExit(), exit) && after.GetPhase() != spec.PhaseStopped:
		message = fmt.Sprintf("exit code %d", exit.GetCode())
		if why := spec.ExitReason(exit); why != "" {
			message += ": " + why
		}
		return "Exited", message, exit.GetCode() != 0
	case before.GetPhase() == after.GetPhase():
		return "", "", false
	case after.GetPhase() == spec.PhaseRunning:
		return "Started", "", false
	case after.GetPhase() == spec.PhaseStopped:
		return "Stopped", "", false
	case after.GetPhase() == spec.PhaseBackoff, after.GetPhase() == spec.PhaseFailed:
		return "Failed", after.GetReason(), true
	}
	return "", "", false
}

// replicaEvent is an event about a replica, caused by its node.
func (s *Sessions) replicaEvent(ctx context.Context, r *v1.Replica, reason, message string, severe bool) *v1.Event {
	e := s.Event(ctx, r, reason, message)
	e.Spec.Actor = "node/" + r.GetSpec().GetNode()
	if severe {
		e.Spec.Severity = state.SeverityWarning
	}
	return e
}

// fewTransitions is how many transitions in a batch get an event each. An event costs as
// much as the change it describes, and thousands of them are of no use.
const fewTransitions = 32

// transitions are the starts and stops in a batch of reports. They have no message, so
// that one event can describe many of them.
type transitions struct {
	all []plainTransition
}

type plainTransition struct {
	replica *v1.Replica
	reason  string
}

func (t *transitions) add(r *v1.Replica, reason string) {
	t.all = append(t.all, plainTransition{r, reason})
}

// addEvents adds an event for each replica to a batch if there are few transitions, and
// otherwise one event for each workload.
func (t *transitions) addEvents(ctx context.Context, s *Sessions, snap *state.Snapshot, b *state.Batch) {
	type group struct{ workload, reason string }
	count := map[group]int{}
	for _, one := range t.all {
		count[group{one.replica.GetSpec().GetWorkloadUid(), one.reason}]++
	}
	added := map[group]bool{}
	for _, one := range t.all {
		key := group{one.replica.GetSpec().GetWorkloadUid(), one.reason}
		w := snap.Workload(key.workload)
		switch {
		case len(t.all) <= fewTransitions, count[key] == 1, w == nil:
			b.Create(s.replicaEvent(ctx, one.replica, one.reason, "", false))
		case !added[key]:
			added[key] = true
			b.Create(s.Event(ctx, w, one.reason, fmt.Sprintf("%d replicas", count[key])))
		}
	}
}
