package sim

import (
	"fmt"
	"math/rand/v2"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Jobs, crons and daemons: the requests of operators, and the invariants.

// anyKind draws the kind of a new workload.
func anyKind(c *rand.Rand) string {
	return []string{"", "", "", "", "", spec.KindJob, spec.KindJob, spec.KindDaemon, spec.KindCron}[c.IntN(9)]
}

// asKind turns a service's spec into another kind. Its numbers follow from those of the
// service.
func asKind(s *v1.WorkloadSpec, kind string) *v1.WorkloadSpec {
	if kind == "" {
		return s
	}
	made := proto.CloneOf(s)
	n := s.GetReplicas()
	made.Kind, made.Replicas, made.Restart, made.Singleton = kind, nil, nil, false
	made.MinAvailable = 0
	if kind != spec.KindDaemon {
		made.Update, made.Release = nil, nil
	} else if s := made.GetUpdate().GetStrategy(); s == spec.StrategyBlueGreen || s == spec.StrategyCanary {
		made.Update = nil
	}
	if kind != spec.KindDaemon {
		made.Job = &v1.Job{Completions: proto.Int32(1 + n), Parallelism: proto.Int32(1 + n/2), Retries: proto.Int32(n)}
		if n == 5 {
			made.Job.Deadline = "10m"
		}
	}
	if kind == spec.KindCron {
		made.Cron = &v1.Cron{
			Schedule: []string{"*/20 * * * *", "30 * * * *", "15 */2 * * *"}[n%3], TimeZone: "Europe/Berlin",
			Overlap: []string{spec.OverlapSkip, spec.OverlapAllow, spec.OverlapReplace}[n%3], KeepSucceeded: proto.Int32(n % 3),
		}
		if n == 4 {
			made.Cron.StartDeadline = "2m"
		}
	}
	return spec.Normalized(made)
}

// suspend suspends all crons, or resumes them: they would never come to rest.
func (w *World) suspend(suspended bool) {
	what := fmt.Sprintf("suspend crons: %v", suspended)
	w.operate(what, func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		for old := range snap.Workloads("", "") {
			if old.GetSpec().GetKind() != spec.KindCron || old.GetMetadata().GetDeleteTime() != nil || old.GetSpec().GetCron().GetSuspend() == suspended {
				continue
			}
			one := proto.CloneOf(old)
			one.Spec.Cron.Suspend = suspended
			w.revise(s, b, one)
			b.Update(one, old.GetMetadata().GetVersion())
		}
		return b.Len() > 0
	}, nil)
}

// checkWorkload checks a workload that has changed.
func (w *World) checkWorkload(p *proposal, before, after *v1.Workload) {
	if after == nil {
		return
	}
	name := after.GetMetadata().GetName()
	w.checkScale(p, before, after)
	if outcome := rollout.Outcome(after); outcome != "" {
		revision := after.GetStatus().GetRevisionUid()
		if earlier := w.oracle.over[revision]; earlier != "" && earlier != outcome {
			w.fail("a finished job stays finished", "%s was %s and is %s", name, earlier, outcome)
		}
		w.oracle.over[revision] = outcome
	} else if before != nil && rollout.Outcome(before) != "" && before.GetStatus().GetRevisionUid() == after.GetStatus().GetRevisionUid() {
		w.fail("a finished job stays finished", "%s was %s", name, rollout.Outcome(before))
	}
	if owner := after.GetStatus().GetOwnerUid(); owner != "" && before == nil {
		if spec.IsRelease(after) {
			w.checkRelease(p, owner, after)
			return
		}
		w.checkRun(p, owner, after)
	}
}

// checkRun checks that no time of a schedule has two jobs, and that they overlap only if
// allowed.
func (w *World) checkRun(p *proposal, owner string, run *v1.Workload) {
	name := run.GetMetadata().GetName()
	if w.oracle.runs[owner+name] {
		w.fail("a time of a schedule has one job", "%s is made again", name)
	}
	w.oracle.runs[owner+name] = true
	by := p.base.Workload(owner)
	if by == nil || by.GetMetadata().GetDeleteTime() != nil || by.GetSpec().GetCron().GetSuspend() {
		w.fail("only an existing cron creates jobs", "%s", name)
		return
	}
	if by.GetSpec().GetCron().GetOverlap() != spec.OverlapSkip {
		return
	}
	for other := range p.base.Workloads("", "") {
		if other.GetStatus().GetOwnerUid() == owner && rollout.Outcome(other) == "" {
			w.fail("jobs overlap only if allowed", "%s is made while %s is not over", name, other.GetMetadata().GetName())
		}
	}
}

// checkNewOfJob checks that a job creates no more replicas than it needs, and none after
// its end. Failures after the loop's snapshot do not count yet: the next tick stops the
// surplus.
func (w *World) checkNewOfJob(p *proposal, r *v1.Replica, one *v1.Workload, live int) {
	revision := r.GetSpec().GetRevisionUid()
	if outcome := w.oracle.over[revision]; outcome != "" && rollout.Outcome(one) != "" {
		w.fail("a finished job does not run again", "%s is made, and the job is %s", r.GetMetadata().GetName(), outcome)
	}
	completions, parallelism, retries, _ := spec.JobOf(one.GetSpec())
	done, failed := len(w.oracle.done[revision]), 0
	for uid := range w.oracle.failed[revision] {
		if seen := p.base.Replica(uid); seen == nil || spec.Ended(seen.GetStatus().GetPhase()) {
			failed++
		}
	}
	if live > parallelism || live+done > completions || failed > retries {
		w.fail("a job creates no more replicas than it needs", "%s is made, the %dth living one of %d that may; %d of %d have completed, %d failed and %d may",
			r.GetMetadata().GetName(), live, parallelism, done, completions, failed, retries)
	}
}

// checkNewOfDaemon checks that a node has one replica of a daemon, except for a waiting
// successor, and for one that starts beside an outdated one that served when the loop looked.
func (w *World) checkNewOfDaemon(p *proposal, r *v1.Replica, after *state.Snapshot) {
	for other := range after.ReplicasOf(r.GetSpec().GetWorkloadUid()) {
		if r.GetSpec().GetSucceeds() != "" && (other.GetMetadata().GetUid() == r.GetSpec().GetSucceeds() || !wanted(other)) {
			continue
		}
		if other.GetSpec().GetRevisionUid() != r.GetSpec().GetRevisionUid() && (spec.Serves(p.base.Replica(other.GetMetadata().GetUid())) || !wanted(other)) {
			continue
		}
		if other.GetMetadata().GetUid() != r.GetMetadata().GetUid() && spec.Live(other.GetStatus().GetPhase()) &&
			other.GetSpec().GetOnlyNodeUid() == r.GetSpec().GetOnlyNodeUid() {
			w.fail("a node has one replica of a daemon", "%s and %s are for %s", r.GetMetadata().GetName(), other.GetMetadata().GetName(), r.GetSpec().GetOnlyNode())
		}
	}
}

// mayGoByKind reports whether a job or a daemon may give a replica up in a state.
func (w *World) mayGoByKind(snap *state.Snapshot, one *v1.Workload, r *v1.Replica) bool {
	switch one.GetSpec().GetKind() {
	case spec.KindJob:
		completions, parallelism, _, _ := spec.JobOf(one.GetSpec())
		live := 0
		for other := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
			if wanted(other) {
				live++
			}
		}
		return w.oracle.over[r.GetSpec().GetRevisionUid()] != "" || live > min(parallelism, completions-len(w.oracle.done[r.GetSpec().GetRevisionUid()]))
	case spec.KindDaemon:
		n := snap.Node(r.GetSpec().GetOnlyNodeUid())
		if n == nil {
			return true
		}
		s := w.standing(snap, one, n)
		return !s.Keeps || r.GetSpec().GetNodeUid() == "" && !s.Takes
	}
	return false
}

// standing is how a node suits a daemon.
func (w *World) standing(snap *state.Snapshot, one *v1.Workload, n *v1.Node) scheduler.Suit {
	read, err := scheduler.RevisionFromProto(one, snap.Revision(one.GetStatus().GetRevisionUid()))
	if err != nil {
		w.fail("specs can be read", "%v", err)
		return scheduler.Suit{}
	}
	node := scheduler.NodeFromProto(n, spec.NodePolicy{})
	return scheduler.SuitOf(read, &node)
}

// jobAmiss checks that a job has ended, or waits for a reason.
func (w *World) jobAmiss(snap *state.Snapshot, one *v1.Workload, add func(string, ...any)) {
	outcome := rollout.Outcome(one)
	live, pending := 0, 0
	for r := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
		switch {
		case spec.Ended(r.GetStatus().GetPhase()):
		case placement.Away(snap, r) && spec.IsRelease(one): // it may still run there
			if outcome == "" {
				pending++
			}
		case placement.Away(snap, r) && wanted(r):
			if outcome == "" && !w.fits(snap, one, "") {
				pending++ // it may still run there
				continue
			}
			live++
		case r.GetStatus().GetPhase() == spec.PhasePending && wanted(r):
			pending++
		default:
			live++
		}
	}
	switch {
	case outcome != "" && live+pending > 0:
		add("it is %s, and %d still live", outcome, live+pending)
	case outcome != "":
	case live > 0 || pending == 0:
		add("its work is not done yet: %d live and %d wait", live, pending)
	case w.fits(snap, one, ""):
		add("%d wait though there is room", pending)
	}
}

// daemonAmiss checks that every suitable node has one replica of the current revision, or
// no room for it.
func (w *World) daemonAmiss(snap *state.Snapshot, one *v1.Workload, add func(string, ...any)) {
	revision := one.GetStatus().GetRevisionUid()
	need, _ := w.needsOf(snap, revision)
	has, serving := map[string]*v1.Replica{}, 0
	for r := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
		if spec.Ended(r.GetStatus().GetPhase()) {
			continue
		}
		node := r.GetSpec().GetOnlyNodeUid()
		doubled := has[node] != nil && !(placement.Away(snap, r) && r.GetSpec().GetRevisionUid() != has[node].GetSpec().GetRevisionUid())
		if doubled || !wanted(r) {
			add("%s is %s on %s and should not be there", r.GetMetadata().GetName(), r.GetStatus().GetPhase(), r.GetSpec().GetOnlyNode())
		}
		if has[node] = r; spec.Serves(r) && !placement.Away(snap, r) {
			serving++
		}
	}
	for n := range snap.Nodes("") {
		uid, name := n.GetMetadata().GetUid(), n.GetMetadata().GetName()
		s, r := w.standing(snap, one, n), has[uid]
		delete(has, uid)
		switch {
		case r == nil && s.Takes:
			add("none is on %s", name)
		case r == nil, placement.Away(snap, r) && s.Keeps:
		case !s.Keeps:
			add("one is on %s, which does not suit", name)
		case r.GetSpec().GetRevisionUid() != revision:
			uid := r.GetMetadata().GetUid()
			if serving <= int(one.GetSpec().GetMinAvailable()) {
				uid = "" // it must not make room
			}
			if s.Takes && w.withinQuota(snap, one, need, uid) && w.hasRoom(snap, n, one, need, uid) {
				add("%s is outdated though there is room", r.GetMetadata().GetName())
			}
		case r.GetStatus().GetPhase() == spec.PhasePending:
			if w.withinQuota(snap, one, need, "") && w.hasRoom(snap, n, one, need, "") {
				add("one waits for %s though there is room", name)
			}
		case !spec.Serves(r):
			add("%s is %s: %s", r.GetMetadata().GetName(), r.GetStatus().GetPhase(), r.GetStatus().GetUnready())
		}
	}
	for _, r := range has {
		add("%s is for a node that is not there", r.GetMetadata().GetName())
	}
}
