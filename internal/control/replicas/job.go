package replicas

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// job takes the next step of a job. Its outcome is written into its status, which proves
// from then on that the work is done.
func (t *tick) job(w *v1.Workload) {
	if t.finished[w.GetMetadata().GetUid()] {
		return
	}
	have := t.survey(w)
	if have.gone {
		t.remove(w)
		return
	}
	t.wakeOwner(w)
	job := placement.JobOf(t.snap, w)
	job.Replicas = have.replicas
	step := rollout.NextOfJob(job, t.now)
	t.holdJob(w, have.replicas, &step)
	if step.Outcome != job.Outcome {
		t.finish(w, step)
	}
	t.loseAndStop(step.Lose, step.Stop)
	t.addSuccessors(w, step.Succeed)
	if !step.Again.IsZero() {
		t.later(w.GetMetadata().GetUid(), step.Again)
	}
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		t.waits(r)
	}
	t.add(w, step.Create, step.Cover, have)
}

// finish records the outcome of a job.
func (t *tick) finish(old *v1.Workload, step rollout.JobStep) {
	w := proto.CloneOf(old)
	w.Status.Job = &v1.JobStatus{
		Succeeded: int32(step.Succeeded), Failed: int32(step.Failed), Outcome: step.Outcome, Reason: step.Reason,
		EndTime: timestamppb.New(t.now), RevisionUid: old.GetStatus().GetRevisionUid(),
	}
	t.batch.Update(w, old.GetMetadata().GetVersion())
	t.finished[w.GetMetadata().GetUid()] = true
	if step.Outcome == spec.PhaseFailed {
		t.event(w, "Failed", step.Reason, state.SeverityWarning)
		return
	}
	t.event(w, "Completed", fmt.Sprintf("%d of its replicas completed, %d failed", step.Succeeded, step.Failed), state.SeverityInfo)
}

// survey is the result of examining a workload's replicas.
type survey struct {
	replicas []rollout.Replica
	// away holds the reasons why some replicas may need a cover.
	away map[string]bool
	// fallen are those that their nodes have taken down, and serving counts those that serve.
	fallen  casualties
	serving int
	// gone is whether the workload is deleted and none of its replicas is alive.
	gone bool
}

// maxExpected bounds the preallocation of a survey: a workload may ask for more replicas
// than there will ever be.
const maxExpected = 4096

// survey reads the replicas of a workload. Replicas on removed nodes are lost.
func (t *tick) survey(w *v1.Workload) survey {
	s := survey{away: map[string]bool{}, replicas: make([]rollout.Replica, 0, max(0, min(spec.Replicas(w), maxExpected)))}
	live, idle := false, services.Idle(t.snap, w)
	single := w.GetSpec().GetSingleton() || t.target(w).GetSpec().GetSingleton() // while its deployment waits
	counted, sound := &tally{revision: w.GetStatus().GetRevisionUid()}, true
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		one := rollout.ReplicaFromProto(r)
		one.Away = placement.Away(t.snap, r)
		if one.Away {
			if t.waitsForNode(w, r, &one); !one.Patient {
				s.away[r.GetSpec().GetNode()+" is offline"] = true
			}
		}
		if w.GetSpec().GetKind() != spec.KindDaemon {
			one.Chain = s.fallen.look(t, r, one.Away, one.Patient)
		}
		if one.Serves && !one.Away && placement.Wanted(r) {
			s.serving++
		}
		one.Idle = idle(r)
		for _, obey := range []func(*v1.Workload, *v1.Replica, *rollout.Replica) string{t.obeyTaints, t.obeyDrain, t.obeyMove} {
			if why := obey(w, r, &one); why != "" {
				s.away[why] = true
			}
		}
		if single {
			t.fence(w, r, &one, &s.fallen)
		} else if placement.NodeRemoved(t.snap, r) {
			t.lose(r, "node "+r.GetSpec().GetNode()+" was removed")
			one.Phase = spec.PhaseLost
		}
		counted.count(r, 1)
		sound = sound && staysOnNode(t.snap, r) && !one.Held
		s.replicas = append(s.replicas, one)
		live = live || spec.Live(r.GetStatus().GetPhase())
	}
	s.fallen.finish()
	if t.cluster.tallies[w.GetMetadata().GetUid()] = counted; !sound || len(s.fallen.evicted) > 0 {
		delete(t.cluster.tallies, w.GetMetadata().GetUid())
	}
	s.gone = w.GetMetadata().GetDeleteTime() != nil && !live
	return s
}

// loseAndStop loses and stops replicas by uid.
func (t *tick) loseAndStop(lose, stop []string) {
	for _, uid := range lose {
		r := t.snap.Replica(uid)
		t.lose(r, "node "+r.GetSpec().GetNode()+" is offline, and it is not needed there any more")
	}
	for _, uid := range stop {
		t.stop(t.snap.Replica(uid))
	}
}

// add creates replicas, and covers for replicas that are away or must leave their node.
func (t *tick) add(w *v1.Workload, create, cover int, have survey) {
	uid := w.GetMetadata().GetUid()
	for range create {
		if !t.take(uid) {
			return
		}
		if of, some := have.fallen.next(); some {
			t.start(w, &of)
		} else {
			t.start(w, nil)
		}
	}
	lost := have.fallen.lost[:min(cover, len(have.fallen.lost))]
	for range cover - len(lost) {
		if !t.room.has(1) {
			t.uncovered = append(t.uncovered, uid)
			return
		}
		t.cover(w, nil, have.away)
	}
	t.coverLost(w, lost, have)
}

// reasons are sorted in one text.
func reasons(all map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(all)), ", ") }

// dropCover discards a cover that found no place. The covered replica may still run: a
// cover that waits gains nothing.
func (t *tick) dropCover(r *v1.Replica) {
	workload := r.GetSpec().GetWorkloadUid()
	t.room.give(t.labelsOf(workload))
	if t.placeless[workload] = true; r.GetSpec().GetReplaces() != nil {
		t.budget.returned = true
	}
	t.blocked(t.snap.Workload(workload))
	t.departUncovered(workload)
}

// finishCovers leaves workloads that need more covers for the next tick, unless one of
// their covers already found no place.
func (t *tick) finishCovers() {
	for _, uid := range t.uncovered {
		if !t.placeless[uid] {
			t.left.Workloads[uid] = true
		}
	}
}
