package cli

import (
	"strings"
	"testing"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Whoever runs a job wants to see what it prints, whether it completes or fails.
func TestRunShowsTheOutputOfAJob(t *testing.T) {
	for phase, code := range map[string]int{"completed": 0, "failed": 1} {
		c := kinds(t, phase)
		c.entries = []*cloudlessv1.LogEntry{entry("hello-a", "one", 1), entry("hello-a", "two", 2)}
		got := c.run(t.Context(), "", "run", "hello:1", "--kind", "job")
		if got.code != code || !strings.HasSuffix(got.stdout, "one\ntwo\n") || !c.lastLogs.GetEnded() || c.lastLogs.GetWorkload() != "hello" {
			t.Errorf("%s: %+v; it asks for the output %v", phase, got, c.lastLogs)
		}
		if c.workloads["hello"] == nil {
			t.Errorf("%s: the job was removed, and nobody asked for that", phase)
		}
	}
	c := kinds(t, "completed")
	c.entries = []*cloudlessv1.LogEntry{entry("hello-a", "one", 1)}
	c.run(t.Context(), "", "run", "hello:1", "--kind", "job", "--detach").expect(t, 0, "workload hello created\n", "")
}

func TestRunRemovesAJobThatHasEnded(t *testing.T) {
	for phase, code := range map[string]int{"completed": 0, "failed": 1} {
		c := kinds(t, phase)
		c.entries = []*cloudlessv1.LogEntry{entry("hello-a", "one", 1)}
		got := c.run(t.Context(), "", "run", "hello:1", "--kind", "job", "--rm")
		if got.code != code || !strings.Contains(got.stdout, "one\n") || c.workloads["hello"] != nil {
			t.Errorf("%s: %+v; %v is left", phase, got, c.workloads["hello"])
		}
		if strings.Contains(got.stderr, "cloudless logs") {
			t.Errorf("%s: what is removed has no output to see any more: %s", phase, got.stderr)
		}
	}
	// One that goes on is left to go on.
	c := kinds(t, "running")
	late := c.run(t.Context(), "", "run", "hello:1", "--kind", "job", "--rm", "--timeout", "1ms")
	if late.code != 1 || c.workloads["hello"] == nil || !strings.Contains(late.stderr, "cloudless workload rm hello") {
		t.Errorf("%+v", late)
	}
	for _, args := range [][]string{{"--rm"}, {"--rm", "--kind", "daemon"}, {"--rm", "--kind", "job", "--detach"}} {
		refused := newCluster(t).run(t.Context(), "", append([]string{"run", "hello:1"}, args...)...)
		if refused.code != 2 || !strings.Contains(refused.stderr, "--rm") {
			t.Errorf("%v: %+v", args, refused)
		}
	}
}
