package server

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// history creates a workload with three revisions, which have succeeded: an image, a newer one under
// the same tag, and another environment. It returns the digests of the two images.
func (c *cluster) history(op *user) (first, second string) {
	c.t.Helper()
	apply := func(env string) {
		answer, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", replicasOf(0), imageOf("web:1"), func(w *v1.Workload) {
			w.Spec.Env = map[string]string{"COLOUR": env}
		})})
		must(c.t, err)
		c.until(func(snap *state.Snapshot) bool { // the next deployment would replace it
			return snap.Deployment(answer.GetWorkload().GetStatus().GetDeploymentUid()).GetStatus().GetPhase() == spec.DeploymentSucceeded
		})
	}
	first = c.push("web:1")
	apply("red")
	second = c.push("web:1")
	apply("red")
	apply("blue")
	return first, second
}

// rolledBack returns the workload after a rollback, which must succeed, and its revision.
func (c *cluster) rolledBack(op *user, to string) (*v1.Workload, *v1.RevisionSpec) {
	c.t.Helper()
	w, err := op.RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "web", Revision: to})
	must(c.t, err)
	return w, c.Store.Snapshot().Revision(w.GetStatus().GetRevisionUid()).GetSpec()
}

func digestOf(t *testing.T, r *v1.RevisionSpec) string {
	t.Helper()
	name, err := image.ParseName(r.GetImage())
	must(t, err)
	return name.Digest
}

// A rollback makes an earlier revision current again, even if the tag of its image has moved. Settings that are not part
// of a revision stay.
func TestRollbackReturnsToAnEarlierRevision(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	first, second := c.history(op)
	_, err := op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: new(int32(2))})
	must(t, err)
	short := strings.TrimPrefix(first, "sha256:")[:12]
	for _, step := range []struct {
		to, colour, digest string
		number             uint64
	}{
		{"", "red", second, 2}, // the one before
		{"3", "blue", second, 3},
		{"1", "red", first, 1},
		{"3", "blue", second, 3},
		{"sha256:" + short, "red", first, 1}, // as tables print it
		{"2", "red", second, 2},
		{short, "red", first, 1},
		{second, "blue", second, 3}, // the newest of those that have it
	} {
		w, revision := c.rolledBack(op, step.to)
		if colour, digest := w.GetSpec().GetEnv()["COLOUR"], digestOf(t, revision); colour != step.colour || digest != step.digest || revision.GetNumber() != step.number {
			t.Errorf("rollback to %q: revision %d is %s with %s, want revision %d, %s with %s",
				step.to, revision.GetNumber(), colour, digest, step.number, step.colour, step.digest)
		}
		if w.GetSpec().GetReplicas() != 2 || w.GetSpec().GetImage() != "web:1" {
			t.Errorf("rollback to %q: %d replicas of %s", step.to, w.GetSpec().GetReplicas(), w.GetSpec().GetImage())
		}
	}
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "web"})
	must(t, err)
	if !slices.ContainsFunc(events.GetItems(), func(e *v1.Event) bool {
		return e.GetSpec().GetReason() == "RolledBack" && strings.Contains(e.GetSpec().GetMessage(), "from revision 3 to revision 1")
	}) {
		t.Errorf("the events are %v", events)
	}
	made, err := op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web"})
	must(t, err)
	if made.GetStatus().GetRevision() != 4 {
		t.Errorf("the next new revision is %d", made.GetStatus().GetRevision())
	}
}

// A rollback without a given revision avoids revisions that never worked, even if they are the newest ones.
func TestRollbackReturnsToARevisionThatSucceeded(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.history(op)
	c.endDeployment("web-1", spec.DeploymentSucceeded)
	c.endDeployment("web-2", spec.DeploymentRolledBack)
	c.endDeployment("web-3", spec.DeploymentFailed)
	if w, _ := c.rolledBack(op, ""); w.GetStatus().GetRevision() != 1 {
		t.Errorf("it went back to revision %d", w.GetStatus().GetRevision())
	}
	_, err := op.RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.FailedPrecondition, "has no earlier revision to go back to", "cloudless workload history web")
	c.endDeployment("web-3", spec.DeploymentSucceeded)
	if w, _ := c.rolledBack(op, ""); w.GetStatus().GetRevision() != 3 {
		t.Errorf("it went on to revision %d", w.GetStatus().GetRevision())
	}
}

// The work of a job is done again by a rollback, which therefore makes a new revision.
func TestRollbackOfAJobRunsItAgain(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	for _, colour := range []string{"red", "blue"} {
		_, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", func(w *v1.Workload) {
			w.Spec.Kind, w.Spec.Replicas, w.Spec.Env = spec.KindJob, nil, map[string]string{"COLOUR": colour}
		})})
		must(t, err)
	}
	w, revision := c.rolledBack(op, "")
	if revision.GetNumber() != 3 || w.GetSpec().GetEnv()["COLOUR"] != "red" || w.GetStatus().GetDeployment() != 0 {
		t.Errorf("revision %d is %v, deployment %d", revision.GetNumber(), w.GetSpec(), w.GetStatus().GetDeployment())
	}
}

// A restart also makes a revision. A rollback to one that runs the same would be useless.
func TestRollbackSkipsRevisionsThatRunTheSame(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.history(op)
	_, err := op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web"})
	must(t, err)
	if w, _ := c.rolledBack(op, ""); w.GetSpec().GetEnv()["COLOUR"] != "red" {
		t.Errorf("the workload is %v", w.GetSpec())
	}
	before, _ := c.rolledBack(op, "1")
	if again, _ := c.rolledBack(op, "1"); again.GetMetadata().GetVersion() != before.GetMetadata().GetVersion() {
		t.Error("going back to what runs makes another revision")
	}
}

func TestImpossibleRollbacksAreRefused(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.history(op)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("new", replicasOf(0))})
	must(t, err)
	for want, request := range map[string]*v1.RollbackWorkloadRequest{
		"workload gone does not exist":                            {Name: "gone"},
		"workload new has no earlier revision":                    {Name: "new"},
		"has no revision 9; it has 1, 2, 3":                       {Name: "web", Revision: "9"},
		"no revision with an image that begins with ffffffffffff": {Name: "web", Revision: "sha256:ffffffffffff"},
		"is neither a number nor the beginning of a digest":       {Name: "web", Revision: "stable"},
	} {
		_, err := op.RollbackWorkload(c.ctx, request)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", request, err, want)
		}
	}
	_, err = revisionWithImage([]*v1.Revision{
		{Spec: &v1.RevisionSpec{Image: "r/web@sha256:aaaaaaaaaaaa1"}}, {Spec: &v1.RevisionSpec{Image: "r/web@sha256:aaaaaaaaaaaa2"}},
	}, "web", "aaaaaaaaaaaa")
	wantCode(t, core.StatusOf(err), codes.InvalidArgument, "several images", "more characters")
	_, err = op.RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "web", Version: 1})
	wantCode(t, err, codes.Aborted)
	_, err = c.as(core.RoleViewer).RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.PermissionDenied)
}

// A rollback restores a deleted image if that is still possible; otherwise it is refused.
func TestRollbackToADeletedImage(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	first, second := c.history(op)
	_, err := op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "web:1", Force: true})
	must(t, err)
	if _, revision := c.rolledBack(op, "2"); digestOf(t, revision) != second {
		t.Errorf("it runs %s", revision.GetImage())
	}
	if stands := c.Store.Snapshot().Tag("web", "1").GetDigest(); stands != second {
		t.Errorf("web:1 stands for %q", stands)
	}
	deleted, err := op.ListImages(c.ctx, &v1.ListImagesRequest{Deleted: true})
	must(t, err)
	for _, i := range deleted.GetItems() {
		if i.GetStatus().GetPhase() == imageDeleted {
			t.Errorf("%v is still deleted", i)
		}
	}
	_, err = op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "web@" + first, Force: true, Now: true})
	must(t, err)
	before := c.Store.Snapshot().WorkloadByName("default", "web").GetMetadata().GetVersion()
	_, err = op.RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "web", Revision: "1"})
	wantCode(t, err, codes.FailedPrecondition, "the image of revision 1", "was deleted", "cloudless workload history web")
	if after := c.Store.Snapshot().WorkloadByName("default", "web").GetMetadata().GetVersion(); after != before {
		t.Error("the workload was changed all the same")
	}
}

// The tag of a deleted image that points to another image by now stays there.
func TestRollbackLeavesATagWithANewerImage(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	_, second := c.history(op)
	_, err := op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "web:1", Force: true})
	must(t, err)
	third := c.push("web:1")
	if _, revision := c.rolledBack(op, "2"); digestOf(t, revision) != second {
		t.Errorf("it runs %s", revision.GetImage())
	}
	if stands := c.Store.Snapshot().Tag("web", "1").GetDigest(); stands != third {
		t.Errorf("web:1 stands for %q", stands)
	}
}

// Without a given revision, a repeated call would switch back and forth.
func TestRollbackIsIdempotentByKey(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.history(op)
	request := &v1.RollbackWorkloadRequest{Name: "web", IdempotencyKey: "k"}
	once, err := op.RollbackWorkload(c.ctx, request)
	must(t, err)
	twice, err := op.RollbackWorkload(c.ctx, request)
	must(t, err)
	if once.GetStatus().GetRevision() != 2 || twice.GetStatus().GetRevision() != 2 {
		t.Errorf("the workload is at revision %d and then at %d", once.GetStatus().GetRevision(), twice.GetStatus().GetRevision())
	}
}

// The images of earlier revisions are listed, with or without a tag, and can be read by
// digest.
func TestImagesOfEarlierRevisionsAreListed(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	first, second := c.history(op)
	images, err := op.ListImages(c.ctx, &v1.ListImagesRequest{})
	must(t, err)
	kept := map[string]string{}
	for _, i := range images.GetItems() {
		kept[i.GetMetadata().GetName()+" "+i.GetStatus().GetDigest()] = strings.Join(i.GetStatus().GetKeptBy(), " ")
	}
	for name, want := range map[string]string{
		"web@" + first + " " + first: "default/web:1",
		"web:1 " + second:            "default/web:2",
	} {
		if got, listed := kept[name]; !listed || got != want {
			t.Errorf("%s is kept by %q, want %q; all are %v", name, got, want, kept)
		}
	}
	if len(kept) != 2 {
		t.Errorf("listed are %v", kept)
	}
	one, err := op.GetImage(c.ctx, &v1.GetImageRequest{Name: "web@" + first})
	must(t, err)
	if got := strings.Join(one.GetStatus().GetKeptBy(), " "); got != "default/web:1" {
		t.Errorf("%s is kept by %q", first, got)
	}
}
