package server

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/crontab"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// What is special about jobs, crons and daemons at the edge.

// RunWorkload creates a job of a cron now. It ignores the schedule and the overlap policy,
// and does not delay scheduled runs.
func (s *workloads) RunWorkload(ctx context.Context, request *v1.RunWorkloadRequest) (*v1.Workload, error) {
	receipt, err := core.NewReceipt(ctx, v1.WorkloadService_RunWorkload_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	namespace := orDefault(request.GetNamespace())
	made, _, err := s.once(ctx, receipt, func(tx *transaction) (*v1.Workload, string, error) {
		cron := tx.base.WorkloadByName(namespace, request.GetName())
		if cron == nil {
			return nil, "", notfound.Workload(tx.base, namespace, request.GetName())
		}
		if err := s.changeable(cron, 0); err != nil {
			return nil, "", err
		}
		if cron.GetSpec().GetKind() != spec.KindCron {
			return nil, "", core.Refuse(codes.FailedPrecondition, "workload %s is a %s and not a cron; run it again with: %s",
				request.GetName(), spec.KindOf(cron.GetSpec()), spec.Hint(namespace, "cloudless workload restart "+request.GetName()))
		}
		uid := state.NewUID()
		run, revision := rollout.NewRun(cron, tx.base.Revision(cron.GetStatus().GetRevisionUid()), rollout.ExtraRunName(request.GetName(), uid), state.NewUID)
		secret.Pin(tx.base, revision, s.Now())
		if err := checkCreate(tx.base, run, 0); err != nil {
			return nil, "", err
		}
		tx.batch.Check(state.KindWorkload, cron.GetMetadata().GetUid(), cron.GetMetadata().GetVersion())
		tx.batch.Create(revision)
		tx.batch.Create(run)
		tx.batch.Create(s.Event(ctx, cron, "Run", "job "+run.GetMetadata().GetName()+" was made"))
		return run, spec.ActionCreate, nil
	})
	return made, err
}

// checkUpdate refuses changes that an existing workload cannot make.
func checkUpdate(snap *state.Snapshot, old, wanted *v1.Workload) error {
	name, was, is := old.GetMetadata().GetName(), spec.KindOf(old.GetSpec()), spec.KindOf(wanted.GetSpec())
	if owner := old.GetStatus().GetOwner(); owner != "" {
		what := "is a job of cron"
		if spec.IsRelease(old) {
			what = "runs the release command of workload"
		}
		return core.Refuse(codes.FailedPrecondition, "workload %s %s %s; change that one instead", name, what, owner)
	}
	if was != is {
		return core.Refuse(codes.FailedPrecondition, "workload %s is a %s and cannot become a %s; delete it first, or choose another name", name, was, is)
	}
	if err := checkPublished(snap, wanted.GetSpec()); err != nil {
		return err
	}
	return checkReplicas(snap, old, spec.Size(wanted.GetSpec()))
}

// checkScalable refuses to scale a kind of workload without a fixed number of replicas, and a singleton to several.
func checkScalable(w *v1.Workload, replicas int32) error {
	name := w.GetMetadata().GetName()
	if w.GetSpec().GetSingleton() && replicas > 1 {
		return core.Refuse(codes.FailedPrecondition, "workload %s is a singleton: it has at most one replica; to run more, remove spec.singleton and apply it", name)
	}
	if w.GetSpec().GetAutoscale() != nil {
		least, most := spec.Bounds(w.GetSpec())
		return core.Refuse(codes.FailedPrecondition, "workload %s is scaled by the cluster, from %d to %s; change the bounds with: %s; or scale it yourself after: %s",
			name, least, spec.Count(int(most), "replica"), spec.Hint(w.GetMetadata().GetNamespace(), fmt.Sprintf("cloudless workload autoscale %s --min %d --max %d", name, replicas, max(replicas, most))),
			spec.Hint(w.GetMetadata().GetNamespace(), "cloudless workload autoscale "+name+" --off"))
	}
	switch w.GetSpec().GetKind() {
	case spec.KindJob, spec.KindCron:
		return core.Refuse(codes.FailedPrecondition, "workload %s is a %s and is not scaled; change spec.job.parallelism and apply it", name, w.GetSpec().GetKind())
	case spec.KindDaemon:
		return core.Refuse(codes.FailedPrecondition, "workload %s is a daemon and is not scaled: it has one replica on every node that suits; change spec.placement and apply it", name)
	}
	return nil
}

// checkMinAvailable refuses to scale a service below its minAvailable.
func checkMinAvailable(w *v1.Workload, requested int32) error {
	if words := spec.TooFew(w.GetSpec(), requested); words != "" {
		return core.Refuse(codes.FailedPrecondition, "workload %s cannot be scaled to %d: its minAvailable %s; lower minAvailable and apply it, or scale it to 0 to stop it",
			w.GetMetadata().GetName(), requested, words)
	}
	return nil
}

// checkRestartable refuses to restart a cron, which has no replicas, and a release command, which runs once.
func checkRestartable(w *v1.Workload) error {
	if owner := w.GetStatus().GetOwner(); spec.IsRelease(w) {
		return core.Refuse(codes.FailedPrecondition, "workload %s runs the release command of deployment %d once; to try it again, restart workload %s with: %s",
			w.GetMetadata().GetName(), w.GetStatus().GetDeployment(), owner, spec.Hint(w.GetMetadata().GetNamespace(), "cloudless workload restart "+owner))
	}
	if w.GetSpec().GetKind() != spec.KindCron {
		return nil
	}
	return core.Refuse(codes.FailedPrecondition, "workload %s is a cron and has no replicas of its own; make a job of it now with: %s",
		w.GetMetadata().GetName(), runHint(w))
}

// runHint is the command that creates a job of a cron.
func runHint(cron *v1.Workload) string {
	return spec.Hint(cron.GetMetadata().GetNamespace(), "cloudless workload run "+cron.GetMetadata().GetName())
}

// hasOutput refuses to show the output of a cron. Only its jobs have output.
func hasOutput(snap *state.Snapshot, w *v1.Workload) error {
	if w.GetSpec().GetKind() != spec.KindCron {
		return nil
	}
	name, newest := w.GetMetadata().GetName(), (*v1.Workload)(nil)
	for run := range runsOf(snap, w) {
		if newest == nil || run.GetMetadata().GetUid() > newest.GetMetadata().GetUid() {
			newest = run
		}
	}
	if newest == nil {
		return core.Refuse(codes.FailedPrecondition, "workload %s is a cron and has made no job yet; make one now with: %s", name, runHint(w))
	}
	return core.Refuse(codes.FailedPrecondition, "workload %s is a cron, and the output is that of its jobs; see that of the newest with: %s",
		name, spec.Hint(w.GetMetadata().GetNamespace(), "cloudless logs "+newest.GetMetadata().GetName()))
}

// runsOf yields the jobs of a cron. Their names all begin with its name.
func runsOf(snap *state.Snapshot, cron *v1.Workload) iter.Seq[*v1.Workload] {
	m := cron.GetMetadata()
	return func(yield func(*v1.Workload) bool) {
		for w := range snap.Workloads(m.GetNamespace(), state.Path(cron)) {
			if !strings.HasPrefix(w.GetMetadata().GetName(), m.GetName()+"-") {
				return
			}
			if w.GetStatus().GetOwnerUid() == m.GetUid() && !yield(w) {
				return
			}
		}
	}
}

// sizeText says how many replicas a new workload will have.
func sizeText(s *v1.WorkloadSpec) string {
	switch s.GetKind() {
	case spec.KindJob:
		return "a job with " + spec.Count(int(s.GetJob().GetCompletions()), "replica")
	case spec.KindCron:
		return fmt.Sprintf("jobs at %q in %s", s.GetCron().GetSchedule(), s.GetCron().GetTimeZone())
	case spec.KindDaemon:
		return "one replica on every node that suits"
	default:
		return spec.Count(int(spec.Replicas(&v1.Workload{Spec: s})), "replica") + scalingText(s)
	}
}

// scalingText says by what a service is scaled, empty if its author scales it.
func scalingText(s *v1.WorkloadSpec) string {
	if s.GetAutoscale() == nil {
		return ""
	}
	return ", scaled " + spec.ScalingOf(s).String()
}

// desired is how many replicas of a workload there should be.
func (s *Server) desired(snap *state.Snapshot, w *v1.Workload) int32 {
	switch w.GetSpec().GetKind() {
	case spec.KindJob:
		return w.GetSpec().GetJob().GetCompletions()
	case spec.KindDaemon:
		return int32(s.placement.Nodes(snap, w))
	default:
		return spec.Replicas(w)
	}
}

// presentKind adds what is special about a kind to a status that was computed as for a
// service.
func (s *Server) presentKind(snap *state.Snapshot, stored, shown *v1.Workload, completed int32) {
	switch stored.GetSpec().GetKind() {
	case spec.KindJob:
		presentJob(stored, shown.GetStatus(), completed)
	case spec.KindCron:
		s.presentCron(snap, stored, shown.GetStatus())
	case spec.KindDaemon:
		if st := shown.GetStatus(); st.GetPhase() == spec.PhaseStopped {
			st.Phase, st.Reason = spec.PhasePending, "no node suits it"
		}
	}
}

func presentJob(stored *v1.Workload, st *v1.WorkloadStatus, completed int32) {
	st.Job = &v1.JobStatus{Succeeded: completed, Failed: st.GetFailed(), RevisionUid: st.GetRevisionUid()}
	deleting := stored.GetMetadata().GetDeleteTime() != nil
	switch {
	case rollout.Outcome(stored) != "":
		st.Job = stored.GetStatus().GetJob()
		if st.Reason = st.GetJob().GetReason(); !deleting {
			st.Phase = st.GetJob().GetOutcome()
		}
	case deleting:
	case st.GetRunning() > 0:
		st.Phase = spec.PhaseRunning
	default:
		st.Phase = spec.PhasePending
	}
}

func (s *Server) presentCron(snap *state.Snapshot, stored *v1.Workload, st *v1.WorkloadStatus) {
	kept := stored.GetStatus().GetCron()
	st.Cron = &v1.CronStatus{LastRun: kept.GetLastRun(), SeenTime: kept.GetSeenTime()}
	for run := range runsOf(snap, stored) {
		if rollout.Outcome(run) == "" {
			st.Cron.Active++
		}
	}
	c := stored.GetSpec().GetCron()
	switch {
	case stored.GetMetadata().GetDeleteTime() != nil:
		return
	case st.GetCron().GetActive() > 0:
		st.Phase = spec.PhaseRunning
	case c.GetSuspend():
		st.Phase = spec.PhaseSuspended
	default:
		st.Phase = spec.PhaseScheduled
	}
	if c.GetSuspend() {
		return
	}
	times, err := crontab.Parse(c.GetSchedule())
	zone, zoneErr := crontab.Zone(c.GetTimeZone())
	if err != nil || zoneErr != nil {
		return // it was refused before it was stored
	}
	if next := times.Next(s.Now(), zone); !next.IsZero() {
		st.Cron.NextRun = timestamppb.New(next)
	}
}
