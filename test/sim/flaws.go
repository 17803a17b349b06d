package sim

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Flaw is a deliberate mistake: a simulator that finds nothing has to prove that it would.
type Flaw string

// The flaws, each a mistake that could be made in the product.
const (
	// A new leader does not give nodes time to reconnect.
	Hasty Flaw = "hasty"
	// The leader ignores heartbeats.
	Deaf Flaw = "deaf"
	// The leader never declares a node offline.
	Lenient Flaw = "lenient"
	// The first message of a session omits a replica.
	Forgetful Flaw = "forgetful"
	// The loop of replicas ignores the reports of nodes.
	Blind Flaw = "blind"
	// Every replica goes to the first node.
	Crowding Flaw = "crowding"
	// Retention deletes what is still needed.
	Greedy Flaw = "greedy"
	// Finished work is forgotten with its replica.
	Amnesic Flaw = "amnesic"
	// The loop of replicas does not wake when a time has come.
	Timeless Flaw = "timeless"
	// Decided times of a schedule are not stored.
	Repeating Flaw = "repeating"
	// Servers apply an entry each by its own clock.
	Wilful Flaw = "wilful"
	// The loop of replicas ignores quotas.
	Generous Flaw = "generous"
	// A new leader forgets the reliability of nodes.
	Heedless Flaw = "heedless"
	// A node that goes offline keeps its reliability.
	Forgiving Flaw = "forgiving"
	// Sessions use an old epoch.
	Outdated Flaw = "outdated"
	// A plan differs from what will be done.
	Lying Flaw = "lying"
	// Waiting replicas preempt others regardless of priority.
	Ruthless Flaw = "ruthless"
	// The engine of replicas does not learn that a node was taken out of service, so that
	// its view of the nodes is outdated.
	Petrified Flaw = "petrified"
	// The engine of replicas follows each change twice, so that its tallies are wrong.
	Stuttering Flaw = "stuttering"
	// Waiting replicas are not woken when there is room.
	Asleep Flaw = "asleep"
	// Servers take minutes to elect a leader.
	Undecided Flaw = "undecided"
)

// The flaws of autoscaling.
const (
	// What is not measured counts as zero.
	Presuming Flaw = "presuming"
	// The number goes beyond the bounds.
	Boundless Flaw = "boundless"
	// Nothing wakes a service that sleeps.
	Oversleeping Flaw = "oversleeping"
)

// The flaws of rebalancing.
const (
	// Replicas are moved to any node.
	Aimless Flaw = "aimless"
	// A moved replica stops before another one serves.
	Abrupt Flaw = "abrupt"
)

// crowd puts everything onto the first node.
func crowd(snap *state.Snapshot, tx *statev1.Transaction) {
	for n := range snap.Nodes("") {
		for _, change := range tx.GetChanges() {
			if r := change.GetPut().GetReplica(); r.GetStatus().GetPhase() == spec.PhasePlaced {
				r.Spec.NodeUid, r.Spec.Node = n.GetMetadata().GetUid(), n.GetMetadata().GetName()
			}
		}
		return
	}
}

// grab deletes the first replica.
func grab(snap *state.Snapshot, b *state.Batch) {
	for r := range snap.Replicas("", "") {
		b.Delete(state.KindReplica, r.GetMetadata().GetUid())
		return
	}
}

// forget deletes all finished work.
func forget(snap *state.Snapshot, b *state.Batch) {
	for r := range snap.Replicas("", "") {
		if r.GetStatus().GetPhase() == spec.PhaseCompleted {
			b.Delete(state.KindReplica, r.GetMetadata().GetUid())
		}
	}
}

// undecided removes the decided times from a transaction.
func undecided(tx *statev1.Transaction) {
	for _, change := range tx.GetChanges() {
		if w := change.GetPut().GetWorkload(); w.GetStatus().GetCron() != nil {
			w.Status.Cron = nil
		}
	}
}

// leaveOut removes the last assignment from a message.
func leaveOut(message *v1.Assignments) {
	if n := len(message.GetAssign()); message.GetFull() && n > 0 {
		message.Assign = slices.Delete(message.GetAssign(), n-1, n)
	}
}

// without are the changes that do not match. It does not modify its argument, which is
// shared.
func without(changes []state.Change, match func(state.Change) bool) []state.Change {
	return slices.DeleteFunc(slices.Clone(changes), match)
}

// unnoticed are changes without the reports of nodes.
func unnoticed(changes []state.Change) []state.Change {
	return without(changes, func(c state.Change) bool {
		r, _ := c.New.(*v1.Replica)
		return r != nil && r.GetStatus().GetPhase() != spec.PhasePending && r.GetStatus().GetPhase() != spec.PhasePlaced
	})
}

// withoutCordons are changes without those that take a node out of service.
func withoutCordons(changes []state.Change) []state.Change {
	return without(changes, func(c state.Change) bool {
		before, _ := c.Old.(*v1.Node)
		after, _ := c.New.(*v1.Node)
		return before.GetStatus().GetState() == "ready" && after.GetSpec().GetAvailability() != ""
	})
}

func withoutNamespaces(changes []state.Change) []state.Change {
	return without(changes, func(c state.Change) bool { return c.Kind == state.KindNamespace })
}

// twice repeats each change.
func twice(changes []state.Change) (all []state.Change) {
	for _, c := range changes {
		all = append(all, c, c)
	}
	return all
}

// keepAsleep returns a function that removes from an engine, after it has followed changes,
// the services that it has woken because they may fit now.
func keepAsleep(e *replicas.Engine, snap *state.Snapshot, changes []state.Change) func() {
	awake := maps.Clone(e.Due.Workloads)
	if awake == nil {
		awake = map[string]bool{}
	}
	for _, c := range changes {
		for _, o := range []state.Object{c.Old, c.New} {
			switch o := o.(type) {
			case *v1.Workload:
				awake[o.GetMetadata().GetUid()] = true
			case *v1.Replica:
				awake[o.GetSpec().GetWorkloadUid()] = true
			}
		}
	}
	return func() {
		maps.DeleteFunc(e.Due.Workloads, func(uid string, _ bool) bool {
			return !awake[uid] && snap.Workload(uid).GetSpec().GetKind() == ""
		})
	}
}

// pushOut preempts the first running replica for the first waiting one.
func pushOut(snap *state.Snapshot, b *state.Batch) {
	for waits := range snap.ReplicasOn("") {
		for old := range snap.Replicas("", "") {
			if spec.Live(waits.GetStatus().GetPhase()) && wanted(old) && spec.Serves(old) {
				r := proto.CloneOf(old)
				r.Spec.Desired, r.Spec.PreemptedFor = spec.DesiredStopped, waits.GetMetadata().GetUid()
				b.BeginPart()
				b.Update(r, old.GetMetadata().GetVersion())
				return
			}
		}
	}
}
