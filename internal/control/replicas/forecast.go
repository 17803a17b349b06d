package replicas

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Forecast makes changes on a fork and plays what the loop would do then, as if every
// ready node did at once what it is told and nothing else happened, until nothing is left
// to do. It returns for each of the workloads, in their order, what would become of its
// replicas; the other fields of the changes are empty. Beside them it returns which
// replicas of whatever workloads would be pushed out. The fork is at the end of it afterwards.
//
// It is the loop's own engine that decides, with what the loop would find due, so
// that carrying out the changes leads to the same places. How far it looks is
// bounded by the size of the state and nothing else: the same fork gives the
// same forecast.
func (Placement) Forecast(now time.Time, fork *state.Fork, tx *statev1.Transaction, workloads []string) ([]*v1.PlanChange, []*v1.Preemption, error) {
	before := fork.Snapshot()
	f := newForecast(now, fork)
	for _, uid := range workloads {
		for r := range before.ReplicasOf(uid) {
			f.acting[r.GetMetadata().GetUid()] = true // it may be on its way
		}
	}
	for r := range before.Replicas("", "") {
		if r.GetSpec().GetDesired() == rollout.DesiredStopped && rollout.Live(r.GetStatus().GetPhase()) {
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

// forecast is one forecast under way.
type forecast struct {
	now  time.Time
	fork *state.Fork
	// engine is that of the loop, which follows the fork.
	engine Engine
	// acting are the replicas with which a node may have something to do.
	acting map[string]bool
	uids   int
	// looks are how many more replicas the forecast may look at, and cutShort is
	// whether they were too few.
	looks    int
	cutShort bool
	// open are how many more steps may be listed that come after its end.
	open int
	// pushed are the replicas that were pushed out, in their order.
	pushed []*v1.Replica
}

const (
	// maxLooks bounds what a forecast costs to about a second: a tick may have to
	// look at all replicas to see what is free.
	maxLooks = 4_000_000
	// changeCost is how many looks a change costs as much as.
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
	return f
}

// play makes the changes and lets the loop and the nodes take turns. Nodes are slower than
// the loop, so they act when it has come to rest.
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

// begin finds out who waits before the changes, as the loop has over time. What the loop
// has still to do stays due, which is nothing where it has come to rest.
func (f *forecast) begin() {
	snap := f.fork.Snapshot()
	due := Due{Workloads: map[string]bool{}, Placement: true}
	for r := range snap.Replicas("", "") {
		uid := r.GetSpec().GetWorkloadUid()
		outdated := r.GetStatus().GetPhase() == rollout.PhaseRunning && snap.Workload(uid).GetStatus().GetRevisionUid() != r.GetSpec().GetRevisionUid()
		if outdated || wanted(r) && f.engine.cluster.offline[r.GetSpec().GetNodeUid()] {
			due.Workloads[uid] = true
		}
	}
	f.looks -= snap.Count(state.KindReplica)
	f.engine.Due = due
	f.engine.Settle(f.now, f.newUID) // which is not made: the changes come first
}

// change makes the changes that are asked about.
func (f *forecast) change(tx *statev1.Transaction) error {
	var changes []state.Change
	if len(tx.GetChanges()) > 0 {
		var err error
		if changes, err = f.fork.Apply(proto.CloneOf(tx)); err != nil { // the fork keeps what it is given, and stamps it
			return err
		}
	}
	f.follow(changes)
	return nil
}

// follow has the engine follow changes of the fork.
func (f *forecast) follow(changes []state.Change) {
	for _, c := range changes {
		if r, ok := c.New.(*v1.Replica); ok {
			f.acting[r.GetMetadata().GetUid()] = true
		}
	}
	f.engine.Follow(f.fork.Snapshot(), changes)
}

// waits reports whether an outdated replica is left because its successor fits
// nowhere. One on an offline node has another beside it, which waits for itself.
func (f *forecast) waits(r *v1.Replica) bool {
	return f.engine.memory.waiting[r.GetSpec().GetWorkloadUid()] && !f.engine.cluster.offline[r.GetSpec().GetNodeUid()]
}

// settle ticks until there is nothing to do, see Loop.settle.
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
		case !state.MovedOn(err): // two replicas of one name: the next uid gives another one
			return err
		}
	}
	return nil
}

// newUID gives uids after all real ones, in the order of creation.
func (f *forecast) newUID() string {
	f.uids++
	return fmt.Sprintf("ffffffff-ffff-7fff-bfff-ffff%08x", f.uids)
}

// work lets the nodes do what they are told, start or stop, and reports whether they did
// anything.
func (f *forecast) work() (bool, error) {
	snap := f.fork.Snapshot()
	var b state.Batch
	for _, uid := range slices.Sorted(maps.Keys(f.acting)) {
		old := snap.Replica(uid)
		if phase := f.obey(snap, old); phase != "" {
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

// obey is the phase to which a node brings a replica, empty if it stays as it
// is. What waits to be started again is not taken for running.
func (f *forecast) obey(snap *state.Snapshot, r *v1.Replica) string {
	phase := r.GetStatus().GetPhase()
	node := snap.Node(r.GetSpec().GetNodeUid())
	switch {
	case r == nil, rollout.Ended(phase), !slices.Contains(obedient, node.GetStatus().GetState()):
		return ""
	case r.GetSpec().GetDesired() == rollout.DesiredStopped:
		return rollout.PhaseStopped
	case phase == rollout.PhasePlaced, phase == rollout.PhasePreparing:
		return rollout.PhaseRunning
	}
	return ""
}

// obedient are the states of nodes that do what they are told.
var obedient = []string{"ready", "cordoned", "draining"}

// outcome compares the replicas of a workload before and after.
func (f *forecast) outcome(before *state.Snapshot, workloadUID string) *v1.PlanChange {
	after := f.fork.Snapshot()
	planned := &v1.PlanChange{}
	w := after.Workload(workloadUID)
	revision := w.GetStatus().GetRevisionUid()
	var gone, fresh []*v1.Replica
	for _, r := range byUID(after, workloadUID) {
		old := before.Replica(r.GetMetadata().GetUid())
		switch {
		case wanted(r) && r.GetSpec().GetNodeUid() == "":
			planned.Unplaced++
		case wanted(r) && old == nil:
			fresh = append(fresh, r)
		case wanted(r):
			planned.Replicas = append(planned.Replicas, f.kept(old, r, revision))
			if r.GetSpec().GetRevisionUid() != revision && f.waits(r) {
				planned.Unplaced++ // its successor
			}
		case old != nil && wanted(old):
			gone = append(gone, old)
		}
	}
	shown := len(planned.GetReplicas()) + len(fresh) + int(planned.GetUnplaced())
	planned.Replicas = append(planned.Replicas, pair(gone, fresh)...)
	if f.cutShort && w.GetMetadata().GetDeleteTime() == nil {
		for range min(atOnce(after, w)-shown, f.open) { // they are created after the end of the forecast
			f.open--
			planned.Replicas = append(planned.Replicas, &v1.ReplicaStep{Action: "create"})
		}
	}
	if planned.Unplaced > 0 {
		planned.UnplacedReasons = Placement{}.Explain(after, workloadUID)
		planned.Quota = Placement{}.ShortOfQuota(after, workloadUID)
	}
	return planned
}

// atOnce is how many replicas of a workload there should be at a time.
func atOnce(snap *state.Snapshot, w *v1.Workload) int {
	switch w.GetSpec().GetKind() {
	case spec.KindJob:
		if jobOf(snap, w).Outcome != "" {
			return 0
		}
		completions, parallelism, _, _ := spec.JobOf(w.GetSpec())
		return min(completions, parallelism)
	case spec.KindDaemon:
		return Placement{}.Nodes(snap, w)
	default:
		return int(w.GetSpec().GetReplicas())
	}
}

// kept is the step of a replica that lives on.
func (f *forecast) kept(old, now *v1.Replica, revision string) *v1.ReplicaStep {
	step := &v1.ReplicaStep{
		Action: "keep", Replica: now.GetMetadata().GetName(), FromNode: old.GetSpec().GetNode(), ToNode: now.GetSpec().GetNode(),
	}
	switch {
	case step.FromNode == "":
		step.Action = "create" // it was waiting for a node
	case f.cutShort && now.GetSpec().GetRevisionUid() != revision:
		step.Action, step.ToNode = "replace", "" // its turn comes after the end of the forecast
	}
	return step
}

// byUID lists the replicas of a workload from the oldest to the newest.
func byUID(snap *state.Snapshot, workloadUID string) []*v1.Replica {
	return slices.SortedFunc(snap.ReplicasOf(workloadUID), func(a, b *v1.Replica) int {
		return cmp.Compare(a.GetMetadata().GetUid(), b.GetMetadata().GetUid())
	})
}

// wanted reports whether a replica lives and is to go on.
func wanted(r *v1.Replica) bool {
	return rollout.Live(r.GetStatus().GetPhase()) && r.GetSpec().GetDesired() != rollout.DesiredStopped
}

// pair finds the successors of those that go: on the same node if there is one
// there, else on another.
func pair(gone, fresh []*v1.Replica) []*v1.ReplicaStep {
	here := map[string][]*v1.Replica{}
	for _, r := range fresh {
		here[r.GetSpec().GetNodeUid()] = append(here[r.GetSpec().GetNodeUid()], r)
	}
	steps := make([]*v1.ReplicaStep, len(gone))
	taken := map[*v1.Replica]bool{}
	for i, old := range gone {
		steps[i] = &v1.ReplicaStep{Action: "stop", Replica: old.GetMetadata().GetName(), FromNode: old.GetSpec().GetNode()}
		if node := old.GetSpec().GetNodeUid(); len(here[node]) > 0 {
			steps[i].Action, steps[i].ToNode = "replace", steps[i].FromNode
			taken[here[node][0]] = true
			here[node] = here[node][1:]
		}
	}
	left := slices.DeleteFunc(fresh, func(r *v1.Replica) bool { return taken[r] })
	for _, step := range steps {
		if step.Action == "stop" && step.FromNode != "" && len(left) > 0 {
			step.Action, step.ToNode = "move", left[0].GetSpec().GetNode()
			left = left[1:]
		}
	}
	for _, r := range left {
		steps = append(steps, &v1.ReplicaStep{Action: "create", ToNode: r.GetSpec().GetNode()})
	}
	return steps
}
