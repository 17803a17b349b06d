package spec

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func updated(u *v1.Update) *v1.WorkloadSpec {
	return &v1.WorkloadSpec{Image: "hello:1", Replicas: proto.Int32(10), Update: u}
}

func TestUpdateHasDefaults(t *testing.T) {
	for _, s := range []*v1.WorkloadSpec{
		updated(nil),
		updated(&v1.Update{}),
		Normalized(updated(&v1.Update{Strategy: "rolling", MaxSurge: "25%", ProgressDeadline: "300s", KeepOld: "5m"})),
	} {
		if got := Normalized(s).GetUpdate(); got != nil {
			t.Errorf("the canonical form of an update with defaults has %v", got)
		}
		if StrategyOf(s) != StrategyRolling || SurgeOf(s, 10) != 3 || MinReadyOf(s) != 3*time.Second ||
			ProgressDeadlineOf(s) != 5*time.Minute || KeepOldOf(s) != 5*time.Minute {
			t.Errorf("the defaults of %v are %s, %d, %s, %s, %s", s.GetUpdate(), StrategyOf(s), SurgeOf(s, 10), MinReadyOf(s), ProgressDeadlineOf(s), KeepOldOf(s))
		}
	}
}

func TestSurgeIsRoundedUpAndAtLeastOne(t *testing.T) {
	for _, test := range []struct {
		surge   string
		desired int
		want    int
	}{
		{"", 0, 1}, {"", 1, 1}, {"", 4, 1}, {"", 5, 2}, {"100%", 7, 7}, {"1%", 100, 1}, {"150%", 10, 15}, {"3", 1, 3}, {"3", 100, 3},
	} {
		if got := SurgeOf(updated(&v1.Update{MaxSurge: test.surge}), test.desired); got != test.want {
			t.Errorf("a surge of %q of %d replicas is %d, want %d", test.surge, test.desired, got, test.want)
		}
	}
}

func TestLostAfterReplacesNothing(t *testing.T) {
	before, after := updated(nil), updated(nil)
	after.LostAfter = "60m"
	if got := Normalized(after).GetLostAfter(); got != "1h" {
		t.Errorf("its canonical form is %q", got)
	}
	if !ReplacesNone(before, after) || Equal(before, after) {
		t.Error("another lostAfter must be a change that replaces no replica")
	}
	if back := RolledBack(after, before); back.GetLostAfter() != "60m" {
		t.Errorf("a rollback restores lostAfter to %q", back.GetLostAfter())
	}
	before.LostAfter = "0s"
	if !Equal(before, updated(nil)) {
		t.Error("no patience is the default")
	}
}

func TestDaemonsAndNonsenseHaveNoLostAfter(t *testing.T) {
	for _, test := range []struct{ kind, lostAfter, want string }{
		{"daemon", "1h", "spec.lostAfter: is not for a daemon"}, {"service", "soon", "spec.lostAfter"}, {"service", "1h", ""}, {"job", "1h", ""},
	} {
		w := &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "hello:1", Kind: test.kind, LostAfter: test.lostAfter}}
		err := Validate(w)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("lostAfter %s of a %s: %v", test.lostAfter, test.kind, err)
		}
	}
}

func TestUpdateReplacesNothing(t *testing.T) {
	before, after := updated(nil), updated(&v1.Update{Strategy: "recreate", MinReady: "10s"})
	if !ReplacesNone(before, after) || Equal(before, after) {
		t.Error("another update strategy must be a change that replaces no replica")
	}
	if back := RolledBack(after, before); back.GetUpdate().GetStrategy() != "recreate" {
		t.Errorf("a rollback brings back the update %v", back.GetUpdate())
	}
}

func TestUpdateIsChecked(t *testing.T) {
	for field, s := range map[string]*v1.WorkloadSpec{
		"spec.update.strategy must":                        updated(&v1.Update{Strategy: "shadow"}),
		"spec.update.maxSurge must be a number":            updated(&v1.Update{MaxSurge: "0"}),
		"spec.update.strategy recreate stops all replicas": {Image: "hello:1", Replicas: proto.Int32(3), MinAvailable: 1, Update: &v1.Update{Strategy: "recreate"}},
		"spec.update.strategy blue-green runs two sets": {
			Image: "hello:1", Restart: &v1.Restart{Policy: "on-failure"}, Update: &v1.Update{Strategy: "blue-green"},
		},
		"spec.update.maxSurge is only for":                 updated(&v1.Update{Strategy: "recreate", MaxSurge: "2"}),
		"spec.update.keepOld is only for":                  updated(&v1.Update{KeepOld: "1m"}),
		"spec.update.manualSwitch is only":                 updated(&v1.Update{ManualSwitch: true}),
		"spec.update.minReady must":                        updated(&v1.Update{MinReady: "soon"}),
		"spec.update.progressDeadline must be more":        updated(&v1.Update{ProgressDeadline: "0s"}),
		"spec.update.progressDeadline must be longer":      updated(&v1.Update{MinReady: "10m"}),
		"spec.update is not for kind job":                  kinded(KindJob, func(s *v1.WorkloadSpec) { s.Update = &v1.Update{Strategy: "recreate"} }).GetSpec(),
		"spec.update.strategy must be rolling or recreate": kinded(KindDaemon, func(s *v1.WorkloadSpec) { s.Update = &v1.Update{Strategy: "blue-green"} }).GetSpec(),
	} {
		err := Validate(&v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: s})
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), ": ", " "), field) {
			t.Errorf("%v: got %v, want an error with %q", s.GetUpdate(), err, field)
		}
	}
	for _, u := range []*v1.Update{
		{Strategy: "blue-green", KeepOld: "0s", ManualSwitch: true, MinReady: "0s"},
		{MaxSurge: "2", ProgressDeadline: "30s"},
	} {
		if err := Validate(&v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: updated(u)}); err != nil {
			t.Errorf("%v: %v", u, err)
		}
	}
}

func releasing(name string, r *v1.Release) *v1.Workload {
	return &v1.Workload{Metadata: &v1.Metadata{Name: name}, Spec: &v1.WorkloadSpec{Image: "hello:1", Release: r}}
}

// A release command has a timeout, and another command is another revision.
func TestReleaseCommandIsPartOfARevision(t *testing.T) {
	with := Normalized(releasing("web", &v1.Release{Command: []string{"/migrate"}}).GetSpec())
	if got := with.GetRelease().GetTimeout(); got != "10m" {
		t.Errorf("the timeout is %q", got)
	}
	if ReplacesNone(with, releasing("web", &v1.Release{Command: []string{"/other"}}).GetSpec()) {
		t.Error("another release command makes no revision")
	}
}

func TestDependenciesReplaceNothing(t *testing.T) {
	before, after := updated(nil), updated(nil)
	after.DependsOn = map[string]string{"db": "ready"}
	if !ReplacesNone(before, after) || Equal(before, after) {
		t.Error("other dependencies must be a change that replaces no replica")
	}
	if back := RolledBack(after, before); back.GetDependsOn()["db"] != "ready" {
		t.Errorf("a rollback brings back the dependencies %v", back.GetDependsOn())
	}
}

func TestDependenciesAreChecked(t *testing.T) {
	for want, w := range map[string]*v1.Workload{
		"names the workload itself": {Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "a:1", DependsOn: map[string]string{"web": "ready"}}},
		"spec.dependsOn[\"db\"]":    {Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "a:1", DependsOn: map[string]string{"db": "healthy"}}},
		"is not for kind cron": kinded(KindCron, func(s *v1.WorkloadSpec) {
			s.Cron, s.DependsOn = &v1.Cron{Schedule: "@daily"}, map[string]string{"db": "ready"}
		}),
	} {
		if err := Validate(w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
}

func TestReleaseCommandIsChecked(t *testing.T) {
	migrate := []string{"/migrate"}
	for want, w := range map[string]*v1.Workload{
		"spec.release.command is missing":                  releasing("web", &v1.Release{}),
		"spec.release.timeout must be more than 0":         releasing("web", &v1.Release{Command: migrate, Timeout: "0s"}),
		"spec.release.timeout must":                        releasing("web", &v1.Release{Command: migrate, Timeout: "soon"}),
		"metadata.name must have at most 48 characters":    releasing(strings.Repeat("a", 49), &v1.Release{Command: migrate}),
		"spec.release is not for kind job, which has no d": kinded(KindJob, func(s *v1.WorkloadSpec) { s.Release = &v1.Release{Command: migrate} }),
	} {
		if err := Validate(w); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), ": ", " "), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
	if err := Validate(releasing(strings.Repeat("a", 48), &v1.Release{Command: migrate, Timeout: "1h"})); err != nil {
		t.Errorf("a release command is refused: %v", err)
	}
}
