package replicas

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Placement answers the questions of the server: what is, from package placement, and what would become of a change.
type Placement struct{ placement.Queries }

// Forecast applies tx to a fork and simulates the loop on it until nothing is left to do.
// It assumes that every ready node acts at once and nothing else happens. It returns the
// replica steps for each of the workloads, in their order; the other fields of the changes
// are empty. It also returns all preempted replicas, of any workload. The fork ends in the
// final state.
//
// The loop's own engine decides, starting with what the loop would find due, so that
// applying the changes leads to the same placements. Only the size of the state bounds the
// forecast: the same fork gives the same forecast.
func (Placement) Forecast(now time.Time, fork *state.Fork, tx *statev1.Transaction, workloads []string) ([]*v1.PlanChange, []*v1.Preemption, error) {
	before := fork.Snapshot()
	f := newForecast(now, fork)
	for _, uid := range workloads {
		for r := range before.ReplicasOf(uid) {
			f.acting[r.GetMetadata().GetUid()] = true // it may be in transit
		}
	}
	for r := range before.Replicas("", "") {
		if r.GetSpec().GetDesired() == spec.DesiredStopped && spec.Live(r.GetStatus().GetPhase()) {
			f.acting[r.GetMetadata().GetUid()] = true // its room is about to be free
		}
	}
	if err := f.play(tx); err != nil {
		return nil, nil, fmt.Errorf("forecast: %w", err)
	}
	planned := make([]*v1.PlanChange, len(workloads))
	for i, uid := range workloads {
		planned[i] = f.outcome(before, uid)
	}
	return planned, f.preemptions(before), nil
}

// forecast is one forecast in progress.
type forecast struct {
	now  time.Time
	fork *state.Fork
	// engine is the loop's engine, following the fork.
	engine Engine
	// acting holds the replicas that a node may have to act on.
	acting map[string]bool
	uids   int
	// looks is how many more replicas the forecast may examine; cutShort is whether that
	// was too few.
	looks    int
	cutShort bool
	// open is how many more steps may be listed that come after the end of the forecast.
	open int
	// preempted lists the preempted replicas, in order.
	preempted []*v1.Replica
}

const (
	// maxLooks bounds a forecast to about a second: a tick may have to look at all replicas
	// to see what is free.
	maxLooks = 4_000_000
	// changeCost is the cost of a change, in looks.
	changeCost = 200
	// minTicks are forecast however many replicas there are.
	minTicks = 32
	maxOpen  = 100_000
)

func newForecast(now time.Time, fork *state.Fork) *forecast {
	snap := fork.Snapshot()
	f := &forecast{
		now: now, fork: fork, acting: map[string]bool{},
		looks: max(maxLooks, minTicks*snap.Count(state.KindReplica)), open: maxOpen,
	}
	f.engine.Begin(snap)
	f.engine.cluster.foreseeing = true
	return f
}

// play makes the changes and lets the loop and the nodes take turns. Nodes are slower than
// the loop, so they act when the loop is idle.
func (f *forecast) play(tx *statev1.Transaction) error {
	f.begin()
	if err := f.change(tx); err != nil {
		return err
	}
	for {
		if err := f.settle(); err != nil || f.cutShort {
			return err
		}
		if acted, err := f.work(); err != nil || !acted {
			return err
		}
	}
}

// begin finds out which workloads wait before the changes, as the loop would know. Work
// that the loop has not finished stays due. An idle loop has none.
func (f *forecast) begin() {
	snap := f.fork.Snapshot()
	due := Due{Workloads: map[string]bool{}, Placement: true}
	leaving := map[string]bool{} // nodes whose replicas may wait for a place elsewhere
	for n := range snap.Nodes("") {
		if uid := n.GetMetadata().GetUid(); f.engine.cluster.Offline[uid] || spec.Drains(n) {
			leaving[uid] = true
		}
	}
	for r := range snap.Replicas("", "") {
		uid := r.GetSpec().GetWorkloadUid()
		outdated := spec.Serves(r) && snap.Workload(uid).GetStatus().GetRevisionUid() != r.GetSpec().GetRevisionUid()
		if outdated || placement.Wanted(r) && leaving[r.GetSpec().GetNodeUid()] {
			due.Workloads[uid] = true
		}
	}
	f.looks -= snap.Count(state.KindReplica)
	f.engine.Due = due
	f.engine.Settle(f.now, f.newUID) // the step is discarded: the changes come first
}

// change applies the requested changes.
func (f *forecast) change(tx *statev1.Transaction) error {
	var changes []state.Change
	if len(tx.GetChanges()) > 0 {
		var err error
		if changes, err = f.fork.Apply(proto.CloneOf(tx)); err != nil { // the fork stamps and keeps its argument
			return err
		}
	}
	f.follow(changes)
	return nil
}

// follow makes the engine follow changes of the fork.
func (f *forecast) follow(changes []state.Change) {
	for _, c := range changes {
		if r, ok := c.New.(*v1.Replica); ok {
			f.acting[r.GetMetadata().GetUid()] = true
		}
	}
	f.engine.Follow(f.fork.Snapshot(), changes)
}

// waits reports whether an outdated replica stays because its successor fits nowhere. One
// on an offline node has a cover instead, which waits by itself.
func (f *forecast) waits(r *v1.Replica) bool {
	return f.engine.memory.waiting[r.GetSpec().GetWorkloadUid()] && !f.engine.cluster.Offline[r.GetSpec().GetNodeUid()]
}

// settle ticks until there is nothing to do, like Loop.settle.
func (f *forecast) settle() error {
	for !f.engine.Due.Empty() {
		if f.looks -= maxReplicas + f.fork.Snapshot().Count(state.KindReplica); f.looks < 0 {
			f.cutShort = true
			return nil
		}
		step := f.engine.Settle(f.now, f.newUID)
		if step == nil {
			return nil
		}
		tx := step.Batch.Transaction(f.now)
		changes, result, err := f.fork.ApplyParts(tx)
		switch {
		case err == nil:
			f.looks -= len(changes) * changeCost
			f.note(changes)
			f.engine.Agreed(step, tx, result)
			f.follow(changes)
		case !state.MovedOn(err): // two replicas have the same name: retry with the next uid
			return err
		}
	}
	return nil
}

// newUID returns uids that sort after all real ones, in the order of creation.
func (f *forecast) newUID() string {
	f.uids++
	return fmt.Sprintf("ffffffff-ffff-7fff-bfff-ffff%08x", f.uids)
}

// work lets the nodes start and stop their replicas, and reports whether any did.
func (f *forecast) work() (bool, error) {
	snap := f.fork.Snapshot()
	var b state.Batch
	for _, uid := range slices.Sorted(maps.Keys(f.acting)) {
		old := snap.Replica(uid)
		if phase := f.nextPhaseOf(snap, old); phase != "" {
			r := proto.CloneOf(old)
			r.Status.Phase = phase
			b.Update(r, old.GetMetadata().GetVersion())
		}
	}
	clear(f.acting)
	if b.Len() == 0 {
		return false, nil
	}
	changes, err := f.fork.Apply(b.Transaction(f.now))
	if err != nil {
		return false, err
	}
	f.follow(changes)
	return true, nil
}

// nextPhaseOf returns the phase to which a node brings a replica, or "" if nothing changes. A
// replica in backoff is not considered running.
func (f *forecast) nextPhaseOf(snap *state.Snapshot, r *v1.Replica) string {
	phase := r.GetStatus().GetPhase()
	node := snap.Node(r.GetSpec().GetNodeUid())
	switch {
	case r == nil, spec.Ended(phase), !slices.Contains(workingStates, node.GetStatus().GetState()):
		return ""
	case r.GetSpec().GetDesired() == spec.DesiredStopped:
		return spec.PhaseStopped
	case phase == spec.PhasePlaced, phase == spec.PhasePreparing:
		return spec.PhaseRunning
	}
	return ""
}

// workingStates lists the states of nodes that follow their assignments.
var workingStates = []string{spec.NodeReady, spec.NodeCordoned, spec.NodeDraining}

// outcome compares the replicas of a workload before and after.
func (f *forecast) outcome(before *state.Snapshot, workloadUID string) *v1.PlanChange {
	after := f.fork.Snapshot()
	planned := &v1.PlanChange{}
	w := after.Workload(workloadUID)
	revision := w.GetStatus().GetRevisionUid()
	var gone, fresh []*v1.Replica
	for _, r := range placement.ByUID(after, workloadUID) {
		old := before.Replica(r.GetMetadata().GetUid())
		switch {
		case placement.Wanted(r) && r.GetSpec().GetNodeUid() == "":
			planned.Unplaced++
		case placement.Wanted(r) && old == nil:
			fresh = append(fresh, r)
		case placement.Wanted(r):
			planned.Replicas = append(planned.Replicas, f.kept(old, r, revision))
			if r.GetSpec().GetRevisionUid() != revision && f.waits(r) {
				planned.Unplaced++ // its successor
			}
		case old != nil && placement.Wanted(old):
			gone = append(gone, old)
		}
	}
	shown := len(planned.GetReplicas()) + len(fresh) + int(planned.GetUnplaced())
	planned.Replicas = append(planned.Replicas, pair(gone, fresh)...)
	if f.cutShort && w.GetMetadata().GetDeleteTime() == nil {
		for range min(atOnce(after, w)-shown, f.open) { // created after the end of the forecast
			f.open--
			planned.Replicas = append(planned.Replicas, &v1.ReplicaStep{Action: spec.ActionCreate})
		}
	}
	if planned.Unplaced > 0 {
		planned.UnplacedReasons = Placement{}.Explain(after, workloadUID)
		planned.Quota = Placement{}.ShortOfQuota(after, workloadUID)
		planned.WaitsFor = placement.AwaitsSecret(after, after.Revision(revision), f.now)
	}
	return planned
}

// atOnce is how many replicas of a workload there should be at a time.
func atOnce(snap *state.Snapshot, w *v1.Workload) int {
	switch w.GetSpec().GetKind() {
	case spec.KindJob:
		if placement.JobOf(snap, w).Outcome != "" {
			return 0
		}
		completions, parallelism, _, _ := spec.JobOf(w.GetSpec())
		return min(completions, parallelism)
	case spec.KindDaemon:
		return Placement{}.Nodes(snap, w)
	default:
		return int(spec.Replicas(w))
	}
}

// kept is the step of a replica that stays alive.
func (f *forecast) kept(old, now *v1.Replica, revision string) *v1.ReplicaStep {
	step := &v1.ReplicaStep{
		Action: spec.ActionKeep, Replica: now.GetMetadata().GetName(), FromNode: old.GetSpec().GetNode(), ToNode: now.GetSpec().GetNode(),
	}
	switch {
	case step.FromNode == "":
		step.Action = spec.ActionCreate // it was waiting for a node
	case f.cutShort && now.GetSpec().GetRevisionUid() != revision:
		step.Action, step.ToNode = spec.ActionReplace, "" // its turn comes after the end of the forecast
	}
	return step
}

// pair matches removed replicas with their successors, on the same node if possible.
func pair(gone, fresh []*v1.Replica) []*v1.ReplicaStep {
	here := map[string][]*v1.Replica{}
	for _, r := range fresh {
		here[r.GetSpec().GetNodeUid()] = append(here[r.GetSpec().GetNodeUid()], r)
	}
	steps := make([]*v1.ReplicaStep, len(gone))
	taken := map[*v1.Replica]bool{}
	for i, old := range gone {
		steps[i] = &v1.ReplicaStep{Action: spec.ActionStop, Replica: old.GetMetadata().GetName(), FromNode: old.GetSpec().GetNode()}
		if node := old.GetSpec().GetNodeUid(); len(here[node]) > 0 {
			steps[i].Action, steps[i].ToNode = spec.ActionReplace, steps[i].FromNode
			taken[here[node][0]] = true
			here[node] = here[node][1:]
		}
	}
	left := slices.DeleteFunc(fresh, func(r *v1.Replica) bool { return taken[r] })
	for _, step := range steps {
		if step.Action == spec.ActionStop && step.FromNode != "" && len(left) > 0 {
			step.Action, step.ToNode = spec.ActionMove, left[0].GetSpec().GetNode()
			left = left[1:]
		}
	}
	for _, r := range left {
		steps = append(steps, &v1.ReplicaStep{Action: spec.ActionCreate, ToNode: r.GetSpec().GetNode()})
	}
	return steps
}
