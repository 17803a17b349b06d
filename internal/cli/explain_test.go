package cli

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func (c *cluster) GetExplanation(_ context.Context, r *cloudlessv1.GetExplanationRequest) (*cloudlessv1.Explanation, error) {
	if r.GetName() == "logs" {
		return daemonExplanation(), nil
	}
	if r.GetName() != "web" {
		return nil, status.Errorf(codes.NotFound, "workload %s does not exist in namespace %s; did you mean web?", r.GetName(), r.GetNamespace())
	}
	return explanation(), nil
}

func (c *cluster) ExplainWorkload(_ context.Context, r *cloudlessv1.ExplainWorkloadRequest) (*cloudlessv1.Explanation, error) {
	return &cloudlessv1.Explanation{
		Name: r.GetWorkload().GetMetadata().GetName(), About: "a replica that has no node", Strategy: "pack",
		Summary: "0 of 1 replica would have a node; 1 has no place; the quota of namespace default is used up: has 3 of at most 3 replicas",
		Quota:   "the quota of namespace default is used up: has 3 of at most 3 replicas",
		Help:    []string{"a higher quota of namespace default: cloudless namespace set default --replicas 4"},
		// Only the quota prevents the placement.
		NodeCount: 1, TakingCount: 1, Nodes: []*cloudlessv1.NodeExplanation{{Node: "n1", Rank: 1, Score: &cloudlessv1.NodeScore{Total: 0.5}}},
	}, nil
}

// explanation has a bit of everything.
func explanation() *cloudlessv1.Explanation {
	return &cloudlessv1.Explanation{
		Namespace: "default", Name: "web", Revision: 3, Phase: "degraded", Summary: "2 of 3 replicas have a node; 1 has no place",
		About: "a replica that has no node", Strategy: "pack", Levels: []string{"zone", "node"},
		Weights:   &cloudlessv1.ScoreWeights{Locality: new(0.25), Reliability: new(0.3), Cost: new(0.15), Utilization: new(0.2), Network: new(0.1)},
		NodeCount: 60, TakingCount: 30, YieldingCount: 1,
		Nodes: []*cloudlessv1.NodeExplanation{
			{
				Node: "n1", Rank: 1, BeforeNext: "its preferences weigh 10, those of n2 0",
				Score: &cloudlessv1.NodeScore{Affinity: 10, Same: []int32{2}, SameNode: 1, Total: 0.7125, Locality: 1, Reliability: 0.9, Cost: 1, Utilization: 0.5, Network: 1},
			},
			{Node: "n2", Rank: 2, Score: &cloudlessv1.NodeScore{Same: []int32{0}, Total: 0.9, Locality: 1, Reliability: 1, Cost: 1, Utilization: 0.5, Network: 1}},
			{
				Node: "n3", Rank: 31, Refusals: []*cloudlessv1.Refusal{{Filter: "fit", Reason: "needs 1 CPU, 0 of 2 free"}},
				Displaces: []*cloudlessv1.Displaced{{Replica: "batch-1", Workload: "batch", Priority: 10}},
			},
			{Node: "n4", Refusals: []*cloudlessv1.Refusal{{Filter: "taints", Reason: "has the taint a:NoSchedule, which is not tolerated"}, {Filter: "fit", Reason: "needs 1 CPU, 0 of 2 free"}}},
		},
		Refused: []*cloudlessv1.RefusalGroup{
			{Filter: "taints", Count: 1, Node: "n4", Reason: "has the taint a:NoSchedule, which is not tolerated"},
			{Filter: "fit", Count: 29, Node: "n3", Reason: "needs 1 CPU, 0 of 2 free"},
		},
		Replicas: []*cloudlessv1.ReplicaExplanation{
			{Replicas: []string{"web-a", "web-b", "web-c"}, Count: 3, Node: "n1", Rank: 1, Reason: "n1 is the only node that would take it", Score: &cloudlessv1.NodeScore{Total: 0.5}, PlacedScore: &cloudlessv1.NodeScore{Total: 0.61}},
			{Replicas: []string{"web-d"}, Count: 1, Reason: "1 replica of web cannot be placed: n4: \x1b[31mred"},
		},
		ReplicasLeftOut: 7,
		Help:            []string{"2 nodes would fit after 300m CPU is freed; the largest free is 200m on n7"},
	}
}

func TestExplain(t *testing.T) {
	c := newCluster(t)
	got := c.run(t.Context(), "", "explain", "web")
	got.expect(t, 0, `workload web is degraded: 2 of 3 replicas have a node; 1 has no place

30 of 60 nodes would take a replica that has no node, by strategy pack, and 1 more if others were pushed out:
RANK  NODE  PREFERENCES  SAME ZONE  SAME NODE  SCORE  LOCALITY ×0.25  RELIABILITY ×0.3  COST ×0.15  UTILIZATION ×0.2  NETWORK ×0.1  BEFORE THE NEXT BECAUSE
1     n1    10           2          1          0.713  1.000           0.900             1.000       0.500             1.000         its preferences weigh 10, those of n2 0
2     n2    0            0          0          0.900  1.000           1.000             1.000       0.500             1.000         -
31    n3    -            -          -          -      -               -                 -           -                 -             batch-1 of priority 10 would have to go first
and 28 more: see them with --all

29 of 60 nodes refuse a replica that has no node:
NODE  FILTER  REASON
n4    taints  has the taint a:NoSchedule, which is not tolerated
      fit     needs 1 CPU, 0 of 2 free
and 28 more by fit, as n3: needs 1 CPU, 0 of 2 free

Why replicas are where they are:
REPLICAS                 NODE  PLACED WITH  SCORE NOW  WHY
web-a, web-b and 1 more  n1    0.610        0.500      n1 is the only node that would take it
web-d                    -     -            -          1 replica of web cannot be placed: n4:  [31mred
and on 7 more nodes: see them with --all or --node NAME

What would help:
- 2 nodes would fit after 300m CPU is freed; the largest free is 200m on n7
`, "")
	c.run(t.Context(), twoDocuments, "explain", "-f", "-").expect(t, 0, `workload web is not applied yet: 0 of 1 replica would have a node; 1 has no place; the quota of namespace default is used up: has 3 of at most 3 replicas

1 of 1 node would take a replica that has no node if the quota had room for it, by strategy pack:
RANK  NODE  SCORE  LOCALITY ×0  RELIABILITY ×0  COST ×0  UTILIZATION ×0  NETWORK ×0  BEFORE THE NEXT BECAUSE
1     n1    0.500  0.000        0.000           0.000    0.000           0.000       -

What would help:
- a higher quota of namespace default: cloudless namespace set default --replicas 4

workload db is not applied yet: 0 of 1 replica would have a node; 1 has no place; the quota of namespace default is used up: has 3 of at most 3 replicas

1 of 1 node would take a replica that has no node if the quota had room for it, by strategy pack:
RANK  NODE  SCORE  LOCALITY ×0  RELIABILITY ×0  COST ×0  UTILIZATION ×0  NETWORK ×0  BEFORE THE NEXT BECAUSE
1     n1    0.500  0.000        0.000           0.000    0.000           0.000       -

What would help:
- a higher quota of namespace default: cloudless namespace set default --replicas 4
`, "")
	if got := c.run(t.Context(), "", "explain", "web", "-o", "json"); got.code != 0 || !strings.Contains(got.stdout, `"beforeNext": "its preferences weigh 10`) {
		t.Errorf("as JSON: %+v", got)
	}
	if got := c.run(t.Context(), twoDocuments, "explain", "-f", "-", "-o", "yaml"); got.code != 0 || !strings.HasPrefix(got.stdout, "items:\n- ") {
		t.Errorf("as YAML: %+v", got)
	}
	for _, mistake := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"explain", "wep"}, 1, "did you mean web?"},
		{[]string{"explain"}, 2, "WORKLOAD is missing"},
		{[]string{"explain", "web", "db"}, 2, `"db" is too much`},
		{[]string{"explain", "web", "-f", "x.yaml"}, 2, "not both"},
		{[]string{"explain", "-f", "nowhere.yaml"}, 1, "nowhere.yaml"},
		{[]string{"why", "web"}, 2, "did you mean cloudless explain?"},
	} {
		if got := c.run(t.Context(), "", mistake.args...); got.code != mistake.code || !strings.Contains(got.stderr, mistake.says) {
			t.Errorf("%v: %+v", mistake.args, got)
		}
	}
}

// daemonExplanation explains a daemon that runs on one of two suitable nodes.
func daemonExplanation() *cloudlessv1.Explanation {
	full, label := &cloudlessv1.Refusal{Filter: "fit", Reason: "needs 2 CPU, 1 of 4 free"}, &cloudlessv1.Refusal{Filter: "labels", Reason: "label disk=ssd is missing"}
	return &cloudlessv1.Explanation{
		Name: "logs", Phase: "degraded", Summary: "1 of 2 replicas has a node; 1 has no place", About: "one of its own",
		EveryNode: true, NodeCount: 4, SuitingCount: 2, TakingCount: 1,
		Nodes: []*cloudlessv1.NodeExplanation{
			{Node: "n1", Rank: 1, Suits: true},
			{Node: "n2", Suits: true, Refusals: []*cloudlessv1.Refusal{full}},
			{Node: "n3", Refusals: []*cloudlessv1.Refusal{label, full}},
		},
		Refused: []*cloudlessv1.RefusalGroup{{Filter: "fit", Count: 1}, {Filter: "labels", Count: 2, Node: "n3", Reason: label.Reason}},
		Replicas: []*cloudlessv1.ReplicaExplanation{
			{Replicas: []string{"logs-a"}, Count: 1, Node: "n1", Reason: "it is a daemon, and n1 suits it"},
			{Replicas: []string{"logs-b"}, Count: 1, Reason: "1 replica of logs cannot be placed: n2: needs 2 CPU, 1 of 4 free"},
		},
		Help: []string{"1 node would fit after 1 CPU is freed; the largest free is 1 on n2"},
	}
}

// The nodes of a daemon have no ranks, and the advice is shown for a single node too.
func TestExplainADaemon(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "explain", "logs").expect(t, 0, `workload logs is degraded: 1 of 2 replicas has a node; 1 has no place

One on every node that suits: 2 of 4 nodes do

1 of 4 nodes suits and cannot take one:
NODE  FILTER  REASON
n2    fit     needs 2 CPU, 1 of 4 free

2 of 4 nodes do not suit:
NODE  FILTER  REASON
n3    labels  label disk=ssd is missing
      fit     needs 2 CPU, 1 of 4 free
and 1 more by labels, as n3: label disk=ssd is missing

Why replicas are where they are:
REPLICAS  NODE  PLACED WITH  SCORE NOW  WHY
logs-a    n1    -            -          it is a daemon, and n1 suits it
logs-b    -     -            -          1 replica of logs cannot be placed: n2: needs 2 CPU, 1 of 4 free

What would help:
- 1 node would fit after 1 CPU is freed; the largest free is 1 on n2
`, "")
	if got := c.run(t.Context(), "", "explain", "logs", "--node", "n2"); !strings.Contains(got.stdout, "What would help:") {
		t.Errorf("of one node: %+v", got)
	}
}
