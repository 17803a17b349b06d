package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/agent/probe"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// The life of a replica on its node. Every transition is in this file; step
// takes one at a time.
//
//	placed ──> preparing ──────> running ──exit──> backoff | completed | failed
//	               │  ^                              │
//	     cannot be │  └───────── pause over ─────────┤
//	       started └──> backoff | failed ────────────┘
//
//	placed, preparing, running, backoff ──no longer wanted──> stopping ──> stopped
//	running, preparing, backoff ──evicted──> stopping ──> stopped
//	stopped ──wanted again──> preparing
//	completed, failed, stopped ──removed──> gone
//
// An attempt only moves forward; the way back to preparing begins the next one.

// lostCode is the exit code of a task whose real one is unknown.
const lostCode = 255

// ended reports whether nothing more happens to a replica in this phase unless the cluster
// wants something else.
func ended(phase string) bool {
	return phase == spec.PhaseCompleted || phase == spec.PhaseFailed || phase == spec.PhaseStopped
}

// step takes the one step that the phase and the desired state call for. Waits end with
// armed when the desired state changes; steps that must not be interrupted use ctx. It may
// be repeated after every error and every crash.
func (r *replica) step(ctx, armed context.Context) (gone bool, err error) {
	if err := r.removeStale(ctx); err != nil {
		return false, err
	}
	w, eviction := r.wanted(), r.takeEviction()
	phase := r.rec.Status.GetPhase()
	if err := r.remember(w); err != nil {
		if !w.stop() {
			return false, err
		}
		r.log.Warn("cannot record that the replica must stop; stopping it anyway", "error", err)
	}
	r.limit(ctx)
	switch {
	case phase == spec.PhaseStopping:
		return false, r.stop(ctx)
	case ended(phase) && w.removed:
		return r.cleanUp(ctx)
	case phase == spec.PhaseStopped && !w.stop() && r.rec.Evicted != "":
		return false, r.awaitRoom(ctx, armed)
	case phase == spec.PhaseStopped && !w.stop():
		return false, r.again(false)
	case ended(phase):
		return false, r.awaitChange(ctx, armed)
	case w.stop():
		r.beginStop("")
		return false, nil
	case eviction != "":
		r.beginStop(eviction)
		return false, nil
	}
	switch phase {
	case spec.PhasePlaced:
		r.begin()
		return false, nil
	case spec.PhasePreparing:
		if !r.awaitLease(armed) || !r.awaitSecrets(armed) {
			return false, nil
		}
		return false, r.start(armed)
	case spec.PhaseRunning:
		return false, r.watch(ctx, armed)
	case spec.PhaseBackoff:
		return false, r.pause(ctx, armed)
	default:
		return false, fmt.Errorf("replica is in phase %q, which this version does not know", phase)
	}
}

// removeStale removes tasks of earlier attempts that a crash has left.
func (r *replica) removeStale(ctx context.Context) error {
	for len(r.stale) > 0 {
		task := r.stale[0]
		if err := task.driver.Remove(ctx, task.status.ID); err != nil {
			return fmt.Errorf("remove left-over task %s: %w", task.status.ID, err)
		}
		r.stale = r.stale[1:]
		r.clearProblem() // the next step may be waiting for a running task
	}
	return nil
}

// placed -> preparing. It is not recorded: after a crash it is the same.
func (r *replica) begin() {
	r.rec.Status.Phase = spec.PhasePreparing
	r.publish()
}

// preparing -> running, backoff or failed.
func (r *replica) start(ctx context.Context) error {
	traced, span := r.traceStart(ctx)
	task, err := r.startTask(traced)
	span.End(err)
	switch {
	case err == nil:
		return r.advance(func(rec *record) {
			rec.Status.StartTime, rec.Status.EndTime = now(), nil
			rec.reattach(task)
		})
	case ctx.Err() != nil:
		return nil // a failed start leaves nothing
	case errors.Is(err, errNoGPU), errors.Is(err, errNoSecrets):
		return err // not the replica's fault
	}
	r.log.Warn("replica could not be started", "attempt", r.rec.Attempt, "error", err)
	permanent := errors.Is(err, driver.ErrInvalid)
	return r.advance(func(rec *record) {
		rec.Status.Reason = err.Error()
		rec.conclude(ending{failed: true, permanent: permanent}, now())
	})
}

func (r *replica) startTask(ctx context.Context) (started driver.Status, err error) {
	if r.driver == nil {
		return started, fmt.Errorf("%w: this node has no driver %q", driver.ErrInvalid, driverName(r.rec.Assignment))
	}
	dir, err := r.logs.claim(r.uid)
	if err != nil {
		return started, err
	}
	task, err := describe(r.rec.Assignment, r.rec.Attempt, dir, r.limits)
	if err != nil {
		return started, err
	}
	task.Login = r.login()
	task.MaxUnpacked = r.disk.Load().GetMaxUnpackedImage()
	task.Resources.OOMScore = pressure.OOMScore(spec.PriorityOf(r.rec.Assignment.GetRevision().GetSpec().GetWorkload()), memoryRequest(r.rec.Assignment), r.memory)
	if r.rec.singleton() {
		task.Lease = r.leases.Path(r.uid)
	}
	if err := r.addGPUs(&task); err != nil {
		return started, err
	}
	if err := r.drive(ctx, "prepare", func(ctx context.Context) error { return r.prepare(ctx, task) }); err != nil {
		return started, err
	}
	if err := r.connect(ctx, &task); err != nil {
		return started, err
	}
	if err := r.addSecrets(&task); err != nil {
		return started, err
	}
	if err := r.identify(&task); err != nil {
		return started, err
	}
	select { // more in parallel would only compete for the same CPUs
	case r.starts <- struct{}{}:
		defer func() { <-r.starts }()
	case <-ctx.Done():
		return started, ctx.Err()
	}
	err = r.drive(ctx, "start", func(ctx context.Context) (err error) {
		started, err = r.driver.Start(ctx, task)
		return err
	})
	return started, err
}

// running -> backoff, completed or failed, when the task has exited or its probes say that it must be restarted. Until
// then, its probes say whether it serves.
func (r *replica) watch(ctx, armed context.Context) error {
	health := r.watchHealth(ctx)
	waiting, cancel := context.WithCancel(armed)
	exits := r.waitInBackground(waiting)
	defer func() {
		cancel()
		<-exits // closed
	}()
	expired, stop := r.leaseExpires()
	defer stop()
	changes := r.watchSecrets()
	for {
		select {
		case <-changes:
			if restart, err := r.refreshSecrets(armed); err != nil || restart != "" {
				return errors.Join(err, r.endChanged(armed, restart))
			}
		case <-expired:
			if left, _ := r.leases.Left(r.uid); left < leaseReserve {
				return r.endExpired(ctx)
			}
		case exit := <-exits:
			switch {
			case exit.err == nil:
			case armed.Err() != nil:
				return nil
			default:
				return fmt.Errorf("wait for task: %w", exit.err)
			}
			return r.recordExit(r.rec.seenExit(exit.Exit), false)
		case <-health.news:
			verdict := health.last()
			err := r.accept(verdict)
			if err == nil && verdict.Restart != "" {
				if err = r.endUnhealthy(armed, verdict); err == nil {
					return nil
				}
			}
			if err != nil {
				health.set(verdict) // for the next try
				return err
			}
		}
	}
}

// recordExit ends the attempt whose task has exited.
func (r *replica) recordExit(exit *v1.Exit, unhealthy bool) error {
	r.withdraw()
	r.endHealth()
	r.log.Info("replica exited", "attempt", r.rec.Attempt, "code", exit.GetCode(), "oom", exit.GetOomKilled(), "reason", exit.GetReason())
	r.metrics.Exited(resultOf(exit, unhealthy))
	return r.advance(func(rec *record) { rec.exited(exit, unhealthy) })
}

// endUnhealthy stops a task whose probes say that it must be restarted. Whether it is restarted is up to its policy.
func (r *replica) endUnhealthy(ctx context.Context, v probe.Verdict) error {
	id := taskID(r.uid, r.rec.Attempt)
	err := r.drive(ctx, "stop", func(ctx context.Context) error { return stop(ctx, r.driver, id, r.rec.Assignment) })
	if err != nil && !errors.Is(err, driver.ErrNotFound) {
		return fmt.Errorf("stop the unhealthy task: %w", err)
	}
	exit, err := r.wait(ctx)
	if err != nil {
		return fmt.Errorf("wait for the unhealthy task: %w", err)
	}
	exit.Reason = v.Restart
	if output := v.Failed.GetOutput(); output != "" {
		exit.Reason = sentence(v.Restart + " Output: " + output)
	}
	return r.recordExit(exit, true)
}

// leaseReserve is how long before the end of its lease a singleton is stopped, and how long it may take to end. The shim
// kills it then.
const leaseReserve = 3 * time.Second

// leaseCheck is how often the lease of a running singleton is looked at.
const leaseCheck = 250 * time.Millisecond

// singleton reports whether the replica must be the only one of its workload that runs.
func (r *record) singleton() bool {
	return r.Assignment.GetRevision().GetSpec().GetWorkload().GetSingleton()
}

// awaitLease waits until a singleton may run, and reports whether it may.
func (r *replica) awaitLease(ctx context.Context) bool {
	for r.rec.singleton() {
		left, changed := r.leases.Left(r.uid)
		if left > leaseReserve {
			r.clearProblem()
			break
		}
		r.reportProblem(errNoLease)
		r.wantsLease()
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
	return true
}

var errNoLease = errors.New("it waits for its lease, so that no other replica of this singleton runs")

// leaseExpires ticks while a singleton runs.
func (r *replica) leaseExpires() (<-chan time.Time, func()) {
	if !r.rec.singleton() {
		return nil, func() {}
	}
	ticker := time.NewTicker(leaseCheck)
	return ticker.C, ticker.Stop
}

// endExpired stops a singleton whose lease is about to expire, because no server has renewed it. It starts again when it
// gets another lease.
func (r *replica) endExpired(ctx context.Context) error {
	r.withdraw()
	r.endHealth()
	r.log.Warn("no server has renewed the lease of a singleton; it stops", "attempt", r.rec.Attempt)
	id := taskID(r.uid, r.rec.Attempt)
	signal, grace := stopOf(r.rec.Assignment)
	err := r.drive(ctx, "stop", func(ctx context.Context) error { return r.driver.Stop(ctx, id, signal, min(grace, leaseReserve)) })
	if err != nil && !errors.Is(err, driver.ErrNotFound) {
		return fmt.Errorf("stop the singleton: %w", err)
	}
	if err := r.removeTask(ctx); err != nil {
		return err
	}
	return r.advance(func(rec *record) {
		const reason = "No server has renewed its lease in time."
		rec.Status.LastExit = &v1.Exit{Code: lostCode, Reason: reason, Time: now()}
		rec.interrupted(reason, time.Now())
	})
}

// endChanged stops a task because files of it have changed, and the next attempt begins. That counts as no failure.
func (r *replica) endChanged(ctx context.Context, reason string) error {
	if reason == "" {
		return nil
	}
	exit, err := r.stopTask(ctx)
	if err != nil {
		return err
	}
	return r.advance(func(rec *record) {
		if exit != nil {
			exit.Reason = reason
			rec.Status.LastExit = exit
		}
		rec.interrupted(reason, time.Now())
	})
}

// wait returns how the current task ended. A task that is gone has ended, too.
func (r *replica) wait(ctx context.Context) (*v1.Exit, error) {
	exit := <-r.waitInBackground(ctx)
	if exit.err != nil {
		return nil, exit.err
	}
	return r.rec.seenExit(exit.Exit), nil
}

// taskExit is how a task ended, or why that is not known.
type taskExit struct {
	driver.Exit
	err error
}

// waitInBackground sends how the current task ended, and closes the channel.
func (r *replica) waitInBackground(ctx context.Context) <-chan taskExit {
	exits := make(chan taskExit, 1)
	if r.driver == nil {
		exits <- taskExit{err: fmt.Errorf("this node no longer has a driver %q", driverName(r.rec.Assignment))}
		close(exits)
		return exits
	}
	id := taskID(r.uid, r.rec.Attempt)
	go func() {
		defer close(exits)
		exit, err := r.driver.Wait(ctx, id)
		if errors.Is(err, driver.ErrNotFound) {
			exit, err = driver.Exit{Code: lostCode, Reason: "The task has disappeared: something else than Cloudless removed it."}, nil
		}
		exits <- taskExit{exit, err}
	}()
	return exits
}

// seenExit converts an exit to the API's type.
func (r *record) seenExit(exit driver.Exit) *v1.Exit {
	switch {
	case exit.OOMKilled:
		exit.Reason = spec.OutOfMemory(memoryLimit(r.Assignment))
	case exit.ChildOOMKilled:
		exit.Reason = "A process that it had started was killed. " + spec.OutOfMemory(memoryLimit(r.Assignment))
	}
	seen := &v1.Exit{Code: int32(exit.Code), OomKilled: exit.OOMKilled, Reason: sentence(exit.Reason), Time: now()}
	if !exit.At.IsZero() {
		seen.Time = timestamppb.New(exit.At)
	}
	return seen
}

// memoryLimit is the replica's memory limit. It is empty if there is none.
func memoryLimit(a *v1.Assignment) string {
	return a.GetRevision().GetSpec().GetWorkload().GetResources().GetLimits().GetMemory()
}

// exited ends an attempt that ran and decides what follows. One that was ended because it was unhealthy has failed,
// whatever its exit code is.
func (r *record) exited(exit *v1.Exit, unhealthy bool) {
	e := ending{started: true, failed: unhealthy || exit.GetCode() != 0 || exit.GetOomKilled()}
	if since := r.Status.GetStartTime(); since != nil {
		e.ran = exit.GetTime().AsTime().Sub(since.AsTime())
	}
	r.Status.LastExit, r.Status.Reason = exit, explain(exit)
	r.conclude(e, exit.GetTime())
}

// conclude ends an attempt that ended at that time, and decides what follows.
func (r *record) conclude(e ending, at *timestamppb.Timestamp) {
	d := r.policy().after(e, r.Failures, rand.Float64())
	r.Status.Phase, r.Status.Pid = d.phase, 0
	r.Failures = d.failures
	if d.phase == spec.PhaseBackoff {
		r.Resume = time.Now().Add(d.pause)
		return
	}
	r.Status.EndTime = at
}

// explain says what a bare exit code does not.
func explain(exit *v1.Exit) string {
	switch {
	case exit.GetReason() != "":
		return exit.GetReason()
	case exit.GetCode() != 0:
		return fmt.Sprintf("It exited with code %d.", exit.GetCode())
	}
	return ""
}

// backoff -> preparing, when the pause is over.
func (r *replica) pause(ctx, armed context.Context) error {
	if err := r.removeTask(ctx); err != nil {
		return err
	}
	r.clearProblem() // an old problem must not be shown during the pause
	// A clock that was set back must not make the pause longer.
	policy := r.rec.policy()
	_ = sleep.For(armed, min(time.Until(r.rec.Resume), max(policy.first, policy.max)))
	if armed.Err() != nil {
		return nil
	}
	return r.again(r.rec.Started)
}

// backoff or stopped -> preparing: the next attempt.
func (r *replica) again(restart bool) error {
	if restart {
		r.metrics.Restarted()
	}
	return r.advance(func(rec *record) {
		rec.Attempt++
		rec.Started = false
		rec.Resume, rec.Evicted = time.Time{}, ""
		rec.Status.Phase = spec.PhasePreparing
		if restart {
			rec.Status.Restarts++
		}
	})
}

// placed, preparing, running or backoff -> stopping, because it is not wanted or evicted. A
// failure to record that must not keep the replica running; after a crash it is determined
// again.
func (r *replica) beginStop(evicted string) {
	stopping := func(rec *record) {
		rec.Status.Phase, rec.Status.Reason, rec.Evicted = spec.PhaseStopping, evicted, evicted
	}
	if err := r.advance(stopping); err != nil {
		r.log.Warn("cannot record that the replica stops", "error", err)
		stopping(&r.rec)
		r.publish()
	}
}

// stopping -> stopped.
func (r *replica) stop(ctx context.Context) error {
	exit, err := r.stopTask(ctx)
	if err != nil {
		return err
	}
	r.gpus.release(r.uid)
	return r.advance(func(rec *record) {
		rec.Status.Phase, rec.Status.Pid, rec.Status.Reason = spec.PhaseStopped, 0, rec.Evicted
		rec.Status.EndTime = now()
		if exit != nil {
			rec.Status.LastExit, rec.Status.EndTime = exit, exit.GetTime()
		}
		rec.Started, rec.Failures, rec.Resume = false, 0, time.Time{}
	})
}

// stopTask stops and removes the task. The exit is nil if there was no task.
func (r *replica) stopTask(ctx context.Context) (*v1.Exit, error) {
	r.withdraw()
	r.endHealth()
	if r.driver == nil {
		return nil, nil
	}
	if r.rec.Started && len(r.rec.Assignment.GetRevision().GetSpec().GetWorkload().GetPorts()) > 0 {
		r.leave(ctx)
	}
	id, longest := taskID(r.uid, r.rec.Attempt), longestGrace
	if r.rec.Evicted != "" {
		longest = evictionGrace
	}
	err := r.drive(ctx, "stop", func(ctx context.Context) error { return stopWithin(ctx, r.driver, id, r.rec.Assignment, longest) })
	if errors.Is(err, driver.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stop task: %w", err)
	}
	var exit *v1.Exit
	if r.rec.Started {
		exit, err = r.wait(ctx)
		// The exit of a partly removed task is lost.
		if err != nil && !errors.Is(err, driver.ErrNotRunning) {
			return nil, fmt.Errorf("wait for stopped task: %w", err)
		}
	}
	return exit, r.removeTask(ctx)
}

// removeTask removes the task of the current attempt, if it exists, and the secrets that it had.
func (r *replica) removeTask(ctx context.Context) error {
	if r.driver == nil {
		return nil
	}
	id := taskID(r.uid, r.rec.Attempt)
	err := r.drive(ctx, "remove", func(ctx context.Context) error { return r.driver.Remove(ctx, id) })
	if err != nil && !errors.Is(err, driver.ErrNotFound) {
		return fmt.Errorf("remove task: %w", err)
	}
	return r.secrets.Release(r.uid)
}

// awaitChange waits until the cluster wants something else of a replica that has ended.
func (r *replica) awaitChange(ctx, armed context.Context) error {
	if err := r.removeTask(ctx); err != nil {
		return err
	}
	r.gpus.release(r.uid)
	r.clearProblem() // no later step may clear it
	<-armed.Done()
	return nil
}

// stopped -> preparing, if the replica was evicted and no server has placed another one elsewhere meanwhile: then none
// can be reached, and the node must help itself.
func (r *replica) awaitRoom(ctx, armed context.Context) error {
	if err := r.removeTask(ctx); err != nil {
		return err
	}
	r.clearProblem()
	if sleep.For(armed, evictionPause) != nil {
		return nil
	}
	return r.again(false)
}

// completed, failed or stopped -> gone.
func (r *replica) cleanUp(ctx context.Context) (gone bool, err error) {
	if err := r.removeTask(ctx); err != nil {
		return false, err
	}
	r.gpus.release(r.uid)
	if err := r.network.Detach(ctx, r.uid); err != nil {
		return false, err
	}
	if err := r.logs.release(r.uid); err != nil {
		return false, err
	}
	if err := r.store.remove(r.uid); err != nil {
		return false, err
	}
	if err := r.identity.Close(r.uid); err != nil {
		return false, err
	}
	r.leases.Forget(r.uid)
	r.saved = false
	return r.forget(r), nil
}

// sentence makes external text fit for the API.
func sentence(text string) string {
	const longest = 1000
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
