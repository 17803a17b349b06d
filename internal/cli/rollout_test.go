package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cluster) ListDeployments(_ context.Context, r *cloudlessv1.ListDeploymentsRequest) (*cloudlessv1.ListDeploymentsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.find(r.GetWorkload()); r.GetWorkload() != "" && err != nil {
		return nil, err
	}
	return &cloudlessv1.ListDeploymentsResponse{Items: c.deployments}, nil
}

func (c *cluster) GetDeployment(_ context.Context, r *cloudlessv1.GetDeploymentRequest) (*cloudlessv1.Deployment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.deployments {
		if d.GetMetadata().GetName() == r.GetName() {
			return d, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "deployment %s does not exist", r.GetName())
}

// WatchDeployments shows every deployment as it is, and the newest one once more as it ends.
func (c *cluster) WatchDeployments(_ *cloudlessv1.WatchDeploymentsRequest, s grpc.ServerStreamingServer[cloudlessv1.DeploymentChange]) error {
	c.mu.Lock()
	all, end := c.deployments, c.end
	c.mu.Unlock()
	for _, d := range all {
		_ = s.Send(&cloudlessv1.DeploymentChange{Change: "added", Deployment: d})
	}
	_ = s.Send(&cloudlessv1.DeploymentChange{Change: "synced"})
	if end != nil {
		ended := proto.CloneOf(all[0])
		ended.Status = end
		c.mu.Lock()
		c.deployments = append([]*cloudlessv1.Deployment{ended}, all[1:]...)
		c.mu.Unlock()
		_ = s.Send(&cloudlessv1.DeploymentChange{Change: "changed", Deployment: ended})
	}
	<-s.Context().Done()
	return nil
}

func (c *cluster) steer(verb, workload string) (*cloudlessv1.Deployment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, verb+" "+workload)
	return c.deployments[0], nil
}

func (c *cluster) PauseDeployment(_ context.Context, r *cloudlessv1.PauseDeploymentRequest) (*cloudlessv1.Deployment, error) {
	return c.steer("pause", r.GetWorkload())
}

func (c *cluster) ResumeDeployment(_ context.Context, r *cloudlessv1.ResumeDeploymentRequest) (*cloudlessv1.Deployment, error) {
	return c.steer("resume", r.GetWorkload())
}

func (c *cluster) PromoteDeployment(_ context.Context, r *cloudlessv1.PromoteDeploymentRequest) (*cloudlessv1.Deployment, error) {
	return c.steer("promote", r.GetWorkload())
}

func (c *cluster) AbortDeployment(_ context.Context, r *cloudlessv1.AbortDeploymentRequest) (*cloudlessv1.Deployment, error) {
	return c.steer("abort", r.GetWorkload())
}

// deployed is a cluster with workload web, whose second deployment is in a phase.
func deployed(t *testing.T, phase string) *cluster {
	c := described(t)
	c.workloads["web"].Status = &cloudlessv1.WorkloadStatus{DeploymentUid: "d2"}
	c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 1, Running: 1, Revision: 2, Deployment: 2, DeploymentUid: w.GetStatus().GetDeploymentUid()}
	}
	c.replicas = nil
	start := timestamppb.New(time.Now().Add(-90 * time.Second))
	one := func(uid, name string, number uint64, status *cloudlessv1.DeploymentStatus) *cloudlessv1.Deployment {
		return &cloudlessv1.Deployment{
			Metadata: &cloudlessv1.Metadata{Uid: uid, Name: name, Namespace: "default", CreateTime: start},
			Spec: &cloudlessv1.DeploymentSpec{
				Workload: "web", Number: number, Revision: number, RevisionUid: "r", Previous: 1, PreviousUid: "r1", Cause: "apply", Author: "user/alice",
			},
			Status: status,
		}
	}
	c.deployments = []*cloudlessv1.Deployment{
		one("d2", "web-2", 2, &cloudlessv1.DeploymentStatus{Phase: phase, StartTime: start, Desired: 3, Updated: 2, Serving: 1}),
		one("d1", "web-1", 1, &cloudlessv1.DeploymentStatus{
			Phase: spec.DeploymentSucceeded, StartTime: start, EndTime: timestamppb.New(start.AsTime().Add(7 * time.Second)),
		}),
	}
	return c
}

func TestRolloutSteersTheNewestDeployment(t *testing.T) {
	c := deployed(t, spec.DeploymentRunning)
	for verb, done := range map[string]string{"pause": "paused", "resume": "resumed", "promote": "promoted", "abort": "aborted"} {
		c.asked = nil
		c.run(t.Context(), "", "rollout", verb, "web").expect(t, 0, "deployment 2 of workload web "+done+"\n", "")
		if got := strings.Join(c.asked, "; "); got != verb+" web" {
			t.Errorf("%s asks for %s", verb, got)
		}
	}
	c.asked = nil
	c.run(t.Context(), "", "rollout", "undo", "web", "1", "--wait=false").expect(t, 0, "workload web rolled back: it is at revision 2\n", "")
	if got := strings.Join(c.asked, "; "); got != "rollback web 1" {
		t.Errorf("undo asks for %s", got)
	}
	if got := c.run(t.Context(), "", "rollout", "undo"); got.code != 2 || !strings.Contains(got.stderr, "WORKLOAD is missing") {
		t.Errorf("%+v", got)
	}
	if got := c.run(t.Context(), "", "rollout", "pause", "web", "-o", "json"); got.code != 0 || !strings.Contains(got.stdout, `"name": "web-2"`) {
		t.Errorf("%+v", got)
	}
}

func TestRolloutStatusTellsThePhaseByItsExitCode(t *testing.T) {
	for phase, code := range map[string]int{
		spec.DeploymentRunning: 0, spec.DeploymentPaused: 0, spec.DeploymentSucceeded: 0, spec.DeploymentFailed: 3, spec.DeploymentRolledBack: 4,
	} {
		got := deployed(t, phase).run(t.Context(), "", "rollout", "status", "web")
		for _, want := range []string{
			"Deployment:          2\n", "Phase:               " + phase + "\n", "Last good revision:  1\n", "apply by user/alice\n",
		} {
			if got.code != code || !strings.Contains(got.stdout, want) {
				t.Errorf("%s: %+v, want code %d and %q", phase, got, code, want)
			}
		}
		// What happens to the replicas after the end is not the doing of the deployment.
		if counted := strings.Contains(got.stdout, "2 of 3 updated, 1 serving\n"); counted == spec.DeploymentEnded(phase) {
			t.Errorf("%s: it shows the replicas: %t", phase, counted)
		}
	}
	c := described(t)
	if got := c.run(t.Context(), "", "rollout", "status", "web"); got.code != 1 || !strings.Contains(got.stderr, "workload web has no deployments") {
		t.Errorf("%+v", got)
	}
}

// Every command that waits ends when the deployment ends, and says how it ended. Status with --watch is one of them.
func TestWatchingADeploymentEndsWithIt(t *testing.T) {
	for _, test := range []struct {
		end    *cloudlessv1.DeploymentStatus
		code   int
		stderr string
	}{
		{&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentSucceeded}, 0, ""},
		{&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentFailed, Reason: "replaced by deployment 3"}, 3, "deployment 2 of workload web failed: replaced by deployment 3: see: cloudless rollout history web"},
		{
			&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRolledBack, Reason: "It made no progress for 5m."}, 4,
			"deployment 2 of workload web was rolled back to revision 1: it made no progress for 5m: see: cloudless rollout history web",
		},
	} {
		c := deployed(t, spec.DeploymentRunning)
		c.end = test.end
		got := c.run(t.Context(), "", "rollout", "status", "web", "--watch")
		if got.code != test.code || !strings.Contains(got.stderr, test.stderr) {
			t.Errorf("%s: %+v, want code %d", test.end.GetPhase(), got, test.code)
		}
	}
}

// Programs that apply a file get the objects, whatever becomes of the deployment.
func TestApplyTellsProgramsHowADeploymentEnded(t *testing.T) {
	c := deployed(t, spec.DeploymentRunning)
	c.end = &cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRolledBack, Reason: "It made no progress for 5m."}
	file := "apiVersion: cloudless/v1\nkind: Workload\nmetadata: {name: web}\n" +
		"spec: {image: 'hello:1', env: {COLOUR: blue}, ports: [{name: http, port: 8080, publish: 80}]}\n"
	got := c.run(t.Context(), file, "apply", "-f", "-", "-o", "json")
	for _, want := range []string{`"image": "hello:1"`, `"phase": "rolled back"`, `"reason": "It made no progress for 5m."`} {
		if got.code != 4 || !strings.Contains(got.stdout, want) {
			t.Errorf("exit code %d, want 4, and output without %s:\n%s%s", got.code, want, got.stdout, got.stderr)
		}
	}
}

func TestRolloutHistoryAndDescribeShowDeployments(t *testing.T) {
	c := deployed(t, spec.DeploymentRunning)
	got := c.run(t.Context(), "", "rollout", "history", "web")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.code != 0 || len(lines) != 3 || !strings.HasPrefix(lines[1], "2 ") || !strings.Contains(lines[1], " running ") ||
		!strings.Contains(lines[2], "user/alice") || !strings.Contains(lines[2], " 7s ") {
		t.Errorf("%+v", got)
	}
	if got := c.run(t.Context(), "", "get", "deployments"); got.code != 0 || !strings.Contains(got.stdout, "web-1 ") || !strings.Contains(got.stdout, "succeeded") {
		t.Errorf("%+v", got)
	}
	if got := c.run(t.Context(), "", "describe", "web"); got.code != 0 || !strings.Contains(got.stdout, "\nDeployment\n") || strings.Contains(got.stdout, " 7s ") {
		t.Errorf("%+v", got)
	}
	if got := c.run(t.Context(), "", "workload", "history", "web"); got.code != 0 || !strings.Contains(got.stdout, "\n2 (current) ") {
		t.Errorf("%+v", got)
	}
	if got := c.run(t.Context(), "", "rollout", "history", "wep"); got.code != 1 || !strings.Contains(got.stderr, "workload wep does not exist") {
		t.Errorf("%+v", got)
	}
}
