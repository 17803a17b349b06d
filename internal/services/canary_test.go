package services

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// canary is a deployment of api by steps that leads so many percent of the traffic to its revision.
func canary(step, weight int32) *v1.Deployment {
	d := deployment("api", "d", false)
	d.Spec.Strategy = spec.StrategyCanary
	d.Status = &v1.DeploymentStatus{Phase: spec.DeploymentRunning, Step: step, Weight: weight}
	return d
}

// newCanary is a world with a service whose workload has so many replicas of the last good revision and of the new one.
func newCanary(old, fresh int, of *v1.ServiceSpec) *world {
	w := newWorld(node("a"), service("api", of))
	api := workload("api", "x")
	api.Status = &v1.WorkloadStatus{DeploymentUid: "d"}
	w.put(api)
	for i := range old {
		r := replica("api", fmt.Sprintf("a-old-%03d", i), "a")
		r.Spec.RevisionUid = "old"
		w.put(r)
	}
	for i := range fresh {
		r := replica("api", fmt.Sprintf("b-new-%03d", i), "a")
		r.Spec.RevisionUid = "new"
		w.put(r)
	}
	return w
}

func TestCanaryGetsItsShareOfTheTraffic(t *testing.T) {
	w := newCanary(2, 1, nil)
	w.put(canary(1, 0))
	w.expect(t, "api", "a-old-000 ready 1000, a-old-001 ready 1000, b-new-000 draining 1000")
	w.put(canary(1, 5))
	w.expect(t, "api", "a-old-000 ready 1425, a-old-001 ready 1425, b-new-000 ready 150")
	w.put(canary(3, 50))
	w.expect(t, "api", "a-old-000 ready 750, a-old-001 ready 750, b-new-000 ready 1500")

	// While the rest is replaced, the new revision keeps at least the share of the last step.
	w.put(canary(4, 50))
	w.expect(t, "api", "a-old-000 ready 750, a-old-001 ready 750, b-new-000 ready 1500")
	for _, name := range []string{"b-new-001", "b-new-002"} {
		r := replica("api", name, "a")
		r.Spec.RevisionUid = "new"
		w.put(r)
	}
	w.expect(t, "api", "a-old-000 ready 1000, a-old-001 ready 1000, b-new-000 ready 1000, b-new-001 ready 1000, b-new-002 ready 1000")

	// A revision that was taken back gets nothing, unless nothing else is left.
	back := canary(2, 0)
	back.Status.Phase = spec.DeploymentRolledBack
	w.put(back)
	w.expect(t, "api", "a-old-000 ready 1000, a-old-001 ready 1000, b-new-000 draining 1000, b-new-001 draining 1000, b-new-002 draining 1000")
}

// All steps may have been skipped before the new revision got any traffic. Then it goes on like a rolling update.
func TestCanaryWithoutStepsLeftIsARollingUpdate(t *testing.T) {
	w := newCanary(1, 1, nil)
	w.put(canary(4, 0))
	w.expect(t, "api", "a-old-000 ready 1000, b-new-000 ready 1000")
}

// One set without ready replicas leaves all the traffic to the other.
func TestCanaryWithoutReadyReplicasGetsNothing(t *testing.T) {
	w := newCanary(1, 1, nil)
	w.put(canary(1, 5))
	broken := replica("api", "b-new-000", "a")
	broken.Spec.RevisionUid, broken.Status.Unready = "new", "It does not answer."
	w.put(broken)
	snap := w.store.Snapshot()
	usable := Usable(Endpoints(snap, snap.ServiceByName("default", "api")))
	if len(usable) != 1 || usable[0].GetMetadata().GetName() != "a-old-000" {
		t.Errorf("connections go to %v", usable)
	}
}

// A canary does not change what its workload gets beside other workloads of the service.
func TestCanaryDividesTheShareOfItsWorkload(t *testing.T) {
	w := newCanary(2, 1, &v1.ServiceSpec{Selector: map[string]string{"app": "x"}, Balancer: &v1.Balancer{Weights: map[string]int32{"api": 3, "web": 1}}})
	web := workload("web", "x")
	w.put(web, replica("web", "c-web", "a"), canary(2, 20))
	w.expect(t, "api", "a-old-000 ready 1200, a-old-001 ready 1200, b-new-000 ready 600, c-web ready 1000")
}

func TestCanaryEndpointsAreKnownToTesters(t *testing.T) {
	w := newCanary(1, 1, nil)
	known := func(d *v1.Deployment) (names []string) {
		w.put(d)
		snap := w.store.Snapshot()
		for _, e := range Endpoints(snap, snap.ServiceByName("default", "api")) {
			if Canary(snap, e) {
				names = append(names, e.GetMetadata().GetName())
			}
		}
		return names
	}
	ended, waits, rolling := canary(1, 5), canary(0, 0), canary(0, 0)
	ended.Status.Phase, waits.Status.Waiting, rolling.Spec.Strategy = spec.DeploymentSucceeded, true, spec.StrategyRolling
	for name, d := range map[string]*v1.Deployment{"ended": ended, "waiting": waits, "rolling": rolling} {
		if got := known(d); got != nil {
			t.Errorf("%s: %v are canaries", name, got)
		}
	}
	for _, d := range []*v1.Deployment{canary(1, 0), canary(1, 5), canary(4, 50)} {
		if got := known(d); len(got) != 1 || got[0] != "b-new-000" {
			t.Errorf("step %d: %v are canaries", d.GetStatus().GetStep(), got)
		}
	}
	if Canary(w.store.Snapshot(), &v1.Endpoint{Metadata: &v1.Metadata{Uid: "s-api/outside"}}) {
		t.Error("an endpoint without a replica is a canary")
	}
}

// The new revision gets the share of the step, however many replicas each set has and however many of them are ready.
func TestCanarySharesAreRight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		old, fresh := rapid.IntRange(1, 60).Draw(rt, "old"), rapid.IntRange(1, 60).Draw(rt, "new")
		share := rapid.Int32Range(1, 99).Draw(rt, "share")
		w := newCanary(old, fresh, nil)
		w.put(canary(1, share))
		for _, set := range []struct {
			name  string
			count int
		}{{"a-old", old}, {"b-new", fresh}} {
			for i := range rapid.IntRange(0, set.count-1).Draw(rt, set.name+" unready") {
				r := replica("api", fmt.Sprintf("%s-%03d", set.name, i), "a")
				r.Status.Unready = "It does not answer."
				r.Spec.RevisionUid = set.name[2:]
				w.put(r)
			}
		}
		if got := shareOf(w.store.Snapshot(), "new"); math.Abs(got-float64(share)) > 0.1 {
			rt.Fatalf("%d old and %d new: the new revision gets %.3f%%, want %d%%", old, fresh, got, share)
		}
	})
}

// shareOf is what a revision gets of the connections, in percent.
func shareOf(snap *state.Snapshot, revision string) float64 {
	all, of := 0.0, 0.0
	for _, e := range Usable(Endpoints(snap, snap.ServiceByName("default", "api"))) {
		all += float64(e.GetStatus().GetWeight())
		if snap.Replica(e.GetMetadata().GetUid()).GetSpec().GetRevisionUid() == revision {
			of += float64(e.GetStatus().GetWeight())
		}
	}
	return 100 * of / all
}
