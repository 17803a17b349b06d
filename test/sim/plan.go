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
		w.comparePlan(planned[0], uid)
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
	wanted.Restart.Policy = "always"
	old := w.workload(c)
	if old.GetSpec().GetKind() != "" || old.GetSpec().GetRestart().GetPolicy() != "always" || c.IntN(4) == 0 {
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
	default:
		w.buildUpdate(s, b, one, wanted)
	}
	b.Update(one, old.GetMetadata().GetVersion())
	return one.GetMetadata().GetUid()
}

// comparePlan compares the plan with the result.
func (w *World) comparePlan(planned *v1.PlanChange, uid string) {
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
	if !slices.Equal(shown, there) {
		w.fail("a plan comes true", "%s: shown on %v, there on %v", snap.Workload(uid).GetMetadata().GetName(), shown, there)
	}
}
