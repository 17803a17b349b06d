package server

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The reason why a replica has no node is outdated soon; other reasons are current.
func TestOnlyReasonsOfUnplacedReplicasPointToExplain(t *testing.T) {
	for _, one := range []struct {
		reason, node, reserved, phase, want string
	}{
		{phase: "pending", want: ""},
		{phase: "pending", reason: "n1: is full", want: "cannot be placed (details: cloudless explain web)"},
		{phase: "pending", reason: "waits for 1 replica of batch to end on node n1", reserved: "n", want: "waits for 1 replica of batch to end on node n1"},
		{phase: "backoff", reason: "exit code 1", node: "n", want: "exit code 1"},
		{phase: "stopping", reason: "scaled down", want: "scaled down"},
	} {
		r := &v1.Replica{
			Spec:   &v1.ReplicaSpec{Workload: "web", NodeUid: one.node, ReservedNodeUid: one.reserved},
			Status: &v1.ReplicaStatus{Phase: one.phase, Reason: one.reason},
		}
		shown := r
		if isWaiting(r) {
			shown = presentWaiting(r, "")
		}
		if got := shown.GetStatus().GetReason(); got != one.want || r.GetStatus().GetReason() != one.reason {
			t.Errorf("%s, %q is shown as %q, want %q; stored is %q", one.phase, one.reason, got, one.want, r.GetStatus().GetReason())
		}
	}
}
