package spec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func placed(p *v1.Placement) *v1.Workload {
	return &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "hello:1", Placement: p}}
}

// A meaningless placement is refused with its field.
func TestPlacementIsChecked(t *testing.T) {
	require := func(operator string, values ...string) *v1.Placement {
		return &v1.Placement{Require: []*v1.LabelRule{{Key: "k", Operator: operator, Values: values}}}
	}
	for _, c := range []struct {
		placement *v1.Placement
		want      string
	}{
		{require("in", "a", "b"), ""},
		{require("exists"), ""},
		{require("version", ">=1.2, <2"), ""},
		{require("matches", "web-[0-9]+"), ""},
		{require("in"), "spec.placement.require[0].values: must have at least one value with operator in"},
		{require("notIn"), "must have at least one value with operator notIn"},
		{require("gt"), "must have one value with operator gt"},
		{&v1.Placement{Regions: []string{"eu", ""}}, "spec.placement.regions[1]: is empty: name a region, or leave the list out for all"},
		{&v1.Placement{Zones: []string{""}}, "spec.placement.zones[0]: is empty: name a zone"},
		{&v1.Placement{Tolerations: []*v1.Toleration{{Seconds: 5}, {Effect: "NoExecute", Seconds: 5}, {Effect: "NoSchedule"}}}, ""},
		{&v1.Placement{Tolerations: []*v1.Toleration{{Effect: "NoSchedule", Seconds: 5}}}, "spec.placement.tolerations[0].seconds: is not for effect NoSchedule"},
		{&v1.Placement{Tolerations: []*v1.Toleration{{Effect: "PreferNoSchedule", Seconds: 5}}}, "is not for effect PreferNoSchedule"},
		{require("exists", "a"), "must have no value with operator exists"},
		{require("gt", "many"), `"many" must be a whole number`},
		{require("version", "new"), "is not a range of versions"},
		{require("matches", "("), "must be a regular expression"},
		{require("like", "a"), "must be in, notIn, exists"},
		{&v1.Placement{Spread: []*v1.Spread{{Key: "zone"}, {}}}, "spec.placement.spread[1].key: zone is the key of spec.placement.spread[0] too"},
		{&v1.Placement{Spread: []*v1.Spread{{Key: "no key"}}}, "must be node, zone, region or the key of a label"},
		{&v1.Placement{Affinity: []*v1.Affinity{{Workload: "db"}, {Labels: "app=db"}}}, ""},
		{&v1.Placement{Affinity: []*v1.Affinity{{}}}, "must name either a workload or labels"},
		{&v1.Placement{Affinity: []*v1.Affinity{{Labels: "!app"}}}, "must ask for a label that is there"},
		{&v1.Placement{Weights: &v1.ScoreWeights{Cost: new(0.0)}}, ""},
		{&v1.Placement{Weights: &v1.ScoreWeights{Cost: new(-1.0)}}, "spec.placement.weights.cost: must be between 0 and 1000"},
		{
			&v1.Placement{Weights: &v1.ScoreWeights{Locality: new(0.0), Reliability: new(0.0), Cost: new(0.0), Utilization: new(0.0), Network: new(0.0)}},
			"spec.placement.weights: must not all be 0",
		},
		{&v1.Placement{Strategy: "scatter"}, "must be pack, best-fit or spread"},
	} {
		err := Validate(placed(c.placement))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%v: %v", c.placement, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v: %v, want %q", c.placement, err, c.want)
		}
	}
	thin := placed(nil)
	thin.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Bandwidth: "5x"}}
	if err := Validate(thin); err == nil || !strings.Contains(err.Error(), "spec.resources.requests.bandwidth: must be a number of bits per second such as 100M or 1.5G") {
		t.Errorf("a bandwidth of 5x: %v", err)
	}
	limited := placed(nil)
	limited.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Disk: "2Gi"}, Limits: &v1.ResourceAmounts{Disk: "1Gi"}}
	if err := Validate(limited); err == nil || !strings.Contains(err.Error(), "spec.resources.requests.disk: must be at most the limit: 2Gi is more than 1Gi") {
		t.Errorf("a request above the limit of disk: %v", err)
	}
	limited.Spec.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Disk: "4Ki"}}
	if err := Validate(limited); err == nil || !strings.Contains(err.Error(), "spec.resources.limits.disk: a disk limit of 4Ki is too small: give at least 1Mi") {
		t.Errorf("a tiny limit of disk: %v", err)
	}
}

// Setting the default is the same as setting nothing.
func TestPlacementIsNormalized(t *testing.T) {
	same := func(a, b *v1.WorkloadSpec) {
		t.Helper()
		if !Equal(a, b) {
			t.Errorf("%v and %v differ: %v", a, b, Diff(a, b))
		}
	}
	same(&v1.WorkloadSpec{Placement: &v1.Placement{Strategy: "pack", Weights: &v1.ScoreWeights{}}}, &v1.WorkloadSpec{})
	same(&v1.WorkloadSpec{Priority: proto.Int32(DefaultPriority)}, &v1.WorkloadSpec{})
	same(&v1.WorkloadSpec{Placement: &v1.Placement{Spread: []*v1.Spread{{MaxSkew: 1}}}}, &v1.WorkloadSpec{Placement: &v1.Placement{Spread: []*v1.Spread{{Key: "zone", MaxSkew: 1}}}})
	same(
		&v1.WorkloadSpec{Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Disk: "1024Mi", Bandwidth: "1000k"}, Gpu: &v1.Gpu{}}},
		&v1.WorkloadSpec{Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Disk: "1Gi", Bandwidth: "1M"}}},
	)
	if Equal(&v1.WorkloadSpec{Placement: &v1.Placement{Weights: &v1.ScoreWeights{Cost: new(0.0)}}}, &v1.WorkloadSpec{}) {
		t.Error("a weight of 0 is the default")
	}
	if Equal(&v1.WorkloadSpec{Priority: proto.Int32(0)}, &v1.WorkloadSpec{}) {
		t.Error("a priority of 0 is the default")
	}
}
