package sim

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// never is when programs listen that do not work.
const never = time.Duration(math.MaxInt64)

const (
	deaf   = "It does not listen on port 80 yet."
	unwell = "Its readiness probe failed: it said no."
)

// listenTime is how long it takes until a program listens.
func (w *World) listenTime() time.Duration {
	switch {
	case w.tidy:
		return 200 * time.Millisecond
	case w.rng.IntN(20) == 0:
		return w.between(5*time.Second, 40*time.Second) // it loads much
	}
	return w.between(50*time.Millisecond, 2*time.Second)
}

// probe looks whether a program serves, and looks again when that may change. Jobs serve at once. A program that serves
// does so until its workload is unwell, whatever happens to the agent.
func (m *machine) probe(r *record, t *task) {
	w := m.w
	if m.records[r.uid] != r || m.tasks[r.uid] != t || t.exited || r.phase() != spec.PhaseRunning || r.policy != "always" {
		return
	}
	reason, settling, again := "", false, time.Duration(0)
	switch ill := w.unwell[r.workload]; {
	case t.listens == never:
		reason = deaf
	case w.now < t.listens:
		reason, again = deaf, t.listens
	case w.now < ill:
		reason, again = unwell, ill
	case w.now < t.listens+r.settles:
		settling, again = true, t.listens+r.settles
	}
	if again > 0 {
		m.later(again-w.now, func() { m.probe(r, t) })
	}
	if reason == r.status.GetUnready() && settling == r.status.GetSettling() {
		return
	}
	m.become(r, spec.PhaseRunning, func(s *v1.ReplicaStatus) { s.Unready, s.Settling = reason, settling })
}

// probeAll probes all programs of a machine.
func (m *machine) probeAll() {
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		if r, t := m.records[uid], m.tasks[uid]; t != nil {
			m.do(func() { m.probe(r, t) })
		}
	}
}

// actUnwell makes the programs of a workload run without serving for a while.
func (w *World) actUnwell(c *rand.Rand) {
	workload := w.workload(c)
	if workload == nil {
		return
	}
	w.unwell[workload.GetMetadata().GetUid()] = w.now + draw(c, time.Second, 5*time.Minute)
	w.note("the programs of %s do not serve for a while", workload.GetMetadata().GetName())
	for _, m := range w.machines {
		m.probeAll()
	}
}
