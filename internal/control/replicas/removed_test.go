package replicas

import (
	"testing"

	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/state"
)

// removeNode takes a node away without a word about its replicas, as it is when
// they are placed in the moment in which the node is removed.
func (w *world) removeNode(name string) {
	w.t.Helper()
	w.change(func(b *state.Batch) { b.Delete(state.KindNode, w.snap().NodeByName(name).GetMetadata().GetUid()) })
}

// A node that is removed after a replica was placed on it takes the replica with
// it, and another one is made.
func TestReplicaOfARemovedNodeIsLostAndReplaced(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addWorkload("web", 1, "1")
	d := drive(w)
	w.removeNode("a")
	w.addNode("b", "1")
	d.react()
	if got := w.phases("web"); got[rollout.PhaseLost] != 1 || got[rollout.PhasePlaced] != 1 {
		t.Errorf("the replicas are %v, want one lost and one placed", got)
	}
	w.wantWhere("web", "b placed")
}
