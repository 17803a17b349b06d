package phrase

import (
	"testing"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestHintsReachTheNamespaceOfTheWorkloads(t *testing.T) {
	in := func(namespace string) *cloudlessv1.Workload {
		return &cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: namespace}}
	}
	for _, test := range []struct{ got, want string }{
		{GetHint(in("default").GetMetadata()), "cloudless workload get web"},
		{GetHint(in("team").GetMetadata()), "cloudless workload get web -n team"},
		{LogsHint(in("team").GetMetadata()), "cloudless logs web -n team"},
		{ExplainHint([]*cloudlessv1.Workload{in("team")}), "cloudless explain web -n team"},
		{ExplainHint([]*cloudlessv1.Workload{in("team"), in("default")}), "cloudless ps --all-namespaces"},
		{PsHint(nil), "cloudless ps"},
		{PsHint([]*cloudlessv1.Workload{in("team"), in("team")}), "cloudless ps -n team"},
		{PsHint([]*cloudlessv1.Workload{in("team"), in("default")}), "cloudless ps --all-namespaces"},
	} {
		if test.got != test.want {
			t.Errorf("the hint is %q, want %q", test.got, test.want)
		}
	}
}
