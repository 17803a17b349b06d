package replicas

import (
	"testing"

	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// removeNode removes a node but not its replicas, as happens when they are placed just
// while the node is removed.
func (w *world) removeNode(name string) {
	w.t.Helper()
	w.change(func(b *state.Batch) { b.Delete(state.KindNode, w.snap().NodeByName(name).GetMetadata().GetUid()) })
}

// A replica on a removed node is lost, and another one is created.
func TestReplicaOfARemovedNodeIsLostAndReplaced(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addWorkload("web", 1, "1")
	d := drive(w)
	w.removeNode("a")
	w.addNode("b", "1")
	d.react()
	if got := w.phases("web"); got[spec.PhaseLost] != 1 || got[spec.PhasePlaced] != 1 {
		t.Errorf("the replicas are %v, want one lost and one placed", got)
	}
	w.wantWhere("web", "b placed")
}
