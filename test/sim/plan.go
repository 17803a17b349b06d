package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// tryPlan plans a change as the API does, then applies it while nothing goes wrong, and
// checks that the plan came true.
func (w *World) tryPlan(c *rand.Rand) {
	t := w.leader
	snap := t.server.store.Snapshot()
	if !w.predictable(snap) {
		return
	}
	b := &state.Batch{}
	uid := w.anyChange(c, t.server, snap, b)
	if uid == "" {
		return
	}
	w.tidy = true
	defer func() { w.tidy = false }()
	now := w.wall(t.server)
	planned, pushed, err := replicas.Placement{}.Forecast(now, t.server.store.Fork(), b.Transaction(now), []string{uid})
	if err != nil {
		w.fail("a plan can be made", "%v", err)
		return
	}
	w.oracle.plans++
	if w.flaw == Lying {
		planned[0].Replicas = append(planned[0].Replicas, &v1.ReplicaStep{Action: "create", ToNode: "m01"})
	}
	w.note("a plan is carried out: %v", planned[0])
	t.propose("plan", b, snap, func(err error) {
		if err != nil {
			w.fail("a plan can be applied", "%v", err)
		}
	})
	w.run(w.now + 5*time.Minute)
	if w.failure == nil {
		w.comparePlan(snap, planned[0], uid)
		w.comparePreemptions(snap, pushed)
	}
}

// predictable reports whether nothing but the plan will happen: no work is about to end.
func (w *World) predictable(snap *state.Snapshot) bool {
	for n := range snap.Nodes("") {
		if n.GetStatus().GetState() == "offline" {
			return false
		}
	}
	for d := range snap.Deployments("", "") {
		if spec.DeploymentOpen(d) {
			return false
		}
	}
	for r := range snap.Replicas("", "") {
		one := snap.Workload(r.GetSpec().GetWorkloadUid())
		if spec.Live(r.GetStatus().GetPhase()) && one.GetSpec().GetRestart().GetPolicy() != "always" {
			return false
		}
	}
	return true
}

// anyChange adds a change of one workload to a batch and returns its uid.
func (w *World) anyChange(c *rand.Rand, s *server, snap *state.Snapshot, b *state.Batch) string {
	wanted := anySpec(c)
	wanted.Restart.Policy, wanted.Update, wanted.Release, wanted.Singleton = "always", nil, nil, false
	old := w.workload(c)
	waits := len(old.GetSpec().GetDependsOn()) > 0 // a plan assumes that what it depends on is ready
	if waits || old.GetSpec().GetKind() != "" || old.GetSpec().GetUpdate() != nil || old.GetSpec().GetRelease() != nil || old.GetSpec().GetSingleton() || old.GetSpec().GetRestart().GetPolicy() != "always" || c.IntN(4) == 0 {
		w.names++
		name := "planned" + string(rune('a'+w.names%26))
		if !w.buildCreate(s, snap, b, name, wanted) {
			return ""
		}
		for _, change := range b.Transaction(w.clock()).GetChanges() {
			if one := change.GetPut().GetWorkload(); one != nil {
				return one.GetMetadata().GetUid()
			}
		}
	}
	one := proto.CloneOf(old)
	switch c.IntN(4) {
	case 0:
		one.Metadata.DeleteTime = timestamppb.New(w.wall(s))
	case 1:
		one.Spec.Replicas = proto.Int32(int32(c.IntN(8)))
	case 2:
		w.revise(s, b, one)
		w.deploy(s, snap, b, old, one, spec.CauseRestart)
	default:
		w.buildUpdate(s, snap, b, one, wanted)
	}
	b.Update(one, old.GetMetadata().GetVersion())
	return one.GetMetadata().GetUid()
}

// comparePlan compares the plan with the result. Programs take no time in a plan. Where another workload
// waits for room that the change frees, or makes room for it, the time that they take decides which room
// there is for the changed workload. Then only the number of placed replicas is certain.
func (w *World) comparePlan(before *state.Snapshot, planned *v1.PlanChange, uid string) {
	snap := w.newest()
	var shown, there []string
	for _, step := range planned.GetReplicas() {
		if step.GetAction() != "stop" {
			shown = append(shown, step.GetToNode())
		}
	}
	for r := range snap.ReplicasOf(uid) {
		if wanted(r) && r.GetSpec().GetNode() != "" {
			there = append(there, r.GetSpec().GetNode())
		}
	}
	slices.Sort(shown)
	slices.Sort(there)
	if !slices.Equal(shown, there) && (len(shown) != len(there) || !w.othersMoved(before, uid)) {
		w.fail("a plan comes true", "%s: shown on %v, there on %v", snap.Workload(uid).GetMetadata().GetName(), shown, there)
	}
}

// othersMoved reports whether replicas of other workloads have got a node since, or were preempted.
func (w *World) othersMoved(before *state.Snapshot, uid string) bool {
	for r := range w.newest().Replicas("", "") {
		was := before.Replica(r.GetMetadata().GetUid())
		placed := was.GetSpec().GetNodeUid() == "" && r.GetSpec().GetNodeUid() != ""
		preempted := was.GetSpec().GetPreemptedFor() == "" && r.GetSpec().GetPreemptedFor() != ""
		if r.GetSpec().GetWorkloadUid() != uid && (placed || preempted) {
			return true
		}
	}
	return false
}
