package sessions

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

func pulling(uid string, done int64) *v1.ReplicaReport {
	return &v1.ReplicaReport{Uid: uid, Status: &v1.ReplicaStatus{Progress: &v1.Progress{What: "pulling app", DoneBytes: done}}}
}

// stateOfOwner has the replica r on the node owner.
func stateOfOwner(t *testing.T) *state.Snapshot {
	t.Helper()
	return storeWith(t, &v1.Replica{
		Metadata: &v1.Metadata{Uid: "r", Name: "web-r", Namespace: "default"}, Spec: &v1.ReplicaSpec{NodeUid: "owner"},
	}).Snapshot()
}

// A node must not fill the leader's memory with the progress of invented replicas.
func TestProgressIsKeptOnlyForTheNodesOwnReplicas(t *testing.T) {
	s, snap := unitSessions(), stateOfOwner(t)
	s.progress.extract(snap, "owner", []*v1.ReplicaReport{pulling("r", 1), pulling("invented", 1)})
	rest := s.progress.extract(snap, "other", []*v1.ReplicaReport{pulling("r", 2), pulling("another", 2)})
	if n := len(s.progress.known); n != 1 {
		t.Errorf("progress of %d replicas is kept", n)
	}
	if done := s.WithProgress(snap.Replica("r")).GetStatus().GetProgress().GetDoneBytes(); done != 1 {
		t.Errorf("another node changed the progress to %d bytes", done)
	}
	for _, one := range rest {
		if one.GetStatus().GetProgress() != nil {
			t.Error("progress that is not kept reaches the state")
		}
	}
}

func TestProgressOfADeletedReplicaIsForgotten(t *testing.T) {
	s, snap := unitSessions(), stateOfOwner(t)
	for name, remove := range map[string]func(){
		"the change is routed": func() { s.Route(state.Change{Kind: state.KindReplica, Old: snap.Replica("r")}) },
		"the change is missed": func() { s.CatchUp(state.New().Snapshot()) },
	} {
		t.Run(name, func(t *testing.T) {
			s.progress.extract(snap, "owner", []*v1.ReplicaReport{pulling("r", 1)})
			remove()
			if n := len(s.progress.known); n != 0 {
				t.Errorf("progress of %d replicas is kept", n)
			}
		})
	}
}
