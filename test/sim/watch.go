package sim

import (
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/nodes"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// watch is what a server has observed of nodes: the memory of nodes.Loop. Everything the
// simulator knows about judging nodes is in this file.
type watch struct {
	seen map[string]*heard
	// scores are the leader's records of nodes, and losses a separate count of how often
	// they went offline.
	scores map[string]*nodes.Standing
	losses map[string]*losses
}

// heard is what is known of one node.
type heard struct {
	nodes.Observation
	live spec.Liveness
	// answers is whether the machine answered probes while it was connected.
	answers bool
	// session is the number of the session, so that a suspicion ends with the next.
	session int
}

func newWatch() *watch {
	return &watch{seen: map[string]*heard{}, scores: map[string]*nodes.Standing{}, losses: map[string]*losses{}}
}

func (v *watch) of(uid string) *heard {
	h := v.seen[uid]
	if h == nil {
		h = &heard{live: spec.DefaultLiveness}
		v.seen[uid] = h
	}
	return h
}

// take begins a leader's term: older observations do not count.
func (v *watch) take() {
	for uid, h := range v.seen {
		if !h.Connected {
			delete(v.seen, uid)
		}
	}
}

func (h *heard) trust() {
	h.session++
	h.Gone, h.Goodbye, h.Broken = false, "", time.Time{}
}

func (v *watch) connected(uid string, status *v1.NodeStatus, now time.Time) *heard {
	h := v.of(uid)
	h.trust()
	v.standing(uid, now).Mended()
	h.Connected, h.LastSeen, h.Status, h.answers = true, now, status, false
	return h
}

func (v *watch) heartbeat(uid string, at time.Time) {
	h := v.of(uid)
	if !h.Connected {
		h.trust()
		v.standing(uid, at).Mended()
	}
	h.Connected, h.LastSeen = true, at
}

func (v *watch) said(uid string, status *v1.NodeStatus) { v.of(uid).Status = status }

func (v *watch) goodbye(uid string) { v.of(uid).Goodbye = "its agent has said goodbye" }

func (v *watch) disconnected(uid string, now time.Time) *heard {
	h := v.of(uid)
	h.Connected, h.Broken = false, now
	return h
}

func (v *watch) tick(w *World, l *nodeLoop, snap *state.Snapshot) (*state.Batch, time.Time) {
	seen := map[string]nodes.Observation{}
	for n := range snap.Nodes("") {
		uid := n.GetMetadata().GetUid()
		h := v.of(uid)
		if live := spec.LivenessOf(snap.Cluster().GetSpec(), n); live != h.live {
			h.live, h.NotBefore = live, w.clock()
		}
		seen[uid] = h.Observation
	}
	for uid, h := range v.seen {
		if snap.Node(uid) == nil && !h.Connected {
			delete(v.seen, uid)
		}
	}
	return nodes.Tick(w.clock(), dawn.Add(l.since), snap, seen, w.uidsOf(l.t.server))
}

// How a machine whose session broke is probed: it is gone when it has not
// answered for so long. Whether it answers at all is learned after it connects.
const (
	probeMisses = 500 * time.Millisecond
	probeLearn  = 300 * time.Millisecond
)

// learn finds out whether a machine answers probes.
func (t *term) learn(m *machine, h *heard) {
	session := h.session
	t.w.after(probeLearn, func() {
		if !t.over && h.session == session && h.Connected {
			h.answers = m.answers(t.server)
		}
	})
}

// suspect is called when the session of a machine breaks, and whenever the path to it
// changes after that.
func (t *term) suspect(m *machine) {
	h := t.server.watch.of(m.uid)
	if t.over || h.Connected || !h.answers || h.Gone || h.Goodbye != "" || m.answers(t.server) {
		return
	}
	session, paths := h.session, m.paths
	t.w.after(probeMisses, func() {
		if !t.over && h.session == session && paths == m.paths && !h.Connected {
			h.Gone = true
			t.w.note("the machine of %s does not answer", m.name)
			t.loops.nodes.wake()
		}
	})
}

// answers reports whether the machine answers a probe.
func (m *machine) answers(s *server) bool { return !m.mute && m.reaches(s) && m.reachedBy(s) }

// liveness is the current timeouts for a machine.
func (w *World) liveness(m *machine) spec.Liveness {
	return spec.LivenessOf(w.newest().Cluster().GetSpec(), &v1.Node{Metadata: &v1.Metadata{Labels: m.labels}})
}

// settledAway reports whether a silent node stays as it is.
func settledAway(n *v1.Node) bool {
	st := n.GetStatus().GetState()
	return st == "offline" || st == "enrolling"
}

// inService is the state of a node that is heard and can run something.
func inService(n *v1.Node) string {
	if n.GetSpec().GetAvailability() != "" {
		return n.GetSpec().GetAvailability()
	}
	return "ready"
}
