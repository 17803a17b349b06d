package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/core"
)

func kindOf(kind string) func(*v1.Workload) {
	return func(w *v1.Workload) {
		w.Spec.Kind, w.Spec.Replicas = kind, nil
		if kind == spec.KindCron {
			w.Spec.Cron = &v1.Cron{Schedule: "0 3 1 1 *", TimeZone: "Europe/Berlin"}
		}
	}
}

// made creates a workload, which must succeed.
func (c *cluster) made(u *user, name string, change ...func(*v1.Workload)) *v1.Workload {
	c.t.Helper()
	w, err := u.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload(name, change...)})
	must(c.t, err)
	return w
}

func TestRunWorkloadCreatesAJobOfACron(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	cron := c.made(op, "backup", kindOf(spec.KindCron), labelled("app", "shop"))
	if st := cron.GetStatus(); st.GetPhase() != "scheduled" || !strings.HasSuffix(st.GetCron().GetNextRun().AsTime().Format("01-02 15:04"), "01-01 02:00") {
		t.Errorf("it is %v", st)
	}
	_, err := op.RunWorkload(c.ctx, &v1.RunWorkloadRequest{Name: "backup", IdempotencyKey: "k"})
	must(t, err)
	run, err := op.RunWorkload(c.ctx, &v1.RunWorkloadRequest{Name: "backup", IdempotencyKey: "k"})
	must(t, err)
	if run.GetStatus().GetOwner() != "backup" || run.GetSpec().GetKind() != spec.KindJob || run.GetSpec().GetCron() != nil || run.GetStatus().GetPhase() != "pending" {
		t.Errorf("its job is %v", run)
	}
	list, err := op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{})
	must(t, err)
	if len(list.GetItems()) != 2 || list.GetItems()[0].GetStatus().GetPhase() != "running" || list.GetItems()[0].GetStatus().GetCron().GetActive() != 1 {
		t.Errorf("there are %v", list.GetItems())
	}

	// Only the cron can change its job.
	changed := proto.CloneOf(run)
	changed.Spec.Args = []string{"other"}
	_, err = op.UpdateWorkload(c.ctx, &v1.UpdateWorkloadRequest{Workload: changed})
	wantCode(t, err, codes.FailedPrecondition, "is a job of cron backup; change that one instead")
	for _, line := range planLines(c.plan(op, &v1.PlanRequest{Prune: "app=shop"})) {
		if strings.Contains(line, run.GetMetadata().GetName()) {
			t.Errorf("a plan that prunes says %s", line)
		}
	}
	_, err = op.RunWorkload(c.ctx, &v1.RunWorkloadRequest{Name: "nope"})
	wantCode(t, err, codes.NotFound, "workload nope does not exist")
	_, err = c.as(core.RoleViewer).RunWorkload(c.ctx, &v1.RunWorkloadRequest{Name: "backup"})
	wantCode(t, err, codes.PermissionDenied)
}

// The parallelism is not part of a revision: changing it repeats no work.
func TestParallelismMakesNoRevision(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	apply := func(job *v1.Job) *v1.ApplyWorkloadResponse {
		t.Helper()
		answer, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("import", kindOf(spec.KindJob), func(w *v1.Workload) { w.Spec.Job = job })})
		must(t, err)
		return answer
	}
	apply(&v1.Job{Completions: proto.Int32(4)})
	fewer := apply(&v1.Job{Completions: proto.Int32(4), Parallelism: proto.Int32(2)})
	if w := fewer.GetWorkload(); fewer.GetResult() != "updated" || w.GetStatus().GetRevision() != 1 || w.GetSpec().GetJob().GetParallelism() != 2 {
		t.Errorf("with fewer at once: %v", fewer)
	}
	more := apply(&v1.Job{Completions: proto.Int32(5), Parallelism: proto.Int32(2)})
	if more.GetWorkload().GetStatus().GetRevision() != 2 {
		t.Errorf("with more in all: %v", more)
	}
}

func TestDaemonWithoutNodes(t *testing.T) {
	c := newCluster(t)
	if st := c.made(c.as(core.RoleOperator), "logs", kindOf(spec.KindDaemon)).GetStatus(); st.GetPhase() != "pending" || st.GetReason() != "no node suits it" {
		t.Errorf("it is %v", st)
	}
}

// A service is not scaled below its minAvailable, but can be stopped.
func TestScalingKeepsMinAvailable(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.made(op, "web", replicasOf(3), func(w *v1.Workload) { w.Spec.MinAvailable = 2 })
	scale := func(to int32) error {
		_, err := op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(to)})
		return err
	}
	must(t, scale(2))
	wantCode(t, scale(1), codes.FailedPrecondition, "workload web cannot be scaled to 1: its minAvailable must be at most the number of replicas: 2 is more than 1", "scale it to 0")
	must(t, scale(0))
	wantCode(t, scale(1), codes.FailedPrecondition, "2 is more than 1")
	must(t, scale(4))
}

func TestKindsRefuseUnsuitedOperations(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.made(op, "web")
	c.made(op, "import", kindOf(spec.KindJob))
	c.made(op, "backup", kindOf(spec.KindCron))
	c.made(op, "logs", kindOf(spec.KindDaemon))
	scale := func(name string) error {
		_, err := op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: name, Replicas: proto.Int32(2)})
		return err
	}
	wantCode(t, scale("import"), codes.FailedPrecondition, "workload import is a job and is not scaled; change spec.job.parallelism")
	wantCode(t, scale("backup"), codes.FailedPrecondition, "workload backup is a cron and is not scaled")
	wantCode(t, scale("logs"), codes.FailedPrecondition, "one replica on every node that suits")
	_, err := op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "backup"})
	wantCode(t, err, codes.FailedPrecondition, "cloudless workload run backup")
	_, err = op.RunWorkload(c.ctx, &v1.RunWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.FailedPrecondition, "workload web is a service and not a cron")
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", kindOf(spec.KindJob))})
	wantCode(t, err, codes.FailedPrecondition, "workload web is a service and cannot become a job; delete it first, or choose another name")
	_, err = op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("bad", kindOf(spec.KindJob), replicasOf(2))})
	wantCode(t, err, codes.InvalidArgument, "spec.replicas", "is not for a job")
	_, err = op.MakePlan(c.ctx, asking(workload("bad", kindOf(spec.KindDaemon), replicasOf(2))))
	wantCode(t, err, codes.InvalidArgument, "objects[0].workload.spec.replicas", "is not for a daemon")
	_, err = op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("big", kindOf(spec.KindJob), func(w *v1.Workload) {
		w.Spec.Job = &v1.Job{Completions: proto.Int32(int32(spec.MostReplicas(nil)) + 1)}
	})})
	if spec.MostReplicas(nil) < 100_000 {
		wantCode(t, err, codes.ResourceExhausted, "limits.replicasPerWorkload")
	}
	stream, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "backup"})
	must(t, err)
	_, err = stream.Recv()
	wantCode(t, err, codes.FailedPrecondition, "has made no job yet; make one now with: cloudless workload run backup")
}

// A job's status is that of its replicas until it ends, and then the stored outcome.
func TestStatusOfAJob(t *testing.T) {
	c := newCluster(t)
	op, node := c.as(core.RoleOperator), c.join("n").uid()
	job := c.made(op, "import", kindOf(spec.KindJob), func(w *v1.Workload) { w.Spec.Job = &v1.Job{Completions: proto.Int32(3)} })
	get := func() *v1.WorkloadStatus {
		t.Helper()
		w, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "import"})
		must(t, err)
		return w.GetStatus()
	}
	if st := get(); st.GetPhase() != "pending" || st.GetDesired() != 3 {
		t.Errorf("in the beginning: %v", st)
	}
	revision := job.GetStatus().GetRevisionUid()
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		for name, phase := range map[string]string{"a": spec.PhaseCompleted, "b": spec.PhaseFailed, "c": spec.PhaseRunning} {
			b.Create(&v1.Replica{
				Metadata: &v1.Metadata{Uid: "uid-" + name, Name: "import-" + name, Namespace: "default"},
				Spec:     &v1.ReplicaSpec{WorkloadUid: job.GetMetadata().GetUid(), Workload: "import", RevisionUid: revision, NodeUid: node},
				Status:   &v1.ReplicaStatus{Phase: phase},
			})
		}
	})
	if st := get(); st.GetPhase() != "running" || st.GetJob().GetSucceeded() != 1 || st.GetJob().GetFailed() != 1 || st.GetRunning() != 1 {
		t.Errorf("while it runs: %v", st)
	}
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		old := snap.Workload(job.GetMetadata().GetUid())
		w := proto.CloneOf(old)
		w.Status.Job = &v1.JobStatus{Outcome: "failed", Reason: "its deadline is over", Succeeded: 2, RevisionUid: revision, EndTime: timestamppb.Now()}
		b.Update(w, old.GetMetadata().GetVersion())
	})
	if st := get(); st.GetPhase() != "failed" || st.GetReason() != "its deadline is over" || st.GetJob().GetSucceeded() != 2 {
		t.Errorf("when it is over: %v", st)
	}
	_, err := op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "import"})
	must(t, err)
	if st := get(); st.GetPhase() == "failed" || st.GetJob().GetSucceeded() != 0 {
		t.Errorf("when it starts over: %v", st)
	}
}
