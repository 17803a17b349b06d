package wait

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func TestDone(t *testing.T) {
	asked := &cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Uid: "u", Version: 5}}
	three := int32(3)
	now := func(version uint64, s *cloudlessv1.WorkloadStatus) *cloudlessv1.Workload {
		return &cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Uid: "u", Version: version}, Spec: &cloudlessv1.WorkloadSpec{Replicas: &three}, Status: s}
	}
	for name, test := range map[string]struct {
		now  *cloudlessv1.Workload
		want bool
		fail bool
	}{
		"all run":           {now(5, &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 3, Running: 3}), true, false},
		"an older version":  {now(4, &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 3, Running: 3}), false, false},
		"an older number":   {now(5, &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 1, Running: 1}), false, false},
		"an older revision": {now(5, &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 3, Running: 3, Outdated: 1}), false, false},
		"one is missing":    {now(5, &cloudlessv1.WorkloadStatus{Phase: "degraded", Desired: 3, Running: 2}), false, false},
		"done":              {now(6, &cloudlessv1.WorkloadStatus{Phase: "completed", Desired: 3}), true, false},
		"failed":            {now(6, &cloudlessv1.WorkloadStatus{Phase: "failed", Desired: 3}), false, false}, // its replicas have the reason
		"being removed":     {now(6, &cloudlessv1.WorkloadStatus{Phase: "deleting"}), false, true},
		"removed":           {nil, false, true},
	} {
		a := &tracked{action: spec.ActionUpdate, asked: asked, now: test.now}
		got, err := a.done()
		if got != test.want || (err != nil) != test.fail {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// A node may be offline for a moment only.
func TestReplicasOnAnOfflineNodeAreAwaited(t *testing.T) {
	s := newTracker(&tracked{action: spec.ActionCreate, asked: &cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "web"}}})
	a := s.workloads[0]
	for _, step := range []struct {
		at     time.Duration
		phase  string
		moving bool
	}{
		{0, "running", false},
		{10 * time.Minute, "unknown", true},
		{10*time.Minute + 20*time.Second, "unknown", true},
		{10*time.Minute + 40*time.Second, "unknown", false},
		{11 * time.Minute, "running", false},
		{12 * time.Minute, "unknown", true},
	} {
		a.updateReplica(webReplica(step.phase), false, step.at)
		if got := a.moving(step.at); got != step.moving {
			t.Errorf("after %s, %s: moving is %v", step.at, step.phase, got)
		}
	}
}

func TestTreeFitsTheScreen(t *testing.T) {
	applied := &cloudlessv1.ApplyPlanResponse{
		Plan: &cloudlessv1.Plan{Changes: []*cloudlessv1.PlanChange{
			{Kind: "Workload", Namespace: "default", Name: "web", Action: "create"}, {Kind: "Workload", Namespace: "default", Name: "old", Action: "delete"},
		}},
		Objects: []*cloudlessv1.Manifest{spec.ManifestOf(&cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Namespace: "default", Name: "web", Uid: "w"}})},
	}
	s := trackPlan(applied)
	web := proto.CloneOf(applied.GetObjects()[0].GetWorkload())
	web.Status = &cloudlessv1.WorkloadStatus{Desired: 9, Running: 8, RevisionUid: "r1"}
	s.update("default", client.Update{Workload: web})
	s.update("default", client.Update{Workload: &cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "old", DeleteTime: timestamppb.Now()}}})
	for i := range 9 {
		r := webReplica("running")
		r.Metadata.Uid, r.Metadata.Name = fmt.Sprint(i), fmt.Sprint("web-", i)
		if i == 7 {
			r.Status.Phase, r.Spec.Node = "pending", ""
			r.Status.Reason = "needs more CPU than any node has free at this time"
		}
		s.update("default", client.Update{Replica: r})
	}
	got := (&view{tracker: s, style: terminal.Style{Unicode: true}}).tree(40, 12)
	want := []string{
		"web: 8 of 9 running",
		"├─ web-7  pending    -    needs more C…",
		"├─ web-0  running    box",
		"├─ web-1  running    box",
		"└─ and 6 more",
		"old: being deleted",
	}
	if !slices.Equal(got, want) {
		t.Errorf("drawn\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range (&view{tracker: s}).tree(10, 3) {
		if len([]rune(line)) >= 10 {
			t.Errorf("%q is too wide", line)
		}
	}
}

// The first restart is immediate: the watch may not show the end before it.
func TestUnseenRestartCountsAsAFailure(t *testing.T) {
	a := &tracked{
		action: spec.ActionCreate, now: &cloudlessv1.Workload{}, replicas: map[string]*cloudlessv1.Replica{},
		failures: map[string]int{}, since: map[string]time.Duration{},
	}
	running := func(restarts int32) *cloudlessv1.Replica {
		return &cloudlessv1.Replica{
			Metadata: &cloudlessv1.Metadata{Uid: "r"}, Status: &cloudlessv1.ReplicaStatus{Phase: "running", Restarts: restarts},
		}
	}
	a.updateReplica(running(4), false, 0)
	if !a.steady(steadyFor) {
		t.Error("restarts of long ago count")
	}
	a.updateReplica(running(5), false, steadyFor)
	if a.steady(2 * steadyFor) {
		t.Error("a program that has just ended counts as up")
	}
	if !a.steady(6 * steadyFor) {
		t.Error("a program that runs after a restart never counts as up")
	}
}

func TestTrackerDecides(t *testing.T) {
	applied := &cloudlessv1.ApplyPlanResponse{
		Plan: &cloudlessv1.Plan{Changes: []*cloudlessv1.PlanChange{
			{Kind: "Workload", Namespace: "default", Name: "web", Action: "update"}, {Kind: "Workload", Namespace: "default", Name: "old", Action: "delete"},
		}},
		Objects: []*cloudlessv1.Manifest{spec.ManifestOf(&cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Namespace: "default", Name: "web", Uid: "w", Version: 5}})},
	}
	web := func(version uint64, st *cloudlessv1.WorkloadStatus) client.Update {
		st.RevisionUid = "r1"
		return client.Update{Workload: &cloudlessv1.Workload{
			Metadata: &cloudlessv1.Metadata{Namespace: "default", Name: "web", Uid: "w", Version: version},
			Spec:     &cloudlessv1.WorkloadSpec{Replicas: proto.Int32(1)}, Status: st,
		}}
	}
	old := &cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Namespace: "default", Name: "old", DeleteTime: timestamppb.Now()}}
	running := &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 1, Running: 1}
	s := trackPlan(applied)
	steps := []struct {
		update client.Update
		want   string
	}{
		{client.Update{Reset: true}, "wait"},
		{web(4, running), "wait"},
		{client.Update{Workload: old}, "wait"},
		{client.Update{Synced: true}, "stuck"}, // an old version, and the deletion has not begun
		{web(5, &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 1, Running: 1, Outdated: 1}), "stuck"},
		{client.Update{Replica: webReplica("placed")}, "wait"},
		{client.Update{Replica: webReplica("running")}, "stuck"},
		{web(5, running), "stuck"},
		{client.Update{Workload: old, Removed: true}, "wait"}, // it may end at once
		{client.Update{}, "done"},
		{client.Update{Reset: true}, "wait"},
		{client.Update{Synced: true}, "error"}, // web does not exist any more
		{web(5, &cloudlessv1.WorkloadStatus{Phase: "completed"}), "done"},
		{client.Update{Replica: webReplica("backoff", func(r *cloudlessv1.Replica) { r.Status.Restarts = 1 })}, "wait"},
		{client.Update{Replica: webReplica("running")}, "wait"},
		{client.Update{}, "wait"}, // a replica that has ended before must run for longer
		{client.Update{Replica: webReplica("backoff", func(r *cloudlessv1.Replica) { r.Status.Restarts = 2 })}, "broken"},
	}
	for i, step := range steps {
		if step.update == (client.Update{}) {
			s.watched += steadyFor
		}
		s.update("default", step.update)
		j := s.judge()
		got := "wait"
		switch {
		case j.err != nil:
			got = "error"
		case j.broken != nil:
			got = "broken"
		case j.done:
			got = "done"
		case len(j.stuck) > 0:
			got = "stuck"
		}
		if got != step.want {
			t.Errorf("after step %d (%v): %s, want %s", i, step.update, got, step.want)
		}
	}
}

// webReplica is a replica of web in some phase.
func webReplica(phase string, change ...func(*cloudlessv1.Replica)) *cloudlessv1.Replica {
	r := &cloudlessv1.Replica{
		Metadata: &cloudlessv1.Metadata{Name: "web-1", Namespace: "default", Uid: "u1"},
		Spec:     &cloudlessv1.ReplicaSpec{Workload: "web", Node: "box", RevisionUid: "r1"},
		Status:   &cloudlessv1.ReplicaStatus{Phase: phase},
	}
	for _, f := range change {
		f(r)
	}
	return r
}
