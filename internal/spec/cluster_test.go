package spec

import (
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestLivenessIsOfTheFirstClassThatMatches(t *testing.T) {
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
		if got := LivenessOf(c.of, c.labels); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.about, got, c.want)
		}
	}
}
