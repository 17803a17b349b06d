package spec

import (
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestShortestSilenceOfAllClasses(t *testing.T) {
	laptops := []*v1.NodeClass{{Name: "laptops", Liveness: &v1.Liveness{Silence: "1m"}}, {Name: "phones"}}
	racks := append(laptops, &v1.NodeClass{Name: "racks", Liveness: &v1.Liveness{Silence: "2s"}})
	for _, c := range []struct {
		about string
		of    *v1.ClusterSpec
		want  time.Duration
	}{
		{"nothing is set", nil, DefaultLiveness.Silence},
		{"the cluster says something", &v1.ClusterSpec{Liveness: &v1.Liveness{Silence: "9s"}}, 9 * time.Second},
		{"a class has longer", &v1.ClusterSpec{NodeClasses: laptops}, DefaultLiveness.Silence},
		{"a class has less", &v1.ClusterSpec{NodeClasses: racks}, 2 * time.Second},
	} {
		if got := ShortestSilence(c.of); got != c.want {
			t.Errorf("%s: %s, want %s", c.about, got, c.want)
		}
	}
}

func TestLivenessComesFromTheFirstMatchingClass(t *testing.T) {
	cluster := &v1.ClusterSpec{
		Liveness: &v1.Liveness{Silence: "5s"},
		NodeClasses: []*v1.NodeClass{
			{Name: "laptops", Labels: "kind=laptop", Liveness: &v1.Liveness{Reconnect: "5m"}},
			{Name: "everything-portable", Labels: "kind", Liveness: &v1.Liveness{Silence: "1m"}},
		},
	}
	for _, c := range []struct {
		about  string
		of     *v1.ClusterSpec
		labels map[string]string
		want   Liveness
	}{
		{"nothing is set", &v1.ClusterSpec{}, nil, DefaultLiveness},
		{"the cluster says something", cluster, nil, Liveness{time.Second, 5 * time.Second, 10 * time.Second}},
		{"the class says something, the cluster the rest", cluster, map[string]string{"kind": "laptop"}, Liveness{time.Second, 5 * time.Second, 5 * time.Minute}},
		{"the second class", cluster, map[string]string{"kind": "phone"}, Liveness{time.Second, time.Minute, 10 * time.Second}},
	} {
		if got := LivenessOf(c.of, &v1.Node{Metadata: &v1.Metadata{Labels: c.labels}}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.about, got, c.want)
		}
	}
}

// A class may match all machines of a kind: facts that a node reports count like labels.
func TestClassMatchesReportedFacts(t *testing.T) {
	cluster := &v1.ClusterSpec{NodeClasses: []*v1.NodeClass{
		{Name: "arms", Labels: "node.cloudless/arch=arm64", Overcommit: &v1.Overcommit{Cpu: new(int32(300))}, Liveness: &v1.Liveness{Silence: "1m"}},
	}}
	for arch, want := range map[string]string{"arm64": "arms", "amd64": ""} {
		n := &v1.Node{Status: &v1.NodeStatus{Info: &v1.NodeInfo{Arch: arch}}}
		if got := NodeClassOf(cluster, n).GetName(); got != want {
			t.Errorf("a node of %s is of class %q, want %q", arch, got, want)
		}
		if is := NodePolicyOf(cluster, n).Overcommit.GetCpu() == 300 && LivenessOf(cluster, n).Silence == time.Minute; is != (want != "") {
			t.Errorf("a node of %s is judged by its class: %v", arch, is)
		}
	}
}
