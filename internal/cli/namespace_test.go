package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
)

// putNamespace stores a namespace; it uses 1500m CPU and 3 replicas.
func (c *cluster) putNamespace(n *cloudlessv1.Namespace) *cloudlessv1.Namespace {
	c.version++
	n = proto.CloneOf(n)
	n.Metadata.Uid, n.Metadata.Version = "uid-"+n.GetMetadata().GetName(), c.version
	n.Status = &cloudlessv1.NamespaceStatus{Cpu: "1500m", Memory: "3Gi", Disk: "0", Bandwidth: "0", Replicas: 3, Workloads: 2, Pending: 1, Storage: "5Gi"}
	if q := n.GetSpec().GetQuota(); q != nil && q.Replicas != nil && q.GetReplicas() < 3 {
		n.Status.Over = []string{"3 replicas of 2"}
	}
	c.namespaces[n.GetMetadata().GetName()] = n
	return n
}

func (c *cluster) GetNamespace(_ context.Context, r *cloudlessv1.GetNamespaceRequest) (*cloudlessv1.Namespace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.namespaces[r.GetName()]; n != nil {
		return n, nil
	}
	return nil, status.Errorf(codes.NotFound, "namespace %s does not exist", r.GetName())
}

func (c *cluster) ListNamespaces(context.Context, *cloudlessv1.ListNamespacesRequest) (*cloudlessv1.ListNamespacesResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := &cloudlessv1.ListNamespacesResponse{Items: []*cloudlessv1.Namespace{{
		Metadata: &cloudlessv1.Metadata{Name: "default"}, Status: &cloudlessv1.NamespaceStatus{Cpu: "0", Memory: "0", Disk: "0"},
	}}}
	for _, n := range c.namespaces {
		answer.Items = append(answer.Items, n)
	}
	return answer, nil
}

func (c *cluster) CreateNamespace(_ context.Context, r *cloudlessv1.CreateNamespaceRequest) (*cloudlessv1.Namespace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.putNamespace(r.GetNamespace()), nil
}

func (c *cluster) ApplyNamespace(_ context.Context, r *cloudlessv1.ApplyNamespaceRequest) (*cloudlessv1.ApplyNamespaceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moved != nil && c.moved() {
		return nil, status.Error(codes.Aborted, "somebody else was quicker")
	}
	return &cloudlessv1.ApplyNamespaceResponse{Namespace: c.putNamespace(r.GetNamespace()), Result: "updated"}, nil
}

func (c *cluster) DeleteNamespace(_ context.Context, r *cloudlessv1.DeleteNamespaceRequest) (*cloudlessv1.Namespace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.namespaces[r.GetName()]
	delete(c.namespaces, r.GetName())
	return n, nil
}

func TestNamespaces(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "namespace", "create", "shop", "--cpu", "4", "--gpu", "0").expect(t, 0, "namespace shop created\n", "")
	c.run(t.Context(), "", "ns", "ls").expect(t, 0, `NAME     WORKLOADS  REPLICAS  PENDING  CPU      MEMORY  DISK  GPU  AGE
default  0          0         0        0        0       0     0    -
shop     2          3         1        1500m/4  3Gi     0     0/0  -
`, "")
	c.run(t.Context(), "", "namespace", "get", "shop").expect(t, 0, `Name:       shop
Uid:        uid-shop
Workloads:  2
Pending:    1

RESOURCE   USED   QUOTA
CPU        1500m  4
memory     3Gi    unlimited
disk       0      unlimited
bandwidth  0      unlimited
GPU        0      0
replicas   3      unlimited
storage    5Gi    unlimited
`, "")

	if got := c.run(t.Context(), "", "describe", "namespace/shop"); got.code != 0 || !strings.Contains(got.stdout, "bandwidth  0      unlimited\n") {
		t.Errorf("described: %+v", got)
	}

	// Settings that are not given stay, even if others change them meanwhile.
	beaten := 1
	c.moved = func() bool {
		beaten--
		return beaten >= 0
	}
	c.run(t.Context(), "", "namespace", "set", "shop", "--memory", "8Gi", "--replicas", "2", "--gpu", "unlimited").
		expect(t, 0, "namespace shop updated\n", "namespace shop has more than its quota: 3 replicas of 2: nothing that runs is stopped, and new replicas wait\n")
	if q := c.namespaces["shop"].GetSpec().GetQuota(); q.GetCpu() != "4" || q.GetMemory() != "8Gi" || q.GetReplicas() != 2 || q.Gpu != nil {
		t.Errorf("the quota is %v", q)
	}
	c.run(t.Context(), "", "namespace", "set", "shop", "--unlimited", "--disk", "1Ti").expect(t, 0, "namespace shop updated\n", "")
	if q := c.namespaces["shop"].GetSpec().GetQuota(); !proto.Equal(q, &cloudlessv1.Quota{Disk: "1Ti"}) {
		t.Errorf("the quota is %v", q)
	}
	c.run(t.Context(), "", "namespace", "set", "lab", "--bandwidth", "1G").expect(t, 0, "namespace lab created\n", "")

	got := c.run(t.Context(), "", "namespace", "get", "shop", "-o", "json")
	var shown struct {
		Metadata struct{ Name string }
		Spec     struct{ Quota struct{ Disk string } }
	}
	if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil || shown.Spec.Quota.Disk != "1Ti" {
		t.Errorf("as JSON: %v\n%+v", err, got)
	}
	c.run(t.Context(), "", "namespace", "rm", "lab").expect(t, 0, "namespace lab removed\n", "")

	for want, args := range map[string][]string{
		"nothing is given to change":        {"set", "shop"},
		`--replicas "many" is not a number`: {"set", "shop", "--replicas", "many"},
		`--gpu "-1" is not a number`:        {"create", "lab", "--gpu", "-1"},
		"--cpu needs an amount":             {"set", "shop", "--cpu", ""},
		"NAME is missing":                   {"get"},
		`there is no command "lst" under`:   {"lst"},
		"namespace nothing does not exist":  {"get", "nothing"},
		"did you mean create?":              {"creat"},
	} {
		if got := c.run(t.Context(), "", append([]string{"namespace"}, args...)...); got.code == 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("%v: %+v, want something about %q", args, got, want)
		}
	}
}

// Namespaces and workloads of one file are one plan.
func TestApplyNamespaces(t *testing.T) {
	c := newCluster(t)
	const quota = "kind: Namespace\nmetadata: {name: shop}\nspec: {quota: {replicas: 5}}\n"
	got := c.run(t.Context(), quota+"---\n"+twoDocuments, "plan", "-f", "-")
	if got.code != exitChanges || !strings.Contains(got.stdout, "+ namespace shop would be created\n") || !strings.Contains(got.stdout, "Plan: 3 to create, 0 to update") {
		t.Errorf("planned: %+v", got)
	}
	c.run(t.Context(), quota, "apply", "-f", "-").expect(t, 0, "namespace shop created\n", "")
	c.run(t.Context(), quota, "apply", "-f", "-", "--prune", "app=shop").expect(t, 0, "namespace shop unchanged\n", "")
	if got := c.run(t.Context(), quota, "plan", "-f", "-"); got.code != 0 || !strings.Contains(got.stdout, "= namespace shop is unchanged\nNothing would change.\n") {
		t.Errorf("planned again: %+v", got)
	}

	var out strings.Builder
	shown := &cli{Env: &command.Env{Stdout: &out, Namespace: "shop"}}
	err := shown.showPlan(&cloudlessv1.Plan{
		Changes: []*cloudlessv1.PlanChange{{
			Kind: "Namespace", Name: "shop", Action: "update", Woken: 2, Over: []string{"3 CPU of 2"},
			Fields: []*cloudlessv1.FieldChange{{Path: "spec.quota.cpu", Before: "4", After: "2"}},
		}, {
			Kind: "Workload", Namespace: "shop", Name: "web", Action: "unchanged", Unplaced: 1, Quota: "the quota of namespace shop is used up: has 2 of at most 2 replicas",
			UnplacedReasons: []*cloudlessv1.NodeReason{{Node: "n1", Reason: "is offline"}},
		}},
		Fingerprint: "0123",
	})
	want := `~ namespace shop would be updated
    ~ spec.quota.cpu: 4 -> 2
    + 2 pending replicas get a node
    ! namespace shop has more than its quota: 3 CPU of 2: nothing that runs is stopped, and new replicas wait

= workload web is unchanged
    ! 1 replica has no place: the quota of namespace shop is used up: has 2 of at most 2 replicas
Plan: 0 to create, 1 to update, 0 to delete, 1 unchanged.
`
	if err != nil || out.String() != want {
		t.Errorf("%v, shown:\n%s\nwant:\n%s", err, out.String(), want)
	}
}

// The wait ends with the reason if the quota keeps replicas from running.
func TestApplyFailsWhenTheQuotaIsExhausted(t *testing.T) {
	c := newCluster(t)
	c.standing = func(w *cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{
			Phase: "pending", Revision: 1, Desired: phrase.Desired(w), Pending: phrase.Desired(w), Quota: "the quota of namespace default is used up: has 2 of at most 2 replicas",
		}
	}
	got := c.run(t.Context(), twoDocuments, "apply", "-f", "-")
	if got.code != 1 || !strings.Contains(got.stderr, "workload web has pending replicas") || !strings.Contains(got.stderr, "running: the quota of namespace default is used up: has 2 of at most 2 replicas") {
		t.Errorf("%+v", got)
	}
}
