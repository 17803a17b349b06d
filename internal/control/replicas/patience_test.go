package replicas

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// loseNode makes a node offline that was last seen at a time.
func (w *world) loseNode(name string, seen time.Time) {
	w.t.Helper()
	n := proto.CloneOf(w.snap().NodeByName(name))
	n.Status.State, n.Status.LastSeen = spec.NodeOffline, timestamppb.New(seen)
	w.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
}

// patient makes a workload wait for its nodes.
func (w *world) patient(name, lostAfter string) {
	w.t.Helper()
	w.edit(name, func(_ *state.Batch, of *v1.Workload) { of.Spec.LostAfter = lostAfter })
}

// at runs one tick at a time, and returns when the workload is due again.
func (w *world) at(now time.Time, workload string) (changes int, again time.Time) {
	w.t.Helper()
	batch, left := Tick(now, w.snap(), everything(w.snap()), w.newUID)
	if batch.Len() > 0 {
		w.apply(batch)
	}
	return batch.Len(), left.Later[w.snap().WorkloadByName("default", workload).GetMetadata().GetUid()]
}

func TestWorkloadWaitsForItsNode(t *testing.T) {
	w := twoNodes(t)
	w.patient("web", "1h")
	seen := w.now()
	w.loseNode("a", seen)
	changes, again := w.at(seen.Add(59*time.Minute), "web")
	if changes != 0 {
		t.Error("the replica was replaced before its workload gave the node up")
	}
	if want := seen.Add(time.Hour); !again.Equal(want) {
		t.Errorf("the workload is due at %s, want %s", again, want)
	}
	w.at(again, "web")
	w.wantWhere("web", "a running", "b placed")
}

func TestShorterPatienceTakesEffectAtOnce(t *testing.T) {
	w := twoNodes(t)
	w.patient("web", "1h")
	seen := w.now()
	w.loseNode("a", seen)
	w.patient("web", "1m")
	w.at(seen.Add(2*time.Minute), "web")
	w.wantWhere("web", "a running", "b placed")
}

// The new revision must not wait for a node that may never come back.
func TestUpdateDoesNotWaitForALostNode(t *testing.T) {
	w := twoNodes(t)
	w.patient("web", "1h")
	seen := w.now()
	w.loseNode("a", seen)
	w.restart("web")
	w.at(seen.Add(time.Minute), "web")
	w.wantWhere("web", "a running", "b placed")
}

func TestReplicaThatIsNotNeededIsNotWaitedFor(t *testing.T) {
	w := twoNodes(t)
	w.patient("web", "1h")
	seen := w.now()
	w.loseNode("a", seen)
	w.scale("web", 0)
	w.at(seen.Add(time.Minute), "web")
	w.wantWhere("web")
}
