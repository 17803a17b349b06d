package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// record is what the agent's disk holds of a replica.
type record struct {
	uid, name, workload string
	policy              string
	image               string
	settles             time.Duration // how long it serves until it is steady
	// single is whether it needs a lease, and lease is until when it has one; stopping is whether it is being stopped
	// because that is about to end.
	single, awaits, stopping bool
	lease, check             time.Duration
	fence                    uint64
	desired                  string
	removed                  bool
	boot                     int
	attempt, failures        int
	started                  bool
	resume                   time.Duration
	status                   *v1.ReplicaStatus // never modified once set
	// step is the number of the current step: what another one planned does not happen.
	step int
}

// task is a program that runs or has run.
type task struct {
	attempt int
	exited  bool
	code    int32
	listens time.Duration // when its program listens
}

func (r *record) phase() string { return r.status.GetPhase() }

func (r *record) stop() bool { return r.removed || r.desired == spec.DesiredStopped }

// ended reports whether nothing more happens to a replica by itself.
func (r *record) ended() bool {
	p := r.phase()
	return p == spec.PhaseCompleted || p == spec.PhaseFailed || p == spec.PhaseStopped
}

func (m *machine) date() *timestamppb.Timestamp { return timestamppb.New(m.w.clock().Add(m.skew)) }

// everything is what the agent knows of its replicas.
func (m *machine) everything() []*v1.ReplicaReport {
	all := make([]*v1.ReplicaReport, 0, len(m.records))
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		all = append(all, &v1.ReplicaReport{Uid: uid, Status: m.records[uid].status})
	}
	return all
}

// assign makes the leader's message the desired state.
func (m *machine) assign(message *v1.Assignments) {
	if m.outdated(message) {
		return
	}
	m.tries = 0
	named := map[string]bool{}
	for _, a := range message.GetAssign() {
		uid := a.GetReplica().GetMetadata().GetUid()
		named[uid] = true
		m.want(uid, a)
	}
	for _, uid := range message.GetRemove() {
		m.remove(uid)
	}
	if message.GetFull() {
		for _, uid := range slices.Sorted(maps.Keys(m.records)) {
			if !named[uid] {
				m.remove(uid)
			}
		}
	}
}

func (m *machine) want(uid string, a *v1.Assignment) {
	r := m.records[uid]
	if r == nil {
		workload := a.GetRevision().GetSpec().GetWorkload()
		known := a.GetReplica().GetStatus()
		r = &record{
			uid: uid, name: a.GetReplica().GetMetadata().GetName(), workload: a.GetReplica().GetSpec().GetWorkloadUid(),
			policy: workload.GetRestart().GetPolicy(), image: workload.GetImage(), settles: spec.MinReadyOf(workload),
			single: workload.GetSingleton(), fence: a.GetReplica().GetSpec().GetEpoch(),
			desired: spec.DesiredRunning, boot: m.boot, attempt: 1,
			status: &v1.ReplicaStatus{Phase: spec.PhasePlaced, Restarts: known.GetRestarts(), LastExit: known.GetLastExit()},
		}
		m.records[uid] = r
		m.w.checkAssigned(m, a)
	}
	r.removed = false
	if desired := a.GetReplica().GetSpec().GetDesired(); r.desired != desired {
		r.desired = desired
		m.w.checkStop(m, r)
		m.advance(r)
	} else if r.phase() == spec.PhasePlaced && r.step == 0 {
		m.advance(r)
	}
}

func (m *machine) remove(uid string) {
	r := m.records[uid]
	if r == nil || r.removed {
		return
	}
	r.removed = true
	m.w.checkStop(m, r)
	m.advance(r)
}

// become moves a replica to a phase and reports it.
func (m *machine) become(r *record, phase string, change func(*v1.ReplicaStatus)) {
	next := &v1.ReplicaStatus{
		Phase: phase, Restarts: r.status.GetRestarts(), StartTime: r.status.GetStartTime(),
		LastExit: r.status.GetLastExit(), Reason: r.status.GetReason(),
	}
	if change != nil {
		change(next)
	}
	r.status = next
	m.pending[r.uid] = true
	m.say()
}

// say sends the queued reports to the leader.
func (m *machine) say() {
	if m.saying || m.session == nil {
		return
	}
	m.saying = true
	m.later(m.w.latency()/2, func() {
		m.saying = false
		if m.session == nil || len(m.pending) == 0 {
			return
		}
		var statuses []*v1.ReplicaReport
		for _, uid := range slices.Sorted(maps.Keys(m.pending)) {
			if r := m.records[uid]; r != nil {
				statuses = append(statuses, &v1.ReplicaReport{Uid: uid, Status: r.status})
			}
		}
		clear(m.pending)
		m.session.report(statuses)
	})
}

// plan schedules a replica's next step, unless something else comes before.
func (m *machine) plan(r *record, d time.Duration, f func()) {
	r.step++
	step := r.step
	m.later(d, func() {
		if step == r.step && m.records[r.uid] == r {
			f()
		}
	})
}

// advance takes the step that the phase and the desired state call for.
func (m *machine) advance(r *record) {
	switch {
	case r.phase() == spec.PhaseStopping:
		m.plan(r, m.w.stopTime(), func() { m.stopped(r) })
	case r.ended() && r.removed:
		r.step++
		delete(m.tasks, r.uid)
		delete(m.records, r.uid)
		delete(m.pending, r.uid)
	case r.phase() == spec.PhaseStopped && !r.stop():
		m.again(r, false)
	case r.ended():
	case r.stop():
		m.become(r, spec.PhaseStopping, func(s *v1.ReplicaStatus) { s.Reason = "" })
		m.advance(r)
	case r.phase() == spec.PhasePlaced:
		m.become(r, spec.PhasePreparing, nil)
		m.advance(r)
	case r.phase() == spec.PhasePreparing:
		m.plan(r, m.w.startTime(), func() { m.start(r) })
	case r.phase() == spec.PhaseBackoff:
		m.plan(r, r.resume-m.w.now, func() { m.again(r, r.started) })
	}
}

// startTime and stopTime are how long it takes until a program runs or has ended.
func (w *World) startTime() time.Duration {
	switch {
	case w.tidy:
		return 500 * time.Millisecond
	case w.rng.IntN(20) == 0:
		return w.between(5*time.Second, 40*time.Second) // a large image
	}
	return w.between(50*time.Millisecond, 2*time.Second)
}

func (w *World) stopTime() time.Duration {
	switch {
	case w.tidy:
		return 500 * time.Millisecond
	case w.rng.IntN(8) == 0:
		return 10 * time.Second // it ignores the signal and is killed
	}
	return w.between(10*time.Millisecond, time.Second)
}

func (m *machine) start(r *record) {
	w := m.w
	if r.single && !m.hasLease(r) {
		return // it starts when it has one
	}
	if w.missing[r.image] > w.now || r.image == absent {
		m.conclude(r, true, false, "the image cannot be pulled")
		return
	}
	t := &task{attempt: r.attempt, listens: w.now + w.listenTime()}
	if broken(&v1.WorkloadSpec{Image: r.image}) {
		t.listens = never
	}
	m.tasks[r.uid] = t
	w.checkStarts(m, r)
	if r.single {
		m.watchLease(r.uid, r)
	}
	r.started, r.boot = true, m.boot
	m.become(r, spec.PhaseRunning, func(s *v1.ReplicaStatus) {
		if s.Reason, s.StartTime = "", m.date(); r.policy == "always" {
			s.Unready = deaf
		}
	})
	m.probe(r, t)
	w.note("%s runs %s, attempt %d", m.name, r.name, r.attempt)
	life := time.Duration(0)
	switch {
	case r.policy != "always": // a job
		life = w.between(time.Second, 3*time.Minute)
		if w.rng.IntN(4) == 0 {
			t.code = 1
		}
	case w.flaky[r.workload] > w.now || r.image == crashing:
		life, t.code = w.between(100*time.Millisecond, 20*time.Second), 1
	}
	if life > 0 {
		w.after(life, func() { m.exit(r.uid, t, t.code) })
	}
}

// exit ends a program by itself, whether the agent runs or not.
func (m *machine) exit(uid string, t *task, code int32) {
	if m.tasks[uid] != t || t.exited {
		return
	}
	t.exited, t.code = true, code
	m.do(func() { m.exited(uid, t) })
}

// exited is the agent's reaction to an exit.
func (m *machine) exited(uid string, t *task) {
	r := m.records[uid]
	if r == nil || m.tasks[uid] != t || r.phase() != spec.PhaseRunning {
		return
	}
	delete(m.tasks, uid)
	code := t.code
	r.status = &v1.ReplicaStatus{
		Phase: r.phase(), Restarts: r.status.GetRestarts(), StartTime: r.status.GetStartTime(),
		LastExit: &v1.Exit{Code: code, Time: m.date()},
	}
	m.conclude(r, code != 0, true, fmt.Sprintf("It exited with code %d.", code))
}

// conclude ends an attempt and decides by the policy what follows.
func (m *machine) conclude(r *record, failed, started bool, reason string) {
	final := spec.PhaseCompleted
	if failed {
		final = spec.PhaseFailed
	}
	if retries := m.w.flaw == Retrying && m.w.releaseOf(r) != ""; started && !retries && (r.policy == "never" || r.policy == "on-failure" && !failed) {
		m.become(r, final, func(s *v1.ReplicaStatus) { s.Reason, s.EndTime = reason, m.date() })
		m.w.note("%s: %s is %s", m.name, r.name, final)
		m.advance(r)
		return
	}
	pause := time.Duration(0)
	switch {
	case r.failures > 0:
		pause = min(time.Minute, time.Second<<min(r.failures-1, 6))
	case !started:
		pause = time.Second
	}
	r.failures++
	r.resume = m.w.now + pause
	m.become(r, spec.PhaseBackoff, func(s *v1.ReplicaStatus) { s.Reason = reason })
	m.advance(r)
}

// again begins the next attempt.
func (m *machine) again(r *record, restart bool) {
	r.attempt++
	r.started = false
	m.become(r, spec.PhasePreparing, func(s *v1.ReplicaStatus) {
		if restart {
			s.Restarts++
		}
	})
	m.advance(r)
}

func (m *machine) stopped(r *record) {
	delete(m.tasks, r.uid)
	r.started, r.failures = false, 0
	m.become(r, spec.PhaseStopped, func(s *v1.ReplicaStatus) { s.Reason, s.EndTime = "", m.date() })
	m.advance(r)
}

// recover computes the state of a replica when the agent starts, see resume in
// internal/agent.
func (m *machine) recover(r *record) {
	r.step++
	t := m.tasks[r.uid]
	rebooted := r.boot != m.boot && (t == nil || t.exited)
	if r.boot != m.boot {
		r.lease, r.check = 0, 0
	}
	r.boot, r.stopping = m.boot, false
	if r.single && !r.ended() {
		m.keepLeases()
	}
	switch phase := r.phase(); {
	case phase != spec.PhaseRunning && phase != spec.PhasePreparing:
	case rebooted && r.started && r.policy == "never":
		const reason = "The machine was restarted while the replica ran."
		r.status = &v1.ReplicaStatus{Phase: spec.PhaseFailed, Restarts: r.status.GetRestarts(), Reason: reason, EndTime: m.date()}
	case rebooted:
		if r.started {
			r.attempt++
			r.started = false
		}
		r.status = &v1.ReplicaStatus{Phase: spec.PhasePreparing, Restarts: r.status.GetRestarts(), LastExit: r.status.GetLastExit()}
	case phase == spec.PhaseRunning && t != nil && t.exited:
		m.later(0, func() { m.exited(r.uid, t) })
	case phase == spec.PhaseRunning && t != nil:
		m.probe(r, t)
	}
	m.pending[r.uid] = true
	m.advance(r)
}
