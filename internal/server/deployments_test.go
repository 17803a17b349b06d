package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func (u *user) deployments() v1.DeploymentServiceClient {
	return v1.NewDeploymentServiceClient(u.conn)
}

// endDeployment lets a deployment be in a phase, as the leader's loop would.
func (c *cluster) endDeployment(name, phase string) {
	c.t.Helper()
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		d := proto.CloneOf(snap.DeploymentByName("default", name))
		d.Status.Phase = phase
		b.Update(d, d.GetMetadata().GetVersion())
	})
}

// deployed is a service with one deployment, which nothing carries out: no node can take its replica.
func (c *cluster) deployed(op *user, changes ...func(*v1.Workload)) *v1.Workload {
	c.t.Helper()
	w, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", changes...)})
	must(c.t, err)
	return w
}

func (c *cluster) apply(op *user, change func(*v1.Workload)) *v1.Workload {
	c.t.Helper()
	answer, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", change)})
	must(c.t, err)
	return answer.GetWorkload()
}

func colour(value string) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Spec.Env = map[string]string{"COLOUR": value} }
}

// Changing only the number of replicas, weights, labels or how it is operated restarts nothing.
func TestChangesThatRestartNothing(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.deployed(op)
	for what, change := range map[string]func(*v1.Workload){
		"replicas":     func(w *v1.Workload) { w.Spec.Replicas = new(int32(3)) },
		"weights":      func(w *v1.Workload) { w.Spec.Placement = &v1.Placement{Weights: &v1.ScoreWeights{Cost: new(1.0)}} },
		"labels":       func(w *v1.Workload) { w.Metadata.Labels = map[string]string{"team": "web"} },
		"annotations":  func(w *v1.Workload) { w.Metadata.Annotations = map[string]string{"note": "x"} },
		"priority":     func(w *v1.Workload) { w.Spec.Priority = new(int32(7)) },
		"minAvailable": func(w *v1.Workload) { w.Spec.Replicas, w.Spec.MinAvailable = new(int32(2)), 1 },
		"update":       func(w *v1.Workload) { w.Spec.Update = &v1.Update{Strategy: spec.StrategyRecreate} },
		"lostAfter":    func(w *v1.Workload) { w.Spec.LostAfter = "1h" },
	} {
		before := c.Store.Snapshot().WorkloadByName("default", "web").GetMetadata().GetVersion()
		w := c.apply(op, change)
		if s := w.GetStatus(); s.GetRevision() != 1 || s.GetDeployment() != 1 || w.GetMetadata().GetVersion() == before {
			t.Errorf("after a change of %s: version %d, revision %d, deployment %d", what, w.GetMetadata().GetVersion(), s.GetRevision(), s.GetDeployment())
		}
	}
}

// Everything that makes a revision, and a rollback, has a deployment that says who did what. Other changes have none.
func TestEveryRevisionIsDeployed(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.deployed(op, colour("red"))
	c.endDeployment("web-1", spec.DeploymentSucceeded)
	c.apply(op, colour("blue"))
	c.endDeployment("web-2", spec.DeploymentRolledBack)
	_, err := op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web"})
	must(t, err)
	_, err = op.RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "web", Revision: "1"})
	must(t, err)
	c.apply(op, func(w *v1.Workload) {
		colour("red")(w)
		w.Spec.Update, w.Metadata.Labels = &v1.Update{Strategy: "recreate"}, map[string]string{"team": "web"}
	})
	_, err = op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: new(int32(2))})
	must(t, err)

	list, err := op.deployments().ListDeployments(c.ctx, &v1.ListDeploymentsRequest{Workload: "web"})
	must(t, err)
	var got []string
	for _, d := range list.GetItems() {
		got = append(got, fmt.Sprintf("%s: %s of revision %d after %d", d.GetMetadata().GetName(), d.GetSpec().GetCause(), d.GetSpec().GetRevision(), d.GetSpec().GetPrevious()))
		if !strings.HasPrefix(d.GetSpec().GetAuthor(), "user/") {
			t.Errorf("%s was made by %q", d.GetMetadata().GetName(), d.GetSpec().GetAuthor())
		}
	}
	want := []string{
		"web-4: rollback of revision 1 after 0",
		"web-3: restart of revision 3 after 1",
		"web-2: apply of revision 2 after 1",
		"web-1: create of revision 1 after 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the deployments are %q, want %q", got, want)
	}
	if replaced := list.GetItems()[1].GetStatus(); replaced.GetPhase() != spec.DeploymentFailed || replaced.GetReason() != "replaced by deployment 4" || replaced.GetEndTime() == nil {
		t.Errorf("the deployment that was replaced is %v", replaced)
	}
	w, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	must(t, err)
	if s := w.GetStatus(); s.GetDeployment() != 4 || s.GetDeploymentUid() != list.GetItems()[0].GetMetadata().GetUid() || s.GetRevision() != 1 || s.GetLastRevision() != 3 {
		t.Errorf("the status is %v", s)
	}
}

// An open deployment shows how far it is. An ended one does not, because later changes are not its own.
func TestDeploymentShowsItsProgress(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	w := c.deployed(op, replicasOf(3))
	c.until(func(snap *state.Snapshot) bool { // the loop explains each replica once, and is idle then
		explained := 0
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if r.GetStatus().GetReason() != "" {
				explained++
			}
		}
		return explained == 3
	})
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		i := 0
		for stored := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			r := proto.CloneOf(stored)
			r.Status.Phase = spec.PhaseRunning
			if i++; i == 1 {
				r.Status.Unready = "It does not listen on port 80 yet."
			}
			b.Update(r, stored.GetMetadata().GetVersion())
		}
	})
	shown := func() []string {
		d, err := op.deployments().GetDeployment(c.ctx, &v1.GetDeploymentRequest{Name: "web-1"})
		must(t, err)
		all, err := op.deployments().ListDeployments(c.ctx, &v1.ListDeploymentsRequest{})
		must(t, err)
		ofWeb, err := op.deployments().ListDeployments(c.ctx, &v1.ListDeploymentsRequest{Workload: "web"})
		must(t, err)
		var texts []string
		for _, d := range slices.Concat([]*v1.Deployment{d}, all.GetItems(), ofWeb.GetItems()) {
			texts = append(texts, fmt.Sprint(d.GetStatus().GetDesired(), d.GetStatus().GetUpdated(), d.GetStatus().GetServing()))
		}
		return texts
	}
	if got := shown(); !slices.Equal(got, []string{"3 3 2", "3 3 2", "3 3 2"}) {
		t.Errorf("an open deployment, alone, in the list of all and in that of its workload, shows %q", got)
	}
	c.endDeployment("web-1", spec.DeploymentSucceeded)
	if got := shown(); !slices.Equal(got, []string{"0 0 0", "0 0 0", "0 0 0"}) {
		t.Errorf("an ended deployment shows %q", got)
	}
}

// The job of a release command belongs to its deployment: it is neither changed nor run again.
func TestReleaseCommandBelongsToItsDeployment(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.deployed(op, func(w *v1.Workload) { w.Spec.Release = &v1.Release{Command: []string{"/migrate"}} })
	c.until(func(snap *state.Snapshot) bool { return snap.WorkloadByName("default", "web-release-1") != nil })
	d, err := op.deployments().GetDeployment(c.ctx, &v1.GetDeploymentRequest{Name: "web-1"})
	must(t, err)
	if s := d.GetStatus(); s.GetRelease().GetJob() != "web-release-1" || s.GetRelease().GetPhase() != spec.ReleaseRunning || !s.GetWaiting() || s.GetUpdated() != 0 {
		t.Errorf("the deployment is %v", s)
	}
	w, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	must(t, err)
	if s := w.GetStatus(); s.GetPhase() != spec.PhasePending || s.GetReason() != "deployment 1 waits for its release command; see: cloudless logs web-release-1" {
		t.Errorf("the workload is %s: %s", s.GetPhase(), s.GetReason())
	}
	_, err = op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web-release-1"})
	wantCode(t, err, codes.FailedPrecondition, "runs the release command of deployment 1 once", "cloudless workload restart web")
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web-release-1", func(w *v1.Workload) {
		w.Spec.Kind, w.Spec.Replicas = spec.KindJob, nil
	})})
	wantCode(t, err, codes.FailedPrecondition, "workload web-release-1 runs the release command of workload web; change that one instead")
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web-release-1"})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool {
		return strings.Contains(snap.DeploymentByName("default", "web-1").GetStatus().GetReason(), "job web-release-1 was deleted")
	})
}

func waitsFor(on map[string]string) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Spec.DependsOn = on }
}

func aJob(w *v1.Workload) { w.Spec.Kind, w.Spec.Replicas = spec.KindJob, nil }

// Dependencies that could never be met are refused before anything changes.
func TestImpossibleDependenciesAreRefused(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	for want, file := range map[string][]*v1.Workload{
		"workload db, which is neither in namespace default nor applied together": {workload("web", waitsFor(map[string]string{"db": "ready"}))},
		"names the workload itself":                                        {workload("web", waitsFor(map[string]string{"web": "ready"}))},
		"must be ready: workload db is a service, which does not complete": {workload("db"), workload("web", waitsFor(map[string]string{"db": "completed"}))},
		"must not be ready: workload db is a job":                          {workload("db", aJob), workload("web", waitsFor(map[string]string{"db": "ready"}))},
		"goes in a circle, so that none could ever start: a waits for b waits for c wait": {
			workload("a", waitsFor(map[string]string{"b": "ready"})), workload("b", waitsFor(map[string]string{"c": "ready"})), workload("c", waitsFor(map[string]string{"a": "ready"})),
		},
	} {
		request := &v1.PlanRequest{}
		for _, w := range file {
			request.Objects = append(request.Objects, spec.ManifestOf(w))
		}
		_, err := op.MakePlan(c.ctx, request)
		wantCode(t, err, codes.InvalidArgument, want)
	}
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", waitsFor(map[string]string{"db": "ready"}))})
	wantCode(t, err, codes.InvalidArgument, "spec.dependsOn[db]", "workload db")
	if n := c.Store.Snapshot().Count(state.KindWorkload); n != 0 {
		t.Errorf("there are %d workloads", n)
	}
}

// A change of dependencies is no new revision. A workload says what it waits for.
func TestDependenciesAreShown(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.applyPlan(op, &v1.PlanRequest{Objects: []*v1.Manifest{
		spec.ManifestOf(workload("db")), spec.ManifestOf(workload("web", waitsFor(map[string]string{"db": "ready"}))),
		spec.ManifestOf(workload("once", aJob, waitsFor(map[string]string{"db": "ready"}))),
	}})
	c.until(func(snap *state.Snapshot) bool {
		return snap.DeploymentByName("default", "web-1").GetStatus().GetReason() == "waits until workload db is ready"
	})
	for name, want := range map[string]string{"web": "deployment 1 waits until workload db is ready", "once": "waits until workload db is ready"} {
		w, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: name})
		must(t, err)
		if w.GetStatus().GetReason() != want || w.GetStatus().GetPhase() != spec.PhasePending {
			t.Errorf("%s is %s: %s", name, w.GetStatus().GetPhase(), w.GetStatus().GetReason())
		}
	}
	w := c.apply(op, func(*v1.Workload) {})
	if s := w.GetStatus(); s.GetRevision() != 1 || s.GetDeployment() != 1 {
		t.Errorf("without dependencies web has revision %d and deployment %d", s.GetRevision(), s.GetDeployment())
	}
}

// Applying the same workload again is another attempt if its deployment failed before it began.
func TestApplyTriesAgainWhatNeverBegan(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	release := func(w *v1.Workload) { w.Spec.Release = &v1.Release{Command: []string{"/migrate"}} }
	c.deployed(op, release)
	c.until(func(snap *state.Snapshot) bool { return snap.WorkloadByName("default", "web-release-1") != nil })
	_, err := op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web-release-1"})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool {
		return snap.DeploymentByName("default", "web-1").GetStatus().GetPhase() == spec.DeploymentFailed
	})
	w := c.apply(op, release)
	if s := w.GetStatus(); s.GetRevision() != 1 || s.GetDeployment() != 2 {
		t.Errorf("it has revision %d and deployment %d", s.GetRevision(), s.GetDeployment())
	}
	c.until(func(snap *state.Snapshot) bool { return snap.WorkloadByName("default", "web-release-2") != nil })
	answer, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", release)})
	must(t, err)
	if answer.GetResult() != "unchanged" {
		t.Errorf("while the second attempt runs, the same file is %s", answer.GetResult())
	}
}

func TestJobsAndCronsHaveNoDeployments(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	w := c.deployed(op, func(w *v1.Workload) { w.Spec.Kind, w.Spec.Replicas = spec.KindJob, nil })
	if w.GetStatus().GetDeployment() != 0 || c.Store.Snapshot().Count(state.KindDeployment) != 0 {
		t.Errorf("the job has deployment %d", w.GetStatus().GetDeployment())
	}
	_, err := op.deployments().PauseDeployment(c.ctx, &v1.PauseDeploymentRequest{Workload: "web"})
	wantCode(t, err, codes.FailedPrecondition, "workload web is a job", "only services and daemons")
}

// The deployments of one plan name each other, so that they are rolled back together.
func TestDeploymentsOfOnePlanAreAGroup(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	request := &v1.PlanRequest{Objects: []*v1.Manifest{
		spec.ManifestOf(workload("web")), spec.ManifestOf(workload("db")),
	}}
	plan, err := op.MakePlan(c.ctx, request)
	must(t, err)
	_, err = op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()})
	must(t, err)
	snap := c.Store.Snapshot()
	web, db := snap.DeploymentByName("default", "web-1").GetSpec().GetGroup(), snap.DeploymentByName("default", "db-1").GetSpec().GetGroup()
	if web == "" || web != db {
		t.Errorf("the groups are %q and %q", web, db)
	}
	c.apply(op, colour("red"))
	if alone := c.Store.Snapshot().DeploymentByName("default", "web-2").GetSpec().GetGroup(); alone != "" {
		t.Errorf("a deployment of its own has group %q", alone)
	}
}

func TestOperatorsSteerADeployment(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.deployed(op, colour("red"))
	c.endDeployment("web-1", spec.DeploymentSucceeded)
	c.apply(op, func(w *v1.Workload) {
		colour("blue")(w)
		w.Spec.Update = &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true}
	})
	d, err := op.deployments().PauseDeployment(c.ctx, &v1.PauseDeploymentRequest{Workload: "web"})
	must(t, err)
	if d.GetMetadata().GetName() != "web-2" || !d.GetSpec().GetPaused() || d.GetStatus().GetPhase() != spec.DeploymentPaused {
		t.Errorf("after the pause it is %v", d)
	}
	again, err := op.deployments().PauseDeployment(c.ctx, &v1.PauseDeploymentRequest{Workload: "web"})
	if must(t, err); again.GetMetadata().GetVersion() != d.GetMetadata().GetVersion() {
		t.Error("a second pause changes something")
	}
	_, err = op.deployments().PromoteDeployment(c.ctx, &v1.PromoteDeploymentRequest{Workload: "web"})
	wantCode(t, err, codes.FailedPrecondition, "deployment 2 of workload web is paused", "cloudless rollout resume web")
	d, err = op.deployments().ResumeDeployment(c.ctx, &v1.ResumeDeploymentRequest{Workload: "web"})
	if must(t, err); d.GetSpec().GetPaused() || d.GetStatus().GetPhase() != spec.DeploymentRunning {
		t.Errorf("after it was resumed it is %v", d)
	}
	d, err = op.deployments().PromoteDeployment(c.ctx, &v1.PromoteDeploymentRequest{Workload: "web"})
	if must(t, err); !d.GetSpec().GetPromoted() {
		t.Errorf("after the promotion it is %v", d)
	}
	d, err = op.deployments().AbortDeployment(c.ctx, &v1.AbortDeploymentRequest{Workload: "web"})
	if must(t, err); !d.GetSpec().GetAborted() {
		t.Errorf("after it was aborted it is %v", d)
	}
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "web"})
	must(t, err)
	for _, reason := range []string{"RolloutPaused", "RolloutResumed", "RolloutPromoted", "RolloutAborted"} {
		if !slices.ContainsFunc(events.GetItems(), func(e *v1.Event) bool {
			return e.GetSpec().GetReason() == reason && strings.HasPrefix(e.GetSpec().GetMessage(), d.GetSpec().GetAuthor()+" ")
		}) {
			t.Errorf("no event %s by %s in %v", reason, d.GetSpec().GetAuthor(), events)
		}
	}
}

func TestRefusalsSayWhatTheDeploymentIs(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	abort := func(ctx context.Context) error {
		_, err := op.deployments().AbortDeployment(ctx, &v1.AbortDeploymentRequest{Workload: "web"})
		return err
	}
	wantCode(t, abort(c.ctx), codes.NotFound, "workload web does not exist")
	c.deployed(op)
	wantCode(t, abort(c.ctx), codes.FailedPrecondition, "no earlier revision has succeeded", "cloudless workload rm web")
	_, err := op.deployments().PromoteDeployment(c.ctx, &v1.PromoteDeploymentRequest{Workload: "web"})
	wantCode(t, err, codes.FailedPrecondition, "strategy rolling", "cloudless rollout status web")
	c.endDeployment("web-1", spec.DeploymentSucceeded)
	wantCode(t, abort(c.ctx), codes.FailedPrecondition, "deployment 1 of workload web has ended: it succeeded; see how with: cloudless rollout history web")
	c.apply(op, colour("blue"))
	c.endDeployment("web-2", spec.DeploymentSucceeded)
	wantCode(t, abort(c.ctx), codes.FailedPrecondition, "deployment 2 of workload web has ended: it succeeded; go back to revision 1 with: cloudless rollout undo web")
	_, err = op.deployments().GetDeployment(c.ctx, &v1.GetDeploymentRequest{Name: "web-3"})
	wantCode(t, err, codes.NotFound, "deployment web-3 does not exist", "did you mean web-")
	_, err = c.as(core.RoleViewer).deployments().PauseDeployment(c.ctx, &v1.PauseDeploymentRequest{Workload: "web"})
	wantCode(t, err, codes.PermissionDenied)
}

func TestDeploymentsAreListedInPagesAndWatched(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.deployed(op)
	for n := range 11 {
		c.apply(op, colour(fmt.Sprint(n)))
	}
	var got []uint64
	for page := (&v1.Page{Size: 5}); ; {
		list, err := op.deployments().ListDeployments(c.ctx, &v1.ListDeploymentsRequest{Workload: "web", Page: page})
		must(t, err)
		for _, d := range list.GetItems() {
			got = append(got, d.GetSpec().GetNumber())
		}
		if page.Token = list.GetNext(); page.Token == "" {
			break
		}
	}
	if !slices.Equal(got, []uint64{12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}) {
		t.Errorf("the list has %v", got)
	}
	_, err := op.deployments().ListDeployments(c.ctx, &v1.ListDeploymentsRequest{Workload: "wep"})
	wantCode(t, err, codes.NotFound, "did you mean web?")
	stream, err := op.deployments().WatchDeployments(c.ctx, &v1.WatchDeploymentsRequest{Workload: "web"})
	must(t, err)
	for synced := false; !synced; {
		change, err := stream.Recv()
		must(t, err)
		synced = change.GetChange() == changeSynced
	}
	_, err = op.deployments().PauseDeployment(c.ctx, &v1.PauseDeploymentRequest{Workload: "web"})
	must(t, err)
	for {
		change, err := stream.Recv()
		must(t, err)
		if change.GetDeployment().GetStatus().GetPhase() == spec.DeploymentPaused {
			break
		}
	}
}
