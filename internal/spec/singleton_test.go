package spec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestSingletonHasOneReplicaAndStopsItFirst(t *testing.T) {
	for _, test := range []struct {
		edit func(*v1.WorkloadSpec)
		want string
	}{
		{func(*v1.WorkloadSpec) {}, ""},
		{func(s *v1.WorkloadSpec) { s.Replicas = proto.Int32(0) }, ""},
		{func(s *v1.WorkloadSpec) { s.Update = &v1.Update{Strategy: StrategyRecreate} }, ""},
		{func(s *v1.WorkloadSpec) { s.Replicas = proto.Int32(2) }, "spec.replicas: must be 0 or 1"},
		{func(s *v1.WorkloadSpec) { s.Kind = KindJob }, "spec.singleton: is only for services"},
		{func(s *v1.WorkloadSpec) { s.Update = &v1.Update{Strategy: StrategyBlueGreen} }, "spec.update.strategy: must be recreate"},
		{func(s *v1.WorkloadSpec) { s.MinAvailable = 1 }, "spec.minAvailable: is not for a singleton"},
		{func(s *v1.WorkloadSpec) { s.Restart = &v1.Restart{Policy: "never"} }, "spec.restart.policy: must be always"},
		{func(s *v1.WorkloadSpec) { s.Env = map[string]string{EpochVariable: "1"} }, "spec.env: must not contain CLOUDLESS_EPOCH"},
	} {
		s := &v1.WorkloadSpec{Image: "hello:1", Singleton: true}
		test.edit(s)
		err := Validate(&v1.Workload{Metadata: &v1.Metadata{Name: "db"}, Spec: s})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", s, err, test.want)
		}
	}
	if got := StrategyOf(&v1.WorkloadSpec{Singleton: true}); got != StrategyRecreate {
		t.Errorf("a singleton is updated by %s", got)
	}
}
