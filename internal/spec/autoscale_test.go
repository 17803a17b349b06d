package spec

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func scaled(a *v1.Autoscale, change ...func(*v1.WorkloadSpec)) *v1.Workload {
	s := &v1.WorkloadSpec{Image: "a:1", Replicas: proto.Int32(3), Autoscale: a, Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "500m"}}}
	for _, f := range change {
		f(s)
	}
	return &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: s}
}

func TestDecidedNumberStaysWithinTheBounds(t *testing.T) {
	decided := func(w *v1.Workload, n int32) *v1.Workload {
		w.Status = &v1.WorkloadStatus{Scale: &v1.ScaleStatus{Replicas: n}}
		return w
	}
	two := func(s *v1.WorkloadSpec) { s.MinAvailable = 2 }
	for name, test := range map[string]struct {
		w    *v1.Workload
		want int32
	}{
		"not autoscaled":                       {scaled(nil), 3},
		"the start":                            {scaled(&v1.Autoscale{Max: 5}), 3},
		"a start above max":                    {scaled(&v1.Autoscale{Max: 2}), 2},
		"a start below min":                    {scaled(&v1.Autoscale{Min: proto.Int32(4), Max: 5}), 4},
		"decided":                              {decided(scaled(&v1.Autoscale{Max: 9}), 7), 7},
		"decided before max was lowered":       {decided(scaled(&v1.Autoscale{Max: 5}), 7), 5},
		"decided to be zero, which min avoids": {decided(scaled(&v1.Autoscale{Max: 5}), 0), 1},
		"asleep":                               {decided(scaled(&v1.Autoscale{Min: proto.Int32(0), Max: 5}), 0), 0},
		"minAvailable":                         {decided(scaled(&v1.Autoscale{Max: 5}, two), 1), 2},
		"without autoscaling any more":         {decided(scaled(nil), 7), 3},
	} {
		if got := Replicas(test.w); got != test.want {
			t.Errorf("%s: %d replicas, want %d", name, got, test.want)
		}
	}
}

func TestAutoscaleHasOneForm(t *testing.T) {
	short := Normalized(scaled(&v1.Autoscale{Max: 5, Cpu: "70%", DownWindow: "300s", Metric: &v1.AutoscaleMetric{Name: "q", Port: 90, Value: 2}}).GetSpec())
	if a := short.GetAutoscale(); a.GetMin() != 1 || a.GetUpWindow() != "0s" || a.GetDownWindow() != "5m" || a.GetIdle() != "" || a.GetMetric().GetPath() != "/metrics" {
		t.Errorf("the canonical form is %v", a)
	}
	sleeps := Normalized(scaled(&v1.Autoscale{Min: proto.Int32(0), Max: 5, Cpu: "70%"}).GetSpec())
	if got := ScalingOf(sleeps); got.Idle != 5*time.Minute || got.CPU != 0.7 || got.CPURequest != 0.5 || got.Least != 0 || got.Most != 5 {
		t.Errorf("in numbers it is %+v", got)
	}
	if got := ScalingOf(sleeps).String(); got != "from 0 to 5 replicas by cpu 70%, to 0 after 5m without a request" {
		t.Errorf("in words it is %q", got)
	}
	if !ReplacesNone(short, sleeps) || Equal(short, sleeps) {
		t.Error("other settings must be a change that replaces no replica")
	}
	if back := RolledBack(sleeps, scaled(nil).GetSpec()); back.GetAutoscale().GetMax() != 5 {
		t.Errorf("a rollback has %v", back.GetAutoscale())
	}
	if back := RolledBack(sleeps, scaled(nil, func(s *v1.WorkloadSpec) { s.Singleton, s.Replicas = true, nil }).GetSpec()); back.GetAutoscale() != nil {
		t.Errorf("a rollback to a singleton has %v", back.GetAutoscale())
	}
}

func TestAutoscaleThatCannotWorkIsRefused(t *testing.T) {
	for want, w := range map[string]*v1.Workload{
		"spec.autoscale.max: is missing: say how many":                       scaled(&v1.Autoscale{Cpu: "70%"}),
		"spec.autoscale.max: must be at least min: 2 is less than 3":         scaled(&v1.Autoscale{Min: proto.Int32(3), Max: 2, Cpu: "70%"}),
		"spec.autoscale: has no target":                                      scaled(&v1.Autoscale{Max: 2}),
		"spec.autoscale.cpu: must be a share":                                scaled(&v1.Autoscale{Max: 2, Cpu: "70"}),
		"spec.autoscale.cpu: is a share of the requested CPU, and none":      scaled(&v1.Autoscale{Max: 2, Cpu: "70%"}, func(s *v1.WorkloadSpec) { s.Resources = nil }),
		"spec.autoscale.memory: is a share of the requested memory":          scaled(&v1.Autoscale{Max: 2, Memory: "70%"}),
		"spec.autoscale: is only for services":                               scaled(&v1.Autoscale{Max: 2, Cpu: "70%"}, func(s *v1.WorkloadSpec) { s.Kind, s.Replicas = KindDaemon, nil }),
		"spec.autoscale: is not for a singleton":                             scaled(&v1.Autoscale{Max: 2, Cpu: "70%"}, func(s *v1.WorkloadSpec) { s.Singleton, s.Replicas = true, nil }),
		"spec.autoscale.min: must not be 0: minAvailable keeps 2 replicas":   scaled(&v1.Autoscale{Min: proto.Int32(0), Max: 4}, func(s *v1.WorkloadSpec) { s.MinAvailable = 2 }),
		"spec.minAvailable: must be at most autoscale.max: 4 is more than 2": scaled(&v1.Autoscale{Max: 2, Cpu: "70%"}, func(s *v1.WorkloadSpec) { s.MinAvailable = 4 }),
		"spec.autoscale: needs restart.policy always":                        scaled(&v1.Autoscale{Max: 2, Cpu: "70%"}, func(s *v1.WorkloadSpec) { s.Restart = &v1.Restart{Policy: "on-failure"} }),
		"spec.autoscale.idle: is only for min 0":                             scaled(&v1.Autoscale{Max: 2, Cpu: "70%", Idle: "1m"}),
		"spec.autoscale.idle: must be from 10s to 24h":                       scaled(&v1.Autoscale{Min: proto.Int32(0), Max: 2, Idle: "1s"}),
		"spec.autoscale.downWindow: must be at most 24h":                     scaled(&v1.Autoscale{Max: 2, Cpu: "70%", DownWindow: "48h"}),
		"spec.autoscale.metric.port: is missing":                             scaled(&v1.Autoscale{Max: 2, Metric: &v1.AutoscaleMetric{Name: "q", Value: 1}}),
		"spec.autoscale.metric.value: must be more than 0":                   scaled(&v1.Autoscale{Max: 2, Metric: &v1.AutoscaleMetric{Name: "q", Port: 1}}),
		"spec.autoscale.metric.name: must be the name of a metric":           scaled(&v1.Autoscale{Max: 2, Metric: &v1.AutoscaleMetric{Name: "q-1", Port: 1, Value: 1}}),
	} {
		if err := Validate(w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the answer is %v, want %q", err, want)
		}
	}
	for _, w := range []*v1.Workload{
		scaled(&v1.Autoscale{Max: 2, Cpu: "70%", Requests: 10}),
		scaled(&v1.Autoscale{Min: proto.Int32(0), Max: 2, Idle: "30s"}),
		scaled(&v1.Autoscale{Min: proto.Int32(2), Max: 9, Cpu: "70%"}, func(s *v1.WorkloadSpec) { s.MinAvailable, s.Replicas = 3, proto.Int32(1) }),
	} {
		if err := Validate(w); err != nil {
			t.Errorf("%v is refused: %v", w.GetSpec().GetAutoscale(), err)
		}
	}
}
