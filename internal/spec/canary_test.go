package spec

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func canary(c *v1.Canary) *v1.WorkloadSpec {
	return updated(&v1.Update{Strategy: StrategyCanary, Canary: c})
}

func TestCanaryHasDefaults(t *testing.T) {
	for _, s := range []*v1.WorkloadSpec{
		canary(nil), canary(&v1.Canary{Analysis: &v1.CanaryAnalysis{}}),
		canary(&v1.Canary{
			Steps: []string{"5%", "25%", "50%"}, Bake: "120s",
			Analysis: &v1.CanaryAnalysis{MaxRestarts: proto.Int32(0), MinRequests: proto.Int32(50)},
		}),
	} {
		c := Normalized(s).GetUpdate().GetCanary()
		if c != nil {
			t.Errorf("the canonical form of a canary with defaults has %v", c)
		}
		if !slices.Equal(StepsOf(c), []int{5, 25, 50}) || BakeOf(c) != 2*time.Minute || AnalysisOf(c) != (Analysis{MinRequests: 50}) {
			t.Errorf("the defaults are %v, %s, %+v", StepsOf(c), BakeOf(c), AnalysisOf(c))
		}
	}
	c := Normalized(canary(&v1.Canary{Bake: "90s", Analysis: &v1.CanaryAnalysis{MaxErrorRate: "0.50%", MaxP99: "0500ms"}})).GetUpdate().GetCanary()
	if c.GetBake() != "1m30s" || c.GetAnalysis().GetMaxErrorRate() != "0.5%" || c.GetAnalysis().GetMaxP99() != "500ms" {
		t.Errorf("the canonical form is %v", c)
	}
	want := Analysis{JudgesErrors: true, MaxErrors: 50, JudgesP99: true, MaxP99: 500 * time.Millisecond, MinRequests: 50}
	if got := AnalysisOf(c); got != want {
		t.Errorf("the limits are %+v, want %+v", got, want)
	}
}

func TestCanaryIsChecked(t *testing.T) {
	for field, s := range map[string]*v1.WorkloadSpec{
		"spec.update.canary is only for strategy canary":             updated(&v1.Update{Canary: &v1.Canary{Bake: "1m"}}),
		"spec.update.canary.steps[1] must be more":                   canary(&v1.Canary{Steps: []string{"10%", "10%"}}),
		"spec.update.canary.steps[0] must be a percentage":           canary(&v1.Canary{Steps: []string{"100%"}}),
		"spec.update.canary.bake":                                    canary(&v1.Canary{Bake: "soon"}),
		"spec.update.canary.analysis.maxErrorRate must":              canary(&v1.Canary{Analysis: &v1.CanaryAnalysis{MaxErrorRate: "0.001%"}}),
		"spec.update.canary.analysis.maxP99 must":                    canary(&v1.Canary{Analysis: &v1.CanaryAnalysis{MaxP99: "0s"}}),
		"spec.update.canary.analysis.minRequests has no effect":      canary(&v1.Canary{Analysis: &v1.CanaryAnalysis{MinRequests: proto.Int32(9)}}),
		"spec.update.keepOld is only for":                            updated(&v1.Update{Strategy: StrategyCanary, KeepOld: "1m"}),
		"spec.update.strategy canary runs two sets":                  {Image: "hello:1", Restart: &v1.Restart{Policy: "on-failure"}, Update: &v1.Update{Strategy: StrategyCanary}},
		"spec.update.strategy must be rolling or recreate for kind":  kinded(KindDaemon, func(s *v1.WorkloadSpec) { s.Update = &v1.Update{Strategy: StrategyCanary} }).GetSpec(),
		"spec.update.strategy must be recreate for a singleton":      {Image: "hello:1", Singleton: true, Update: &v1.Update{Strategy: StrategyCanary}},
		"spec.update is not for kind job, which has no old replicas": kinded(KindJob, func(s *v1.WorkloadSpec) { s.Update = &v1.Update{Strategy: StrategyCanary} }).GetSpec(),
	} {
		err := Validate(&v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: s})
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), ": ", " "), field) {
			t.Errorf("%v: got %v, want an error with %q", s.GetUpdate(), err, field)
		}
	}
	good := canary(&v1.Canary{
		Steps: []string{"1%", "99%"}, Bake: "0s",
		Analysis: &v1.CanaryAnalysis{MaxErrorRate: "100%", MaxP99: "1ms", MaxRestarts: proto.Int32(3), MinRequests: proto.Int32(1)},
	})
	good.Update.MaxSurge, good.MinAvailable = "50%", 10
	if err := Validate(&v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: good}); err != nil {
		t.Error(err)
	}
}

// Work that ends by itself is not done twice, whatever a rollback brings back.
func TestRollbackToWorkThatEndsHasNoCanary(t *testing.T) {
	back := RolledBack(canary(nil), &v1.WorkloadSpec{Image: "hello:1", Restart: &v1.Restart{Policy: "on-failure"}})
	if back.GetUpdate() != nil {
		t.Errorf("it has the update %v", back.GetUpdate())
	}
}

func TestRatesAreReadAsTheyAreWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.IntRange(0, 10_000).Draw(t, "parts")
		if text := FormatRate(parts); parseRate(text) != parts || !rateRegexp().MatchString(text) {
			t.Fatalf("%d is written %s, and read as %d", parts, text, parseRate(text))
		}
	})
}
