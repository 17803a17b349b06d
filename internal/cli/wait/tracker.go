package wait

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/spec"
)

// tracker knows the workloads that were changed, and their replicas. It decides whether they are as they were asked to
// be, or never will be.
type tracker struct {
	workloads []*tracked
	synced    map[string]bool // by namespace
	// watched is how long the workloads have been watched. It does not count the time in which this program was
	// stopped: updates of that time are still on their way.
	watched time.Duration
}

// tracked is a workload that the tracker follows.
type tracked struct {
	action string
	// asked is the workload as it was applied; only its name if it was deleted.
	asked *cloudlessv1.Workload
	now   *cloudlessv1.Workload // nil if it does not exist
	// deployment is the one that the request has made or has found open; nil if there is none.
	deployment *cloudlessv1.Deployment
	// replicas by uid.
	replicas map[string]*cloudlessv1.Replica
	// failures counts by uid how often a replica has failed to run.
	failures map[string]int
	// since is when, by tracker.watched, a replica was first seen in its present phase, by uid.
	since map[string]time.Duration
}

func newTracker(workloads ...*tracked) *tracker {
	t := &tracker{workloads: workloads, synced: map[string]bool{}}
	for _, w := range workloads {
		t.synced[w.asked.GetMetadata().GetNamespace()] = false
		w.reset()
	}
	return t
}

// trackPlan tracks the workloads of a plan that was applied.
func trackPlan(applied *cloudlessv1.ApplyPlanResponse) *tracker {
	byPath := map[string]*cloudlessv1.Workload{}
	for _, w := range spec.WorkloadsIn(applied.GetObjects()) {
		byPath[phrase.Path(w.GetMetadata())] = w
	}
	var workloads []*tracked
	for _, change := range applied.GetPlan().GetChanges() {
		if change.GetKind() != spec.KindWorkload {
			continue
		}
		meta := &cloudlessv1.Metadata{Namespace: change.GetNamespace(), Name: change.GetName()}
		asked := byPath[phrase.Path(meta)]
		if asked == nil {
			asked = &cloudlessv1.Workload{Metadata: meta}
		}
		workloads = append(workloads, &tracked{action: change.GetAction(), asked: asked})
	}
	return newTracker(workloads...)
}

// asked are the workloads as they were asked for.
func (t *tracker) asked() (all []*cloudlessv1.Workload) {
	for _, w := range t.workloads {
		all = append(all, w.asked)
	}
	return all
}

func (w *tracked) reset() {
	w.now, w.replicas = nil, map[string]*cloudlessv1.Replica{}
	if w.failures == nil {
		w.failures, w.since = map[string]int{}, map[string]time.Duration{}
	}
}

// names are the names of the workloads in a namespace.
func (t *tracker) names(namespace string) (all []string) {
	for _, w := range t.workloads {
		if w.asked.GetMetadata().GetNamespace() == namespace {
			all = append(all, w.asked.GetMetadata().GetName())
		}
	}
	return all
}

// update takes an update of a namespace, and returns the workload that it is about, if it is tracked.
func (t *tracker) update(namespace string, update client.Update) *tracked {
	switch {
	case update.Reset:
		t.synced[namespace] = false
		for _, w := range t.workloads {
			if w.asked.GetMetadata().GetNamespace() == namespace {
				w.reset()
			}
		}
	case update.Synced:
		t.synced[namespace] = true
	case update.Workload != nil:
		if w := t.find(namespace, update.Workload.GetMetadata().GetName()); w != nil {
			if w.now = update.Workload; update.Removed {
				w.now = nil
			}
			return w
		}
	case update.Deployment != nil:
		if w := t.find(namespace, update.Deployment.GetSpec().GetWorkload()); w != nil {
			w.updateDeployment(update.Deployment, update.Removed)
			return w
		}
	case update.Replica != nil:
		if w := t.find(namespace, update.Replica.GetSpec().GetWorkload()); w != nil {
			w.updateReplica(update.Replica, update.Removed, t.watched)
			return w
		}
	}
	return nil
}

func (t *tracker) find(namespace, name string) *tracked {
	for _, w := range t.workloads {
		if m := w.asked.GetMetadata(); m.GetNamespace() == namespace && m.GetName() == name {
			return w
		}
	}
	return nil
}

func (w *tracked) updateReplica(r *cloudlessv1.Replica, removed bool, now time.Duration) {
	uid := r.GetMetadata().GetUid()
	if removed {
		delete(w.replicas, uid)
		return
	}
	before, known := w.replicas[uid]
	restarted := known && r.GetStatus().GetRestarts() > before.GetStatus().GetRestarts()
	if !known || restarted || before.GetStatus().GetPhase() != r.GetStatus().GetPhase() {
		w.since[uid] = now
	}
	// The first restart is immediate: the watch may not have shown the backoff before it.
	if restarted && before.GetStatus().GetPhase() != spec.PhaseBackoff {
		w.failures[uid]++
	}
	if r.GetStatus().GetPhase() == spec.PhaseBackoff {
		if known && before.GetStatus().GetPhase() != spec.PhaseBackoff || w.failures[uid] == 0 {
			w.failures[uid]++
		}
		w.failures[uid] = max(w.failures[uid], int(r.GetStatus().GetRestarts())+1)
	}
	w.replicas[uid] = r
}

// shown are the replicas to show: those that have not ended, and those of the current revision that have.
func (w *tracked) shown() []*cloudlessv1.Replica {
	var all []*cloudlessv1.Replica
	for _, r := range w.replicas {
		switch phase := r.GetStatus().GetPhase(); {
		case phase == spec.PhaseStopped, phase == spec.PhaseLost:
		case (phase == spec.PhaseCompleted || phase == spec.PhaseFailed) && r.GetSpec().GetRevisionUid() != w.now.GetStatus().GetRevisionUid():
		default:
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(x, y *cloudlessv1.Replica) int {
		return cmp.Compare(x.GetMetadata().GetUid(), y.GetMetadata().GetUid())
	})
	return all
}

// verdict is what the tracker decides. The zero value means to go on waiting.
type verdict struct {
	done bool
	// err says that another user removed a workload.
	err error
	// ended is a workload whose deployment has failed or was rolled back.
	ended *tracked
	// broken is a replica that will not run, of workload of.
	broken *cloudlessv1.Replica
	of     *tracked
	// stuck are workloads that are not done while nothing moves: there may be no place for them.
	stuck []*tracked
}

// steadyFor is how long a new replica must run before it counts as up. A replica that has ended before must run longer,
// because it may end again.
const steadyFor = time.Second

func (w *tracked) steadyFor(uid string) time.Duration {
	return steadyFor * time.Duration(1+4*w.failures[uid])
}

// steady reports whether all replicas of the current revision have run for a while. A workload that was not changed
// counts as steady, and so does one whose deployment has succeeded. The replicas decide: their watch may be ahead of that of the workload.
func (w *tracked) steady(now time.Duration) bool {
	if !w.changed() || w.deployed() {
		return true
	}
	for uid, r := range w.replicas {
		if r.GetSpec().GetRevisionUid() != w.now.GetStatus().GetRevisionUid() || r.GetSpec().GetDesired() == spec.DesiredStopped || phrase.Ended(r) {
			continue
		}
		if !spec.Serves(r) || now-w.since[uid] < w.steadyFor(uid) {
			return false
		}
	}
	return true
}

// crashLoop is the number of failures after which a replica counts as broken.
const crashLoop = 3

func (t *tracker) judge() verdict {
	for _, synced := range t.synced {
		if !synced {
			return verdict{}
		}
	}
	var stuck []*tracked
	moving, open, steady := false, false, true
	for _, w := range t.workloads {
		there, err := w.done()
		if err != nil {
			return verdict{err: err}
		}
		if ExitOf(w.deployment) != 0 {
			return verdict{ended: w}
		}
		if broken := w.broken(); broken != nil && w.action != spec.ActionDelete && !w.rollsBack() {
			return verdict{broken: broken, of: w}
		}
		moving = moving || w.moving(t.watched) || !there && w.deploying() && !w.waitsForRoom(t.watched)
		steady = steady && w.steady(t.watched)
		if !there {
			open = true
			stuck = append(stuck, w)
		}
	}
	switch {
	case !open:
		return verdict{done: steady}
	case moving:
		return verdict{}
	}
	return verdict{stuck: stuck}
}

// done reports whether the workload is as it was asked to be.
func (w *tracked) done() (bool, error) {
	if w.action == spec.ActionDelete {
		return w.now.GetMetadata().GetDeleteTime() == nil, nil // gone, or created again
	}
	name := w.asked.GetMetadata().GetName()
	if w.now == nil || w.now.GetMetadata().GetUid() != w.asked.GetMetadata().GetUid() {
		return false, fmt.Errorf("workload %s was removed meanwhile", name)
	}
	if w.now.GetMetadata().GetVersion() < w.asked.GetMetadata().GetVersion() {
		return false, nil
	}
	status := w.now.GetStatus()
	if there, decided, err := w.doneByKind(); decided && status.GetPhase() != spec.PhaseDeleting {
		return there, err
	}
	switch status.GetPhase() {
	case spec.PhaseCompleted:
		return true, nil
	case spec.PhaseDeleting:
		return false, fmt.Errorf("workload %s is being removed", name)
	}
	if w.deploying() {
		return w.deployed(), nil
	}
	return status.GetDesired() == phrase.Desired(w.now) && status.GetRunning() == status.GetDesired() &&
		status.GetPending() == 0 && status.GetOutdated() == 0, nil
}

// broken is a replica of the current revision that will clearly not run.
func (w *tracked) broken() *cloudlessv1.Replica {
	for _, r := range w.shown() {
		if r.GetSpec().GetRevisionUid() != w.now.GetStatus().GetRevisionUid() || r.GetSpec().GetDesired() == spec.DesiredStopped {
			continue
		}
		switch r.GetStatus().GetPhase() {
		case spec.PhaseFailed:
			if phrase.KindOf(w.now) == spec.KindJob {
				break // another one replaces it, or the job as a whole has failed
			}
			return r
		case spec.PhaseBackoff, spec.PhasePreparing:
			if w.failures[r.GetMetadata().GetUid()] >= crashLoop {
				return r
			}
		}
	}
	return nil
}

// awayFor is how long to wait for an offline node. Most are back soon, and their replicas with them.
const awayFor = 30 * time.Second

// moving reports whether a replica is changing, so that more updates will come.
func (w *tracked) moving(now time.Duration) bool {
	for uid, r := range w.replicas {
		switch r.GetStatus().GetPhase() {
		case spec.PhaseUnknown:
			if now-w.since[uid] < awayFor {
				return true
			}
		case spec.PhasePlaced, spec.PhasePreparing, spec.PhaseStopping, spec.PhaseBackoff:
			return true
		case spec.PhaseRunning:
			if r.GetSpec().GetDesired() == spec.DesiredStopped || !spec.Serves(r) {
				return true
			}
		}
	}
	return false
}

// doneByKind is done for the kinds that are not done when a number of replicas runs.
func (w *tracked) doneByKind() (there, decided bool, err error) {
	switch status := w.now.GetStatus(); phrase.KindOf(w.now) {
	case spec.KindJob:
		if status.GetPhase() == spec.PhaseFailed {
			meta := w.now.GetMetadata()
			return false, true, &JobFailedError{job: meta, reason: status.GetReason()}
		}
		return status.GetPhase() == spec.PhaseCompleted, true, nil
	case spec.KindCron:
		return true, true, nil
	default:
		return false, false, nil
	}
}
