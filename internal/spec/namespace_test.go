package spec

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Files can hold namespaces beside workloads, and errors have positions.
func TestNamespaceFile(t *testing.T) {
	docs, err := Decode("f", []byte("kind: Namespace\nmetadata: {name: shop}\nspec:\n  quota: {cpu: 1.5, memory: 8Gi, gpu: 0}\n---\nkind: Workload\nmetadata: {name: web}\nspec: {image: hello}\n"))
	if err != nil || len(docs) != 2 || docs[0].Kind != KindNamespace || docs[1].Kind != KindWorkload {
		t.Fatalf("%+v, %v", docs, err)
	}
	if q := docs[0].Message.(*v1.Namespace).GetSpec().GetQuota(); q.GetCpu() != "1.5" || q.Gpu == nil || q.GetGpu() != 0 || q.Replicas != nil {
		t.Errorf("the quota is %v", q)
	}
	for given, want := range map[string]string{
		"kind: Namespace\nmetadata: {}\n":                                              "f:2:1: metadata.name: is missing",
		"kind: Namespace\n":                                                            "f:1:1: metadata.name: is missing",
		"kind: Namespace\nmetadata: {name: shop, namespace: other}\n":                  "f:2:35: metadata.namespace: must be left out",
		"kind: Namespace\nmetadata: {name: shop}\nspec: {quota: {cpus: 1}}\n":          "f:3:16: spec.quota.cpus: is not a known field; did you mean cpu?",
		"kind: Namespace\nmetadata: {name: shop}\nspec: {quota: {memory: lots}}\n":     "f:3:24: spec.quota.memory: must be an amount of bytes",
		"kind: Namespace\nmetadata: {name: shop}\nspec: {quota: {replicas: -1}}\n":     "f:3:26: spec.quota.replicas: must be between 0 and 1000000000",
		"kind: Namespace\nmetadata: {name: shop}\nspec: {quota: {bandwidth: 8888P}}\n": "f:3:27: spec.quota.bandwidth",
	} {
		_, err := Decode("f", []byte(given))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q", given, err, want)
		}
	}
	if carried := Validate(&v1.CreateNamespaceRequest{Namespace: &v1.Namespace{Metadata: &v1.Metadata{Name: "x"}, Spec: &v1.NamespaceSpec{Quota: &v1.Quota{Cpu: "x"}}}}); carried == nil || !strings.Contains(carried.Error(), "spec.quota.cpu") {
		t.Errorf("a request that carries one gives %v", carried)
	}
}

// The same quota in another notation is the same; "nothing" differs from "no limit".
func TestNamespacesMeanTheSame(t *testing.T) {
	space := func(q *v1.Quota) *v1.Namespace {
		return &v1.Namespace{Metadata: &v1.Metadata{Name: "shop"}, Spec: &v1.NamespaceSpec{Quota: q}}
	}
	diff := func(a, b *v1.Namespace) []FieldChange {
		a, b = proto.CloneOf(a), proto.CloneOf(b)
		NormalizeNamespace(a)
		NormalizeNamespace(b)
		return DiffObject(a, b)
	}
	a, b := space(&v1.Quota{Cpu: "1.5", Memory: "1024Mi"}), space(&v1.Quota{Cpu: "1500m", Memory: "1Gi"})
	if got := diff(a, b); len(got) != 0 {
		t.Errorf("the same differs in %v", got)
	}
	if got := diff(space(nil), space(&v1.Quota{})); len(got) != 0 {
		t.Errorf("nothing said differs in %v", got)
	}
	got := diff(space(&v1.Quota{Cpu: "0"}), space(&v1.Quota{Gpu: new(int64(0))}))
	if len(got) != 2 || got[0] != (FieldChange{Field: "spec.quota.cpu", Old: "0"}) || got[1] != (FieldChange{Field: "spec.quota.gpu", New: "0"}) {
		t.Errorf("none at all differs in %v", got)
	}
	labelled := proto.CloneOf(a)
	labelled.Metadata.Labels = map[string]string{"team": "x"}
	if got := diff(a, labelled); len(got) != 1 || got[0].Field != "metadata.labels[team]" {
		t.Errorf("a label differs in %v", got)
	}
	n := space(&v1.Quota{Cpu: "1.5", Bandwidth: "1000M"})
	NormalizeNamespace(n)
	if q := n.GetSpec().GetQuota(); q.GetCpu() != "1500m" || q.GetBandwidth() != "1G" || n.GetKind() != KindNamespace || n.GetApiVersion() != APIVersion {
		t.Errorf("in canonical form it is %v", n)
	}
}

// The reserve of nodes has one form, and nonsense is refused when it is set and not on the
// nodes.
func TestReservedHasOneForm(t *testing.T) {
	written := &v1.ClusterSpec{
		Reserved: &v1.ResourceAmounts{Cpu: "0.5"}, Overcommit: &v1.Overcommit{},
		NodeClasses: []*v1.NodeClass{{Name: "thin", Labels: "a=b", Reserved: &v1.ResourceAmounts{Memory: "2048Mi"}}},
	}
	normal := NormalizedCluster(written)
	if normal.GetReserved().GetCpu() != "500m" || normal.Overcommit != nil || normal.GetNodeClasses()[0].GetReserved().GetMemory() != "2Gi" {
		t.Errorf("in canonical form it is %v", normal)
	}
	for field, c := range map[string]*v1.ClusterSpec{
		"spec.cluster.reserved.memory":              {Reserved: &v1.ResourceAmounts{Memory: "9999999999999999P"}},
		"spec.cluster.nodeClasses[0].reserved.disk": {NodeClasses: []*v1.NodeClass{{Name: "x", Labels: "a=b", Reserved: &v1.ResourceAmounts{Disk: "9999999999999999P"}}}},
	} {
		if err := Validate(configuration(c)); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v gives %v, want something about %s", c, err, field)
		}
	}
}

// Policies, ceilings and registries that cannot be meant are refused with the field.
func TestPoliciesAndCeilingsAreChecked(t *testing.T) {
	for field, o := range map[string]proto.Message{
		"metadata.name":       &v1.Policy{Spec: &v1.PolicySpec{Rules: []*v1.PolicyRule{{Name: "r", Expression: "true", Message: "m"}}}},
		"metadata.namespace":  &v1.Policy{Metadata: &v1.Metadata{Name: "p", Namespace: "shop"}, Spec: &v1.PolicySpec{Rules: []*v1.PolicyRule{{Name: "r", Expression: "true", Message: "m"}}}},
		"spec.rules":          &v1.Policy{Metadata: &v1.Metadata{Name: "p"}},
		"spec.mode":           &v1.Policy{Metadata: &v1.Metadata{Name: "p"}, Spec: &v1.PolicySpec{Mode: "maybe"}},
		"spec.rules[0].about": &v1.Policy{Metadata: &v1.Metadata{Name: "p"}, Spec: &v1.PolicySpec{Rules: []*v1.PolicyRule{{Name: "r", Expression: "true", Message: "m", About: "x"}}}},
		"spec.maxPriority":    &v1.Namespace{Metadata: &v1.Metadata{Name: "shop"}, Spec: &v1.NamespaceSpec{MaxPriority: new(int32(1001))}},
		"spec.profile":        &v1.Namespace{Metadata: &v1.Metadata{Name: "shop"}, Spec: &v1.NamespaceSpec{Profile: "wild"}},
		"spec.defaultRequests.cpu": &v1.Namespace{
			Metadata: &v1.Metadata{Name: "shop"}, Spec: &v1.NamespaceSpec{DefaultRequests: &v1.ResourceAmounts{Cpu: "much"}},
		},
		"spec.cluster.security.privateRegistries[0]": &v1.Configuration{Spec: &v1.ConfigurationSpec{Cluster: &v1.ClusterSpec{
			Security: &v1.ClusterSecurity{PrivateRegistries: []string{"https://registry.lan"}},
		}}},
	} {
		broken, ok := errors.AsType[*Error](Validate(o))
		if !ok || !slices.ContainsFunc(broken.Violations, func(v Violation) bool { return v.Field == field }) {
			t.Errorf("%s: %v", field, Validate(o))
		}
	}
}
