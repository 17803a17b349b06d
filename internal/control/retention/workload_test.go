package retention

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// dropped are the uids that a tick deletes.
func dropped(l *log, limits Limits) map[string]bool {
	gone := map[string]bool{}
	for _, c := range Tick(now, l.store.Snapshot(), limits).Transaction(now).GetChanges() {
		gone[c.GetDelete().GetUid()] = true
	}
	return gone
}

func workload(name, revision string) *v1.Workload {
	return &v1.Workload{
		Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"},
		Status:   &v1.WorkloadStatus{RevisionUid: revision},
	}
}

func ofRevision(r *v1.Replica, workload, revision string) *v1.Replica {
	r.Spec.WorkloadUid, r.Spec.RevisionUid = workload, revision
	return r
}

// The replica of a completed job is what keeps it from being done again, however long ago
// that was.
func TestReplicaOfCompletedJobIsKept(t *testing.T) {
	l := &log{store: state.New()}
	long := now.Add(-1000 * time.Hour)
	l.put(
		t, long,
		workload("job", "job-2"),
		ofRevision(replica("done", spec.PhaseCompleted, long), "job", "job-2"),
		ofRevision(replica("failed", spec.PhaseFailed, long), "job", "job-2"),
		ofRevision(replica("of-before", spec.PhaseCompleted, long), "job", "job-1"),
		ofRevision(replica("scaled-down", spec.PhaseStopped, long), "job", "job-2"),
		ofRevision(replica("of-deleted", spec.PhaseCompleted, long), "deleted", "deleted-1"),
	)
	gone := dropped(l, limits)
	for uid, want := range map[string]bool{"done": false, "failed": false, "of-before": true, "scaled-down": true, "of-deleted": true} {
		if gone[uid] != want {
			t.Errorf("replica %s: dropped %v, want %v", uid, gone[uid], want)
		}
	}
}

// The status of a finished job proves its end, so its replicas are deleted like others.
func TestReplicasOfFinishedJobAreDeleted(t *testing.T) {
	l := &log{store: state.New()}
	long := now.Add(-1000 * time.Hour)
	over, open := workload("over", "over-1"), workload("open", "open-2")
	over.Status.Job = &v1.JobStatus{Outcome: spec.PhaseCompleted, RevisionUid: "over-1"}
	open.Status.Job = &v1.JobStatus{Outcome: spec.PhaseCompleted, RevisionUid: "open-1"} // it runs again since
	l.put(
		t, long, over, open,
		ofRevision(replica("done", spec.PhaseCompleted, long), "over", "over-1"),
		ofRevision(replica("kept", spec.PhaseCompleted, long), "open", "open-2"),
	)
	if gone := dropped(l, limits); !gone["done"] || gone["kept"] {
		t.Errorf("dropped are %v", gone)
	}
}

func TestOldRevisionsAreForgottenUnlessTheyRun(t *testing.T) {
	l := &log{store: state.New()}
	l.put(t, now, workload("web", "web-9"), ofRevision(replica("old", spec.PhaseRunning, time.Time{}), "web", "web-2"))
	for n := 1; n <= 9; n++ {
		uid := fmt.Sprintf("web-%d", n)
		l.put(t, now, &v1.Revision{Metadata: &v1.Metadata{Uid: uid}, Spec: &v1.RevisionSpec{WorkloadUid: "web", Number: uint64(n)}})
	}
	few := limits
	few.Revisions = 3
	if gone := dropped(l, few); fmt.Sprint(gone) != "map[web-1:true web-3:true web-4:true web-5:true web-6:true]" {
		t.Errorf("dropped %v", gone)
	}
}

func TestExpiredTokenTakesItsCredentialAlong(t *testing.T) {
	l := &log{store: state.New()}
	l.put(
		t, now.Add(-100*time.Hour),
		&v1.Token{
			Metadata: &v1.Metadata{Uid: "token", Name: "token"},
			Spec:     &v1.TokenSpec{ExpireTime: timestamppb.New(now.Add(-50 * time.Hour))},
			Status:   &v1.TokenStatus{SecretId: "secret-id"},
		},
		&statev1.Credential{Metadata: &v1.Metadata{Uid: "secret-id"}, TokenUid: "token"},
	)
	if gone := dropped(l, limits); !gone["token"] || !gone["secret-id"] {
		t.Errorf("dropped %v", gone)
	}
}

// The jobs of the newest release commands are kept, and those that have not ended.
func TestOldReleaseJobsAreDeleted(t *testing.T) {
	l := &log{store: state.New()}
	l.put(t, now, workload("web", "web-9"))
	for n := uint64(1); n <= 5; n++ {
		job := workload(spec.ReleaseName("web", n), "first")
		if n != 2 {
			job.Status.Job = &v1.JobStatus{Outcome: spec.PhaseCompleted, RevisionUid: "first"}
		}
		name := fmt.Sprintf("web-%d", n)
		l.put(t, now, job, &v1.Deployment{
			Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"}, Spec: &v1.DeploymentSpec{WorkloadUid: "web", Number: n},
			Status: &v1.DeploymentStatus{Release: &v1.ReleaseStatus{Job: job.GetMetadata().GetName(), JobUid: job.GetMetadata().GetUid()}},
		})
	}
	var deleted []string
	for w := range Tick(now, l.store.Snapshot(), Limits{Releases: 2, Deployments: 20}).Workloads() {
		if w.GetMetadata().GetDeleteTime() != nil {
			deleted = append(deleted, w.GetMetadata().GetName())
		}
	}
	if len(deleted) != 2 || deleted[0] != "web-release-3" || deleted[1] != "web-release-1" {
		t.Errorf("deleted are %v", deleted)
	}
}
