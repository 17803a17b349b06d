package spec_test

import (
	"maps"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// The cluster's own labels override others, and unknown ones are missing.
func TestNodeLabels(t *testing.T) {
	n := &v1.Node{
		Metadata: &v1.Metadata{Name: "n1", Labels: map[string]string{"disk": "ssd", spec.LabelArch: "z80", spec.LabelGPU: "none"}},
		Status: &v1.NodeStatus{
			Info:     &v1.NodeInfo{Os: "linux", Arch: "arm64", Kernel: "6.1.0-18", Hostname: "box"},
			Capacity: &v1.NodeResources{},
		},
	}
	want := map[string]string{
		"disk": "ssd", "node.cloudless/name": "n1", "node.cloudless/hostname": "box", "node.cloudless/os": "linux",
		"node.cloudless/arch": "arm64", "node.cloudless/kernel": "6.1.0-18",
	}
	if got := spec.NodeLabels(n); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(n.GetMetadata().GetLabels()) != 3 {
		t.Error("the node was changed")
	}
}

func FuzzGPUModel(f *testing.F) {
	f.Add("NVIDIA A100-SXM4-40GB")
	f.Add(" Tesla T4\n")
	f.Fuzz(func(t *testing.T, name string) {
		model := spec.GPUModel(name)
		if spec.GPUModel(model) != model || strings.ContainsAny(model, " \n\x00/=") {
			t.Errorf("%q becomes %q", name, model)
		}
		if model != "" && !spec.ModelMatches(model, name) {
			t.Errorf("%q does not match itself", name)
		}
	})
}
