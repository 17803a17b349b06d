package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// How machines become nodes, and nodes are removed.

// join enrolls a machine and starts its agent. If its name is taken, the node gets a
// suffix, as in the product. The machine has no uid until its node is committed, so that
// nothing can act on it before.
func (w *World) join(m *machine) {
	uid, name := "", ""
	w.operate("join "+m.hostname, func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		if uid != "" && snap.Node(uid) != nil {
			return false // an earlier attempt was committed after all
		}
		name = m.hostname
		for i := 2; snap.NodeByName(name) != nil; i++ {
			name = fmt.Sprintf("%s-%d", m.hostname, i)
		}
		uid = w.uidsOf(s)()
		b.Create(&v1.Node{
			ApiVersion: spec.APIVersion, Kind: "Node",
			Metadata: &v1.Metadata{Uid: uid, Name: name, Labels: m.labels},
			Spec:     &v1.NodeSpec{}, Status: &v1.NodeStatus{State: "enrolling"},
		})
		return true
	}, func() {
		m.uid, m.name, m.on, m.agent = uid, name, true, false
		m.startAgent()
	})
}

// actRemoveNode removes a node. Its machine runs on for a while, is wiped and joins again
// as another node.
func (w *World) actRemoveNode(c *rand.Rand) {
	m := w.machine(c)
	if m == nil {
		return
	}
	uid := m.uid
	w.removeNode(uid, m.name, func() {
		w.after(draw(c, time.Second, 10*time.Minute), func() { w.startOver(m, uid) })
	})
}

// removeNode lets an operator remove a node.
func (w *World) removeNode(uid, name string, done func()) {
	w.operate("remove "+name, func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		n := snap.Node(uid)
		if n == nil {
			return false
		}
		placement.LoseReplicas(w.wall(s), snap, b, n)
		b.DeleteVersion(state.KindNode, uid, n.GetMetadata().GetVersion())
		return true
	}, done)
}

// startOver wipes a machine whose node was removed and lets it join again.
func (w *World) startOver(m *machine, uid string) {
	if m.uid == uid && !m.clone && uid != "" && w.newest().Node(uid) == nil {
		w.reinstall(m)
	}
}

func (w *World) reinstall(m *machine) {
	w.note("%s is wiped and joins again", m.name)
	m.powerOff()
	m.wipe()
	m.uid = ""
	m.cutUp, m.cutDown = false, false
	w.join(m)
}

// actReinstall wipes a machine whose node was not removed. It joins as another node; the
// old one is offline until an operator removes it.
func (w *World) actReinstall(c *rand.Rand) {
	m := w.machine(c)
	if m == nil || w.oracle.cloned[m.uid] {
		return
	}
	w.orphans[m.uid] = m.name
	w.reinstall(m)
	w.after(draw(c, 10*time.Second, time.Hour), w.removeOrphans)
}

// removeOrphans lets an operator remove the nodes whose machine was wiped.
func (w *World) removeOrphans() {
	for _, uid := range slices.Sorted(maps.Keys(w.orphans)) {
		w.removeNode(uid, w.orphans[uid], func() { delete(w.orphans, uid) })
	}
}
