package streams

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Replicas that have ended are kept for their logs. These are shown on request, or if no replica is live.
func TestLogsPreferLiveReplicas(t *testing.T) {
	replica := func(uid, phase string) *v1.Replica {
		return &v1.Replica{Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid}, Status: &v1.ReplicaStatus{Phase: phase}}
	}
	failed, running, placed, stopped := replica("1", spec.PhaseFailed), replica("2", spec.PhaseRunning), replica("3", spec.PhasePlaced), replica("4", spec.PhaseStopped)
	for name, c := range map[string]struct {
		replicas []*v1.Replica
		request  *v1.LogsRequest
		want     []string
	}{
		"live replicas":        {[]*v1.Replica{failed, running, placed, stopped}, &v1.LogsRequest{}, []string{"web-2", "web-3"}},
		"the newest ended one": {[]*v1.Replica{failed, stopped}, &v1.LogsRequest{}, []string{"web-4"}},
		"all":                  {[]*v1.Replica{failed, running, stopped}, &v1.LogsRequest{Ended: true}, []string{"web-1", "web-2", "web-4"}},
		"the named one":        {[]*v1.Replica{failed}, &v1.LogsRequest{Replica: "web-1"}, []string{"web-1"}},
		"none":                 {nil, &v1.LogsRequest{}, nil},
		// web-4 ended while the reader was away. The reader may not have read all of it.
		"resumed": {
			[]*v1.Replica{failed, running, stopped},
			&v1.LogsRequest{Resume: &v1.LogPositions{Replicas: map[string]string{"web-1": positionLeftOut, "web-2": "1.00000001.00000001.1"}}},
			[]string{"web-2", "web-4"},
		},
	} {
		chosen, others := chooseReplicas(c.replicas, c.request)
		var got []string
		for _, r := range chosen {
			got = append(got, r.GetMetadata().GetName())
		}
		if !slices.Equal(got, c.want) || len(chosen)+len(others) != len(c.replicas) {
			t.Errorf("%s: chose %v", name, got)
		}
	}
}

func TestLogsLeaveOutReplicasThatNeverRan(t *testing.T) {
	never := &v1.Replica{
		Metadata: &v1.Metadata{Name: "web-a"}, Spec: &v1.ReplicaSpec{WorkloadUid: "web", NodeUid: "n"},
		Status: &v1.ReplicaStatus{Phase: spec.PhaseStopped},
	}
	target := logSelection{uid: "web"}
	if target.includes(never) {
		t.Error("the log of a replica that never ran is read")
	}
	for what, change := range map[string]func(*v1.ReplicaStatus){
		"has run":       func(s *v1.ReplicaStatus) { s.StartTime = timestamppb.Now() },
		"has exited":    func(s *v1.ReplicaStatus) { s.LastExit = &v1.Exit{} },
		"was restarted": func(s *v1.ReplicaStatus) { s.Restarts = 1 },
		"will run":      func(s *v1.ReplicaStatus) { s.Phase = spec.PhasePlaced },
		"is lost":       func(s *v1.ReplicaStatus) { s.Phase = spec.PhaseLost },
	} {
		r := proto.CloneOf(never)
		change(r.Status)
		if !target.includes(r) {
			t.Errorf("the log of a replica that %s is left out", what)
		}
	}
}
