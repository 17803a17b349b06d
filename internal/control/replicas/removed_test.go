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

// A node that is removed while a replica is on its way to it takes the replica
// with it, whichever of the two is agreed on first, and another one is made.
func TestReplicaOfARemovedNodeIsLostAndReplaced(t *testing.T) {
	for name, placedFirst := range map[string]bool{"placed first": true, "removed first": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addNode("a", "1")
			w.addWorkload("web", 1, "1")
			d := drive(w)
			if !placedFirst {
				// What the loop has decided on comes after the removal.
				w = newWorld(t)
				w.addNode("a", "1")
				w.addWorkload("web", 1, "1")
				batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
				d = &driven{world: w, loop: &Loop{Store: w.store}}
				d.loop.Proposer = d
				d.loop.begin()
				w.removeNode("a")
				w.apply(batch)
			} else {
				w.removeNode("a")
			}
			w.addNode("b", "1")
			d.react()
			lost, placed := 0, 0
			for r := range w.snap().Replicas("", "") {
				switch r.GetStatus().GetPhase() {
				case rollout.PhaseLost:
					lost++
				case rollout.PhasePlaced:
					if r.GetSpec().GetNode() == "b" {
						placed++
					}
				}
			}
			if lost != 1 || placed != 1 {
				t.Errorf("%d lost and %d placed on the other node, want one of each", lost, placed)
			}
		})
	}
}
