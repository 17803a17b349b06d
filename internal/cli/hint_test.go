package cli

import (
	"strings"
	"testing"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestHintsReachTheNamespaceOfTheWorkloads(t *testing.T) {
	in := func(namespace string) *cloudlessv1.Workload {
		return &cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: namespace}}
	}
	for _, test := range []struct{ got, want string }{
		{getHint(in("default").GetMetadata()), "cloudless workload get web"},
		{getHint(in("team").GetMetadata()), "cloudless workload get web -n team"},
		{logsHint(in("team").GetMetadata()), "cloudless logs web -n team"},
		{psHint(nil), "cloudless ps"},
		{psHint([]*cloudlessv1.Workload{in("team"), in("team")}), "cloudless ps -n team"},
		{psHint([]*cloudlessv1.Workload{in("team"), in("default")}), "cloudless ps --all-namespaces"},
	} {
		if test.got != test.want {
			t.Errorf("the hint is %q, want %q", test.got, test.want)
		}
	}
}

// What is shown after a wait in another namespace can be run as it stands there.
func TestHintAfterATimeoutNamesTheNamespace(t *testing.T) {
	c := newCluster(t)
	c.standing = func(*cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{Phase: "progressing", Desired: 1}
	}
	r := c.run(t.Context(), "", "run", "hello", "-n", "team", "--timeout", "10ms")
	if hint := "see: cloudless workload get hello -n team\n"; r.code != 1 || !strings.HasSuffix(r.stderr, hint) {
		t.Errorf("exit code %d, want 1; stderr is %q, want it to end with %q", r.code, r.stderr, hint)
	}
}
