package cli

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/spec"
)

// scene is what is known of the workloads that were changed and of their replicas. It judges whether they have
// arrived where they were asked to be, or never will.
type scene struct {
	actors []*actor
	synced map[string]bool // by namespace
	// awake is for how long it has been watched. It stands still while this program does: what the cluster has said
	// meanwhile is still on its way.
	awake time.Duration
}

// actor is one workload.
type actor struct {
	action string
	// asked is the workload as it was applied; only its name is known if it was deleted.
	asked *cloudlessv1.Workload
	now   *cloudlessv1.Workload // nil if it does not exist
	// replicas by uid.
	replicas map[string]*cloudlessv1.Replica
	// failures counts by uid how often a replica has failed to run.
	failures map[string]int
	// since is when, in the scene's time, a replica was first seen in the phase that it has, by uid.
	since map[string]time.Duration
}

func newScene(actors ...*actor) *scene {
	s := &scene{actors: actors, synced: map[string]bool{}}
	for _, a := range actors {
		s.synced[a.asked.GetMetadata().GetNamespace()] = false
		a.forget()
	}
	return s
}

// sceneOf is the scene of a plan that was carried out.
func sceneOf(applied *cloudlessv1.ApplyPlanResponse) *scene {
	workloads := map[string]*cloudlessv1.Workload{}
	for _, w := range spec.WorkloadsIn(applied.GetObjects()) {
		workloads[pathOf(w.GetMetadata())] = w
	}
	var actors []*actor
	for _, change := range applied.GetPlan().GetChanges() {
		if change.GetKind() != spec.KindWorkload {
			continue
		}
		meta := &cloudlessv1.Metadata{Namespace: change.GetNamespace(), Name: change.GetName()}
		asked := workloads[pathOf(meta)]
		if asked == nil {
			asked = &cloudlessv1.Workload{Metadata: meta}
		}
		actors = append(actors, &actor{action: change.GetAction(), asked: asked})
	}
	return newScene(actors...)
}

// asked are the workloads as they were asked for.
func (s *scene) asked() (all []*cloudlessv1.Workload) {
	for _, a := range s.actors {
		all = append(all, a.asked)
	}
	return all
}

func (a *actor) forget() {
	a.now, a.replicas = nil, map[string]*cloudlessv1.Replica{}
	if a.failures == nil {
		a.failures, a.since = map[string]int{}, map[string]time.Duration{}
	}
}

// names are the workloads of a namespace.
func (s *scene) names(namespace string) (all []string) {
	for _, a := range s.actors {
		if a.asked.GetMetadata().GetNamespace() == namespace {
			all = append(all, a.asked.GetMetadata().GetName())
		}
	}
	return all
}

// see takes in an update of a namespace, and returns whose it was, if it was one of these.
func (s *scene) see(namespace string, update client.Update) *actor {
	switch {
	case update.Reset:
		s.synced[namespace] = false
		for _, a := range s.actors {
			if a.asked.GetMetadata().GetNamespace() == namespace {
				a.forget()
			}
		}
	case update.Synced:
		s.synced[namespace] = true
	case update.Workload != nil:
		if a := s.find(namespace, update.Workload.GetMetadata().GetName()); a != nil {
			if a.now = update.Workload; update.Removed {
				a.now = nil
			}
			return a
		}
	case update.Replica != nil:
		if a := s.find(namespace, update.Replica.GetSpec().GetWorkload()); a != nil {
			a.seeReplica(update.Replica, update.Removed, s.awake)
			return a
		}
	}
	return nil
}

func (s *scene) find(namespace, name string) *actor {
	for _, a := range s.actors {
		if m := a.asked.GetMetadata(); m.GetNamespace() == namespace && m.GetName() == name {
			return a
		}
	}
	return nil
}

func (a *actor) seeReplica(r *cloudlessv1.Replica, removed bool, now time.Duration) {
	uid := r.GetMetadata().GetUid()
	if removed {
		delete(a.replicas, uid)
		return
	}
	before, known := a.replicas[uid]
	restarted := known && r.GetStatus().GetRestarts() > before.GetStatus().GetRestarts()
	if !known || restarted || before.GetStatus().GetPhase() != r.GetStatus().GetPhase() {
		a.since[uid] = now
	}
	// The first restart is immediate, so that nobody may have seen the pause before it.
	if restarted && before.GetStatus().GetPhase() != "backoff" {
		a.failures[uid]++
	}
	if r.GetStatus().GetPhase() == "backoff" {
		if known && before.GetStatus().GetPhase() != "backoff" || a.failures[uid] == 0 {
			a.failures[uid]++
		}
		a.failures[uid] = max(a.failures[uid], int(r.GetStatus().GetRestarts())+1)
	}
	a.replicas[uid] = r
}

// shown are the replicas that matter: those that live, and those of the wanted revision that have ended.
func (a *actor) shown() []*cloudlessv1.Replica {
	var all []*cloudlessv1.Replica
	for _, r := range a.replicas {
		switch phase := r.GetStatus().GetPhase(); {
		case phase == "stopped", phase == "lost":
		case (phase == "completed" || phase == "failed") && r.GetSpec().GetRevisionUid() != a.now.GetStatus().GetRevisionUid():
		default:
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(x, y *cloudlessv1.Replica) int {
		return cmp.Compare(x.GetMetadata().GetUid(), y.GetMetadata().GetUid())
	})
	return all
}

// judgement is what a scene comes to. Nothing of it means to go on waiting.
type judgement struct {
	arrived bool
	// err says that somebody else took the workload away.
	err error
	// broken is a replica that will not run, of this workload.
	broken *cloudlessv1.Replica
	of     *actor
	// stuck may have no place: nothing moves and something is missing.
	stuck []*actor
}

// steadyFor is how long a replica that was just started must run: one that ends at once has never been up. One that
// has ended before must run for longer each time: it may do so again.
const steadyFor = time.Second

func (a *actor) steadyFor(uid string) time.Duration {
	return steadyFor * time.Duration(1+4*a.failures[uid])
}

// steady reports whether all that is wanted has run for a while. What was not changed is left alone. It asks the
// replicas: their watch may be ahead of that of the workload.
func (a *actor) steady(now time.Duration) bool {
	if a.action != actionCreate && a.action != actionUpdate {
		return true
	}
	for uid, r := range a.replicas {
		if r.GetSpec().GetRevisionUid() != a.now.GetStatus().GetRevisionUid() || r.GetSpec().GetDesired() == "stopped" || ended(r) {
			continue
		}
		if r.GetStatus().GetPhase() != "running" || now-a.since[uid] < a.steadyFor(uid) {
			return false
		}
	}
	return true
}

// crashLoop is how many failures of one replica make clear that it will not run.
const crashLoop = 3

func (s *scene) judge() judgement {
	for _, synced := range s.synced {
		if !synced {
			return judgement{}
		}
	}
	var stuck []*actor
	moving, open, steady := false, false, true
	for _, a := range s.actors {
		there, err := a.arrived()
		if err != nil {
			return judgement{err: err}
		}
		if broken := a.broken(); broken != nil && a.action != actionDelete {
			return judgement{broken: broken, of: a}
		}
		moving = moving || a.moving(s.awake)
		steady = steady && a.steady(s.awake)
		if !there {
			open = true
			stuck = append(stuck, a)
		}
	}
	switch {
	case !open:
		return judgement{arrived: steady}
	case moving:
		return judgement{}
	}
	return judgement{stuck: stuck}
}

// arrived reports whether a workload is as it was asked to be.
func (a *actor) arrived() (bool, error) {
	if a.action == actionDelete {
		return a.now.GetMetadata().GetDeleteTime() == nil, nil // gone, or made anew
	}
	name := a.asked.GetMetadata().GetName()
	if a.now == nil || a.now.GetMetadata().GetUid() != a.asked.GetMetadata().GetUid() {
		return false, fmt.Errorf("workload %s was removed meanwhile", name)
	}
	if a.now.GetMetadata().GetVersion() < a.asked.GetMetadata().GetVersion() {
		return false, nil
	}
	status := a.now.GetStatus()
	if there, decided, err := a.arrivedByKind(); decided && status.GetPhase() != "deleting" {
		return there, err
	}
	switch status.GetPhase() {
	case "completed":
		return true, nil
	case "deleting":
		return false, fmt.Errorf("workload %s is being removed", name)
	}
	return status.GetDesired() == desired(a.now) && status.GetRunning() == status.GetDesired() &&
		status.GetPending() == 0 && status.GetOutdated() == 0, nil
}

// broken is a replica of the wanted revision of which it is clear that it will not run.
func (a *actor) broken() *cloudlessv1.Replica {
	for _, r := range a.shown() {
		if r.GetSpec().GetRevisionUid() != a.now.GetStatus().GetRevisionUid() || r.GetSpec().GetDesired() == "stopped" {
			continue
		}
		switch r.GetStatus().GetPhase() {
		case "failed":
			if kindOf(a.now) == spec.KindJob {
				break // another one takes its place, or the job as a whole has failed
			}
			return r
		case "backoff", "preparing":
			if a.failures[r.GetMetadata().GetUid()] >= crashLoop {
				return r
			}
		}
	}
	return nil
}

// awayFor is how long a node that is offline is hoped for: most are back soon, and what was there with them.
const awayFor = 30 * time.Second

// moving reports whether some replica is on its way, so that more will be seen.
func (a *actor) moving(now time.Duration) bool {
	for uid, r := range a.replicas {
		switch r.GetStatus().GetPhase() {
		case "unknown":
			if now-a.since[uid] < awayFor {
				return true
			}
		case "placed", "preparing", "stopping", "backoff":
			return true
		case "running":
			if r.GetSpec().GetDesired() == "stopped" {
				return true
			}
		}
	}
	return false
}
