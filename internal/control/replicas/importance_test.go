package replicas

import (
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// A pending workload is retried when another workload's priority or minAvailable drops: its
// replicas may be preemptible now.
func TestPendingWorkloadRetriesWhenAnotherMattersLess(t *testing.T) {
	workload := func(priority, keeps int32) *v1.Workload {
		return &v1.Workload{Metadata: &v1.Metadata{Uid: "w"}, Spec: &v1.WorkloadSpec{Priority: proto.Int32(priority), MinAvailable: keeps}}
	}
	for _, c := range []struct {
		about  string
		before *v1.Workload
		looks  bool
	}{
		{"the same", workload(100, 1), false},
		{"less important", workload(200, 1), true},
		{"keeps fewer", workload(100, 3), true},
	} {
		due := dueAfter([]state.Change{{Kind: state.KindWorkload, Old: c.before, New: workload(100, 1)}})
		if due.Placement != c.looks {
			t.Errorf("%s: pending workload retries: %v, want %v", c.about, due.Placement, c.looks)
		}
	}
}
