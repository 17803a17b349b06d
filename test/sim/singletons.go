package sim

import (
	"maps"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/lease"
	"github.com/cloudless/cloudless/internal/spec"
)

// Singletons, as docs/nodes.md describes them: the leader grants leases by the product's table, the agent asks for them
// and stops what has none in time, and the shim kills what outlives its lease.

// Agents ask for leases every leaseEvery, and seldom when all is well, which saves events. leaseReserve is how long before
// the end of its lease a program is stopped.
const (
	leaseEvery   = 3 * time.Second
	leaseSeldom  = 7 * time.Second
	leaseReserve = 3 * time.Second
)

// leases are those of a leader. Real servers measure them by a clock that is never set; the engine asks by the wall clock.
type leases struct {
	w     *World
	table *lease.Table
}

func (l leases) Begin(time.Time) { l.table.Begin(l.w.clock()) }

func (l leases) Fence(now time.Time, replica string) (again time.Time, fenced bool) {
	if l.w.flaw == Unfenced {
		return time.Time{}, true
	}
	again, fenced = l.table.Fence(l.w.clock(), replica)
	return again.Add(now.Sub(l.w.clock())), fenced
}

func (l leases) Admit(replica string) { l.table.Admit(replica) }

// hasLease reports whether a singleton may start. If not, it starts when it gets a lease.
func (m *machine) hasLease(r *record) bool {
	r.awaits = r.lease-m.w.now <= leaseReserve
	m.keepLeases()
	return !r.awaits
}

// keepLeases makes the agent ask for leases from now on.
func (m *machine) keepLeases() {
	if !m.leasing {
		m.leasing = true
		m.askLeases()
	}
}

// askLeases asks for the leases of all singletons, and plans to ask again.
func (m *machine) askLeases() {
	var uids []string
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		if r := m.records[uid]; r.single && !r.ended() {
			uids = append(uids, uid)
		}
	}
	if m.leasing = len(uids) > 0; !m.leasing {
		return
	}
	pause := leaseEvery
	if m.w.healed {
		pause = leaseSeldom
	}
	m.later(pause, m.askLeases)
	if s := m.session; s != nil {
		asked, boot := m.w.now, m.boot
		s.pass(&s.up, func() { s.grant(asked, boot, uids) })
	}
}

// grant grants leases as soon as a majority of the servers has confirmed that this one leads.
func (s *session) grant(asked time.Duration, boot int, uids []string) {
	w := s.t.w
	w.after(w.latency(), func() {
		if s.t.over || s.t.frozen || !s.atServer {
			return
		}
		granted := s.t.server.leases.Grant(w.clock(), s.t.server.store.Snapshot(), s.node, uids)
		s.pass(&s.down, func() {
			s.m.do(func() {
				if s.atAgent && boot == s.m.boot {
					s.m.leased(asked, granted)
				}
			})
		})
	})
}

// leased notes leases, which count from the moment when they were asked for.
func (m *machine) leased(asked time.Duration, uids []string) {
	for _, uid := range uids {
		r := m.records[uid]
		if r == nil || asked+lease.Duration <= r.lease {
			continue
		}
		r.lease = asked + lease.Duration
		m.watchLease(uid, r)
		if r.awaits && r.phase() == spec.PhasePreparing && !r.stop() {
			r.awaits = false
			m.plan(r, 0, func() { m.start(r) })
		}
	}
}

// watchLease lets the agent stop a singleton before its lease ends, and the shim kill it when it ends.
func (m *machine) watchLease(uid string, r *record) {
	if r.check > m.w.now {
		return // it looks when that time has come
	}
	next := r.lease - leaseReserve
	if m.w.now >= next {
		next = r.lease
	}
	r.check = next
	boot := m.boot
	m.w.after(next-m.w.now, func() {
		t := m.tasks[uid]
		if boot != m.boot || m.records[uid] != r || t == nil || t.exited {
			r.check = 0
			return
		}
		r.check = m.w.now
		switch left := r.lease - m.w.now; {
		case left <= 0:
			r.check = 0
			m.w.note("the shim on %s kills %s, which has no lease", m.name, r.name)
			m.exit(uid, t, 137)
			return
		case left <= leaseReserve && m.acts() && !r.stopping:
			m.endExpired(r, t)
		}
		m.watchLease(uid, r)
	})
}

// endExpired stops a singleton whose lease is about to end. It starts again with another lease.
func (m *machine) endExpired(r *record, t *task) {
	r.stopping = true
	m.w.note("%s stops %s, which has no new lease", m.name, r.name)
	m.later(min(m.w.stopTime(), leaseReserve), func() {
		r.stopping = false
		if m.records[r.uid] != r || m.tasks[r.uid] != t || t.exited || r.phase() != spec.PhaseRunning {
			return
		}
		delete(m.tasks, r.uid)
		m.again(r, false)
	})
}

// checkStarts checks what must hold when a program starts: no two replicas of a singleton run at the same time, each has
// a higher fencing epoch than the one before, and release commands run once and never together.
func (w *World) checkStarts(m *machine, r *record) {
	if r.single {
		if r.fence < w.oracle.fences[r.workload] && !w.oracle.cloned[m.uid] {
			w.fail("the fencing epoch of a singleton grows", "%s starts with %d after %d", r.name, r.fence, w.oracle.fences[r.workload])
		}
		w.oracle.fences[r.workload] = max(r.fence, w.oracle.fences[r.workload])
	}
	job := w.newest().Workload(r.workload)
	owner := ""
	if spec.IsRelease(job) {
		owner = job.GetStatus().GetOwnerUid()
	}
	if owner != "" && !w.oracle.cloned[m.uid] {
		if w.oracle.released[r.workload] {
			w.fail("a release command runs once", "%s starts on %s", r.name, m.name)
		}
		w.oracle.released[r.workload] = true
	}
	if !r.single && owner == "" || w.oracle.cloned[m.uid] {
		return
	}
	for _, other := range w.machines {
		for _, uid := range slices.Sorted(maps.Keys(other.tasks)) {
			o := other.records[uid]
			if o == nil || uid == r.uid || other.tasks[uid].exited || w.oracle.cloned[other.uid] {
				continue
			}
			switch {
			case r.single && o.single && o.workload == r.workload:
				w.fail("a singleton runs once", "%s starts on %s while %s runs on %s", r.name, m.name, o.name, other.name)
			case owner != "" && owner == w.releaseOf(o):
				w.fail("release commands never run together", "%s starts on %s while %s runs on %s", r.name, m.name, o.name, other.name)
			}
		}
	}
}

// releaseOf is the workload whose release command a record runs, empty for none.
func (w *World) releaseOf(r *record) string {
	if job := w.newest().Workload(r.workload); spec.IsRelease(job) {
		return job.GetStatus().GetOwnerUid()
	}
	return ""
}

// checkRelease checks that a deployment has one release job.
func (w *World) checkRelease(p *proposal, owner string, job *v1.Workload) {
	uid := job.GetStatus().GetDeploymentUid()
	if w.oracle.runs[uid] {
		w.fail("a deployment has one release job", "%s is made", job.GetMetadata().GetName())
	}
	w.oracle.runs[uid] = true
	if p.base.Workload(owner) == nil {
		w.fail("a deployment has one release job", "%s is made for a workload that does not exist", job.GetMetadata().GetName())
	}
}
