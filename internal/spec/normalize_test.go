package spec_test

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func TestNormalizeFillsInDefaultsAndRewritesAmounts(t *testing.T) {
	w := hello()
	w.Spec.Ports = []*v1.Port{{Port: 80}}
	w.Spec.Placement = &v1.Placement{}
	w.Spec.Restart = &v1.Restart{Backoff: "1500ms", MaxBackoff: "120s"}
	w.Spec.Resources = &v1.Resources{
		Requests: &v1.ResourceAmounts{Cpu: "0.5"},
		Limits:   &v1.ResourceAmounts{Cpu: "1000m", Memory: "1024Mi"},
	}
	spec.Normalize(w)
	want := &v1.Workload{}
	if err := protojson.Unmarshal([]byte(`{
		"apiVersion": "cloudless/v1", "kind": "Workload",
		"metadata": {"name": "web", "namespace": "default"},
		"spec": {
			"image": "hello:1", "driver": "container", "replicas": 1, "network": "node",
			"ports": [{"port": 80, "protocol": "tcp"}],
			"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
			"restart": {"policy": "always", "backoff": "1s500ms", "maxBackoff": "2m", "reset": "5m"},
			"stop": {"signal": "SIGTERM", "grace": "10s"}
		}}`), want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(w, want) {
		t.Errorf("got  %v\nwant %v", w, want)
	}
}

// anySpec draws specs, many of them valid, in many notations.
func anySpec() *rapid.Generator[*v1.WorkloadSpec] {
	cpu := rapid.SampledFrom([]string{"", "1", "1000m", "0.5", "500m", "2", "bad", "1234.567"})
	memory := rapid.SampledFrom([]string{"", "1Gi", "1024Mi", "64Mi", "1.3Gi", "1000000000", "bad"})
	duration := rapid.SampledFrom([]string{"", "1s", "1000ms", "60s", "1m", "90s", "bad"})
	amounts := rapid.Custom(func(t *rapid.T) *v1.ResourceAmounts {
		return &v1.ResourceAmounts{Cpu: cpu.Draw(t, "cpu"), Memory: memory.Draw(t, "memory")}
	})
	port := rapid.Custom(func(t *rapid.T) *v1.Port {
		return &v1.Port{Port: rapid.Int32Range(0, 3).Draw(t, "port"), Protocol: rapid.SampledFrom([]string{"", "tcp", "udp"}).Draw(t, "protocol")}
	})
	return rapid.Custom(func(t *rapid.T) *v1.WorkloadSpec {
		s := &v1.WorkloadSpec{
			Image:   rapid.SampledFrom([]string{"a", "a:1", ""}).Draw(t, "image"),
			Args:    rapid.SliceOfN(rapid.SampledFrom([]string{"", "x"}), 0, 3).Draw(t, "args"),
			Env:     rapid.MapOfN(rapid.SampledFrom([]string{"A", "B.\"]"}), rapid.SampledFrom([]string{"", "x"}), 0, 2).Draw(t, "env"),
			Network: rapid.SampledFrom([]string{"", "node", "host", "none"}).Draw(t, "network"),
			Ports:   rapid.SliceOfN(port, 0, 2).Draw(t, "ports"),
		}
		if rapid.Bool().Draw(t, "with replicas") {
			s.Replicas = proto.Int32(rapid.Int32Range(0, 2).Draw(t, "replicas"))
		}
		if rapid.Bool().Draw(t, "with resources") {
			s.Resources = &v1.Resources{Requests: amounts.Draw(t, "requests"), Limits: amounts.Draw(t, "limits")}
		}
		if rapid.Bool().Draw(t, "with restart") {
			s.Restart = &v1.Restart{Backoff: duration.Draw(t, "backoff"), MaxBackoff: duration.Draw(t, "max")}
		}
		if rapid.Bool().Draw(t, "with placement") {
			s.Placement = &v1.Placement{Labels: rapid.MapOfN(rapid.Just("disk"), rapid.SampledFrom([]string{"", "ssd"}), 0, 1).Draw(t, "labels")}
		}
		if rapid.Bool().Draw(t, "with probes") {
			s.Probes = &v1.Probes{}
			if rapid.Bool().Draw(t, "with readiness") {
				s.Probes.Readiness = &v1.Probe{Period: duration.Draw(t, "period"), Failures: rapid.Int32Range(0, 3).Draw(t, "failures")}
			}
			if r := s.Probes.Readiness; r != nil && rapid.Bool().Draw(t, "tcp") {
				r.Tcp = &v1.TcpProbe{Port: rapid.Int32Range(0, 1).Draw(t, "probed port")}
			} else if r != nil {
				r.Http = &v1.HttpProbe{Path: rapid.SampledFrom([]string{"", "/", "x"}).Draw(t, "path")}
			}
		}
		return s
	})
}

func TestNormalizeIsIdempotentAndKeepsValidity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: anySpec().Draw(t, "spec")}
		before := spec.Validate(w)
		spec.Normalize(w)
		once := proto.CloneOf(w)
		spec.Normalize(w)
		if !proto.Equal(w, once) {
			t.Fatalf("normalized once  %v\nnormalized twice %v", once, w)
		}
		if after := spec.Validate(w); (before == nil) != (after == nil) {
			t.Fatalf("before: %v\nafter: %v", before, after)
		}
	})
}

func TestEqualSpecsHaveNoDiff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anySpec().Draw(t, "a"), anySpec().Draw(t, "b")
		diff := spec.Diff(a, b)
		if equal := spec.Equal(a, b); equal != (len(diff) == 0) {
			t.Fatalf("equal is %v, the diff %v", equal, diff)
		}
		if spec.ReplacesNone(a, b) != !slices.ContainsFunc(diff, func(c spec.FieldChange) bool {
			return c.Field != "spec.replicas" && c.Field != "spec.minAvailable" && c.Field != "spec.priority"
		}) {
			t.Fatalf("ReplacesNone is wrong about %v", diff)
		}
		back := spec.Diff(b, a)
		for i := range back {
			back[i].Old, back[i].New = back[i].New, back[i].Old
		}
		if !slices.Equal(diff, back) {
			t.Fatalf("the diff is %v in one direction and %v in the other", diff, back)
		}
		if !spec.Equal(a, proto.CloneOf(a)) || len(spec.Diff(b, b)) != 0 {
			t.Fatal("a spec differs from itself")
		}
	})
}

// A nil spec means all defaults.
func TestNilSpec(t *testing.T) {
	if !spec.Equal(nil, &v1.WorkloadSpec{}) || len(spec.Diff(nil, hello().Spec)) != 1 || !spec.ReplacesNone(nil, nil) {
		t.Errorf("a missing spec differs by %v", spec.Diff(nil, hello().Spec))
	}
}

func TestDiff(t *testing.T) {
	a, b := hello().Spec, hello().Spec
	a.Env = map[string]string{"A": "1", "C": "3"}
	a.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: "1"}}
	b.Image = "hello:2"
	b.Args = []string{"-v"}
	b.Env = map[string]string{"A": "2", "B": "2"}
	b.Replicas = proto.Int32(3)
	b.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: "1000m", Memory: "1024Mi"}}
	b.Ports = []*v1.Port{{Port: 80}}
	want := []spec.FieldChange{
		{"spec.image", "hello:1", "hello:2"},
		{"spec.args[0]", "", "-v"},
		{"spec.env[A]", "1", "2"},
		{"spec.env[B]", "", "2"},
		{"spec.env[C]", "3", ""},
		{"spec.replicas", "1", "3"},
		{"spec.resources.requests.memory", "", "1Gi"},
		{"spec.resources.limits.memory", "", "1Gi"},
		{"spec.ports[0].port", "", "80"},
		{"spec.ports[0].protocol", "", "tcp"},
	}
	if got := spec.Diff(a, b); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestDiffWorkloadShowsLabelsToo(t *testing.T) {
	a, b := hello(), hello()
	a.Metadata.Labels = map[string]string{"app": "web", "tier": "x"}
	b.Metadata.Labels = map[string]string{"app": "web", "tier": ""}
	b.Metadata.Annotations = map[string]string{"example.com/owner": "ann", "two words": "x"}
	b.Spec.Env = map[string]string{"A": ""}
	want := []spec.FieldChange{
		{"metadata.labels[tier]", "x", `""`},
		{"metadata.annotations[example.com/owner]", "", "ann"},
		{`metadata.annotations["two words"]`, "", "x"},
		{"spec.env[A]", "", `""`},
	}
	if got := spec.DiffWorkload(a, b); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// Given fields are shown even if they equal the default; defaults are not.
func TestGiven(t *testing.T) {
	w := hello()
	w.Metadata.Labels = map[string]string{"app": "web"}
	w.Spec = &v1.WorkloadSpec{
		Image: "hello:1", Replicas: proto.Int32(1),
		Resources: &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: "0.5"}},
	}
	want := []spec.FieldChange{
		{"metadata.labels[app]", "", "web"},
		{"spec.image", "", "hello:1"},
		{"spec.replicas", "", "1"},
		{"spec.resources.limits.cpu", "", "500m"},
	}
	if got := spec.Given(w); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
