package cli

import (
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestSchedulingIsShown(t *testing.T) {
	c := newCluster(t)
	c.put(&cloudlessv1.Workload{
		Kind: "Workload", Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: "default"},
		Spec: &cloudlessv1.WorkloadSpec{
			Image: "hello:1", Priority: proto.Int32(0), MinAvailable: 2,
			Resources: &cloudlessv1.Resources{
				Requests: &cloudlessv1.ResourceAmounts{Cpu: "1", Disk: "5Gi", Bandwidth: "100M"},
				Gpu:      &cloudlessv1.Gpu{Count: 2, Model: "a100"},
			},
			Placement: &cloudlessv1.Placement{
				Labels: map[string]string{"disk": "ssd"},
				Require: []*cloudlessv1.LabelRule{
					{Key: "arch", Operator: "in", Values: []string{"amd64", "arm64"}},
					{Key: "old", Operator: "notExists"},
					{Key: "cores", Operator: "gt", Values: []string{"4"}},
				},
				Prefer: []*cloudlessv1.LabelPreference{
					{Rule: &cloudlessv1.LabelRule{Key: "tier", Operator: "notIn", Values: []string{"spot"}}, Weight: 5},
					{Rule: &cloudlessv1.LabelRule{Key: "kernel", Operator: "version", Values: []string{">=6.1"}}},
				},
				Tolerations: []*cloudlessv1.Toleration{
					{Key: "gpu", Value: "only", Effect: "NoExecute", Seconds: 90}, {Key: "spot"}, {Effect: "NoSchedule"}, {},
				},
				Regions: []string{"eu", "us"}, Zones: []string{"eu-1"}, NearRegion: "eu", NearZone: "eu-1",
				Spread: []*cloudlessv1.Spread{{Key: "region", MaxSkew: 1}, {}},
				Affinity: []*cloudlessv1.Affinity{
					{Workload: "cache"}, {Labels: "app=db", Key: "zone", Anti: true, Weight: 10},
				},
				Strategy: "best-fit",
				Weights:  &cloudlessv1.ScoreWeights{Cost: new(2.5), Network: new(1.0)},
			},
		},
	})
	want := `Requests:     CPU 1, disk 5Gi, bandwidth 100M
GPU:          2 a100
Priority:     0, 2 must stay when others need the room
Placement:    disk=ssd
Require:      arch in amd64, arm64; old does not exist; cores > 4
Prefer:       tier not in spot (weight 5); kernel version >=6.1
Regions:      eu, us
Zones:        eu-1
Near:         region eu, zone eu-1
Spread:       over region, at most 1 apart; over zone
Affinity:     with cache by node; away from those with app=db by zone (weight 10)
Tolerations:  gpu=only:NoExecute for 1m30s; spot; every NoSchedule; every taint
Strategy:     best-fit
Weights:      cost 2.5, network 1
`
	for _, line := range [][]string{{"workload", "get", "web"}, {"describe", "web"}} {
		if got := c.run(t.Context(), "", line...); got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%v: %+v\n%s\nwant\n%s", line, got, got.stdout, want)
		}
	}
}

func TestUnsetSchedulingIsNotShown(t *testing.T) {
	c := newCluster(t)
	c.put(&cloudlessv1.Workload{
		Kind: "Workload", Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: "default"},
		Spec: &cloudlessv1.WorkloadSpec{Image: "hello:1", Placement: &cloudlessv1.Placement{}},
	})
	got := c.run(t.Context(), "", "workload", "get", "web")
	if got.code != 0 || regexp.MustCompile(`(?m)^(GPU|Priority|Placement|Require|Prefer|Regions|Zones|Near|Spread|Affinity|Tolerations|Strategy|Weights):`).MatchString(got.stdout) {
		t.Errorf("%+v", got)
	}
	c.put(&cloudlessv1.Workload{
		Kind: "Workload", Metadata: &cloudlessv1.Metadata{Name: "db", Namespace: "default"},
		Spec: &cloudlessv1.WorkloadSpec{Image: "hello:1", MinAvailable: 1},
	})
	if got := c.run(t.Context(), "", "workload", "get", "db"); !strings.Contains(got.stdout, "100, 1 must stay when others need the room\n") {
		t.Errorf("the usual priority is not shown beside what must stay: %s", got.stdout)
	}
}
