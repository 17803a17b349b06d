package spec

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestManifestHoldsEveryKindOfAFile(t *testing.T) {
	w, n := &v1.Workload{}, &v1.Namespace{}
	if o, field := ObjectIn(ManifestOf(w)); o != w || field != "workload" {
		t.Errorf("a workload comes back as %v in %q", o, field)
	}
	if o, field := ObjectIn(ManifestOf(n)); o != n || field != "namespace" {
		t.Errorf("a namespace comes back as %v in %q", o, field)
	}
	if m := ManifestOf(&v1.Token{}); m != nil {
		t.Errorf("a token is not written in files, but its manifest is %v", m)
	}
	if o, _ := ObjectIn(&v1.Manifest{}); o != nil {
		t.Errorf("an empty manifest holds %v", o)
	}
	if all := WorkloadsIn([]*v1.Manifest{ManifestOf(n), ManifestOf(w)}); len(all) != 1 || all[0] != w {
		t.Errorf("the workloads are %v", all)
	}
}
