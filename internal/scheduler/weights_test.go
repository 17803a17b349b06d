package scheduler_test

import (
	"strconv"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// A weight can be set at any level, even to 0. Unset weights come from the level below, and
// the sum is a thousand.
func TestUnsetWeightsComeFromTheLevelBelow(t *testing.T) {
	zero := new(0.0)
	nothing := &v1.ScoreWeights{Locality: zero, Reliability: zero, Cost: zero, Utilization: zero, Network: zero}
	for _, c := range []struct {
		what              string
		cluster, workload *v1.ScoreWeights
		want              scheduler.Weights
	}{
		{"nothing is said", nil, nil, scheduler.DefaultWeights},
		{"what says nothing", &v1.ScoreWeights{}, &v1.ScoreWeights{}, scheduler.DefaultWeights},
		{
			"the cluster says one", &v1.ScoreWeights{Cost: new(1.15)}, nil,
			scheduler.Weights{Locality: 125, Reliability: 150, Cost: 575, Utilization: 100, Network: 50},
		},
		{
			"the workload says one", nil, &v1.ScoreWeights{Cost: new(1.15)},
			scheduler.Weights{Locality: 125, Reliability: 150, Cost: 575, Utilization: 100, Network: 50},
		},
		{
			"each says one", &v1.ScoreWeights{Locality: new(0.75)}, &v1.ScoreWeights{Cost: new(0.65)},
			scheduler.Weights{Locality: 375, Reliability: 150, Cost: 325, Utilization: 100, Network: 50},
		},
		{
			"both say the same one", &v1.ScoreWeights{Cost: new(900.0)}, &v1.ScoreWeights{Cost: new(1.15)},
			scheduler.Weights{Locality: 125, Reliability: 150, Cost: 575, Utilization: 100, Network: 50},
		},
		{
			"none of one", &v1.ScoreWeights{Reliability: zero, Locality: zero}, &v1.ScoreWeights{Network: zero, Utilization: new(0.85)},
			scheduler.Weights{Cost: 150, Utilization: 850},
		},
		{
			"together they leave nothing", &v1.ScoreWeights{Locality: zero, Reliability: zero}, &v1.ScoreWeights{Cost: zero, Utilization: zero, Network: zero},
			scheduler.Weights{Cost: 334, Utilization: 444, Network: 222},
		},
		{"what was kept from before that was refused", nothing, nothing, scheduler.DefaultWeights},
	} {
		v := scheduler.NewView(scheduler.Options{Weights: scheduler.WeightsFromProto(c.cluster)})
		web := revision("web", 100, func(r *scheduler.Revision) { r.Preferences.Weights = scheduler.WeightsFromProto(c.workload) })
		if got := v.Explain(scheduler.Question{Revision: web}).Weights; got != c.want {
			t.Errorf("%s: they are %+v, want %+v", c.what, got, c.want)
		}
	}
}

// The documented default weights are the real ones.
func TestDefaultWeightsMatchTheDocs(t *testing.T) {
	for key, want := range map[string]int32{
		"locality": scheduler.DefaultWeights.Locality, "reliability": scheduler.DefaultWeights.Reliability, "cost": scheduler.DefaultWeights.Cost,
		"utilization": scheduler.DefaultWeights.Utilization, "network": scheduler.DefaultWeights.Network,
	} {
		shown, err := strconv.ParseFloat(spec.SettingDefault("weights."+key), 64)
		if err != nil || spec.Thousandths(shown) != want {
			t.Errorf("the weight of %s is shown as %v (%v) and is %d thousandths", key, shown, err, want)
		}
	}
}
