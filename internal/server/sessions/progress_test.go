package sessions

import (
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// A node speaks for its own replicas only: progress of any other uid is not kept, so
// that nobody can fill the leader's memory with invented ones.
func TestProgressIsKeptForTheReplicasOfTheNodeOnly(t *testing.T) {
	store := state.New()
	var b state.Batch
	b.Create(&v1.Replica{Metadata: &v1.Metadata{Uid: "r", Name: "web-r", Namespace: "default"}, Spec: &v1.ReplicaSpec{NodeUid: "owner"}})
	_, err := store.Apply(1, b.Transaction(time.Now()))
	must(t, err)
	s, snap := unitSessions(), store.Snapshot()
	pulling := func(uid string, done int64) *v1.ReplicaReport {
		return &v1.ReplicaReport{Uid: uid, Status: &v1.ReplicaStatus{Progress: &v1.Progress{What: "pulling app", DoneBytes: done}}}
	}
	s.progress.take(snap, "owner", []*v1.ReplicaReport{pulling("r", 1), pulling("invented", 1)})
	rest := s.progress.take(snap, "other", []*v1.ReplicaReport{pulling("r", 2), pulling("another", 2)})
	if n := len(s.progress.known); n != 1 {
		t.Errorf("progress of %d replicas is kept", n)
	}
	if done := s.WithProgress(snap.Replica("r")).GetStatus().GetProgress().GetDoneBytes(); done != 1 {
		t.Errorf("%d bytes are done, in the words of another node", done)
	}
	for _, one := range rest {
		if one.GetStatus().GetProgress() != nil {
			t.Error("progress that is not kept reaches the state")
		}
	}
	s.Route(state.Change{Kind: state.KindReplica, Old: snap.Replica("r")})
	if n := len(s.progress.known); n != 0 {
		t.Error("the progress of a replica that is gone is kept")
	}
	s.progress.take(snap, "owner", []*v1.ReplicaReport{pulling("r", 1)})
	s.CatchUp(state.New().Snapshot())
	if n := len(s.progress.known); n != 0 {
		t.Error("the progress of a replica is kept of which it was missed that it is gone")
	}
}
