package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cluster) RunWorkload(_ context.Context, r *cloudlessv1.RunWorkloadRequest) (*cloudlessv1.Workload, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.find(r.GetName()); err != nil {
		return nil, err
	}
	return c.put(&cloudlessv1.Workload{
		Metadata: &cloudlessv1.Metadata{Name: r.GetName() + "-run-1", Namespace: "default"},
		Spec:     &cloudlessv1.WorkloadSpec{Image: "hello:1", Kind: spec.KindJob, Job: &cloudlessv1.Job{Completions: proto.Int32(1)}},
	}), nil
}

// kinds is a cluster with one workload of each kind; jobs are in the given phase.
func kinds(t *testing.T, phase string) *cluster {
	c := newCluster(t)
	for name, kind := range map[string]string{"web": "", "import": spec.KindJob, "backup": spec.KindCron, "logs": spec.KindDaemon} {
		c.put(&cloudlessv1.Workload{
			Metadata: &cloudlessv1.Metadata{Name: name, Namespace: "default"},
			Spec: &cloudlessv1.WorkloadSpec{
				Image: "hello:1", Kind: kind, Cron: &cloudlessv1.Cron{Schedule: "@daily", TimeZone: "Europe/Berlin", Overlap: "skip"},
				Job: &cloudlessv1.Job{Completions: proto.Int32(4), Parallelism: proto.Int32(2), Retries: proto.Int32(3)},
			},
		})
	}
	next := timestamppb.New(time.Date(2126, 5, 1, 22, 0, 0, 0, time.UTC))
	c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		switch w.GetSpec().GetKind() {
		case spec.KindJob:
			return &cloudlessv1.WorkloadStatus{Phase: phase, Revision: 1, Desired: 4, Reason: "its deadline is over", Job: &cloudlessv1.JobStatus{Succeeded: 2, Failed: 1}}
		case spec.KindCron:
			return &cloudlessv1.WorkloadStatus{Phase: "scheduled", Revision: 1, Cron: &cloudlessv1.CronStatus{NextRun: next, Active: 1}}
		}
		return &cloudlessv1.WorkloadStatus{Phase: "running", Revision: 1, Desired: 2, Running: 2}
	}
	return c
}

func TestKindsAreShown(t *testing.T) {
	c := kinds(t, "running")
	list := c.run(t.Context(), "", "workload", "ls")
	for _, want := range []string{
		"backup  cron     scheduled  1 active ", "import  job      running    2/4 done ", "logs    daemon   running    2/2 ", "web     service  running ",
	} {
		if !strings.Contains(list.stdout, want) {
			t.Errorf("the list has no %q:\n%s", want, list.stdout)
		}
	}
	job := c.run(t.Context(), "", "workload", "get", "import")
	for _, want := range []string{"Kind:         job\n", "Job:          2 of 4 completed, 1 failed, 0 running\n", "Completions:  4, 2 at once, 3 may fail\n"} {
		if !strings.Contains(job.stdout, want) {
			t.Errorf("the job has no %q:\n%s", want, job.stdout)
		}
	}
	cron := c.run(t.Context(), "", "workload", "get", "backup")
	for _, want := range []string{"Schedule:     @daily in Europe/Berlin\n", "Next run:     2126-05-02 00:00 CEST\n", "Active:       1\n"} {
		if !strings.Contains(cron.stdout, want) {
			t.Errorf("the cron has no %q:\n%s", want, cron.stdout)
		}
	}
}

// Waiting for a job ends with the job's result.
func TestWaitingForAJob(t *testing.T) {
	kinds(t, "completed").run(t.Context(), "", "workload", "run", "backup").expect(t, 0,
		"workload backup-run-1 made\nbackup-run-1: completed, 2/4 done, its deadline is over\n", "")
	failed := kinds(t, "failed").run(t.Context(), "", "workload", "run", "backup")
	if want := "workload backup-run-1 failed: its deadline is over: see its output with: cloudless logs backup-run-1"; failed.code != 1 || !strings.Contains(failed.stderr, want) {
		t.Errorf("exit code %d: %s", failed.code, failed.stderr)
	}
	kinds(t, "failed").run(t.Context(), "", "workload", "run", "backup", "--wait=false").expect(t, 0, "workload backup-run-1 made\n", "")
}

func TestRunOfAKind(t *testing.T) {
	for _, c := range []struct {
		args string
		want *cloudlessv1.WorkloadSpec
	}{
		{"hello:1", &cloudlessv1.WorkloadSpec{Replicas: proto.Int32(1)}},
		{"hello:1 --kind service --replicas 2", &cloudlessv1.WorkloadSpec{Kind: "service", Replicas: proto.Int32(2)}},
		{"hello:1 --priority 0", &cloudlessv1.WorkloadSpec{Replicas: proto.Int32(1), Priority: proto.Int32(0)}},
		{"hello:1 --kind daemon --priority 900", &cloudlessv1.WorkloadSpec{Kind: "daemon", Priority: proto.Int32(900)}},
		{"hello:1 --kind daemon", &cloudlessv1.WorkloadSpec{Kind: "daemon"}},
		{"hello:1 --kind job --completions 4 --parallelism 2", &cloudlessv1.WorkloadSpec{
			Kind: "job", Job: &cloudlessv1.Job{Completions: proto.Int32(4), Parallelism: proto.Int32(2)},
		}},
		{"hello:1 --kind job --retries 0 --deadline 1h", &cloudlessv1.WorkloadSpec{Kind: "job", Job: &cloudlessv1.Job{Retries: proto.Int32(0), Deadline: "1h"}}},
		{"hello:1 --schedule @daily --time-zone Europe/Berlin", &cloudlessv1.WorkloadSpec{
			Kind: "cron", Cron: &cloudlessv1.Cron{Schedule: "@daily", TimeZone: "Europe/Berlin"},
		}},
	} {
		cl := newCluster(t)
		if r := cl.run(t.Context(), "", append([]string{"run", "-d"}, strings.Fields(c.args)...)...); r.code != 0 {
			t.Errorf("%s: %s", c.args, r.stderr)
			continue
		}
		c.want.Image = "hello:1"
		if got := cl.workloads["hello"].GetSpec(); !proto.Equal(got, c.want) {
			t.Errorf("%s asks for %v, want %v", c.args, got, c.want)
		}
	}
	refused := newCluster(t).run(t.Context(), "", "run", "hello:1", "--kind", "job", "--replicas", "2")
	if !strings.Contains(refused.stderr, "spec.replicas: is not for a job") {
		t.Errorf("replicas of a job: %s", refused.stderr)
	}
	newCluster(t).run(t.Context(), "", "run", "hello:1", "--priority", "1001").expect(t, 1, "", "cloudless: spec.priority: must be between 0 and 1000\n")
}
