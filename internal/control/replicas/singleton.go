package replicas

import (
	"fmt"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/lease"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A singleton's replica on a node that is offline or removed may still run there: a removed
// node that is cut off does not know it yet. The replica is replaced only when its lease has
// certainly expired, see package lease: then it is lost, in the transaction that creates the
// next one.

// Leases says when the replicas of singletons have certainly stopped.
type Leases interface {
	// Begin notes that a leader's term has begun.
	Begin(now time.Time)
	// Fence reports whether the lease of a replica has expired for good. Otherwise it
	// returns when to ask again.
	Fence(now time.Time, replica string) (again time.Time, fenced bool)
	// Admit allows the replica to have leases.
	Admit(replica string)
}

// fence loses a singleton's replica on a node that is offline or removed, if its lease has
// expired. Until then no other replica is created, and the workload is due again then.
//
// A replica of a revision that was no singleton needs no lease, so its node runs it for as long
// as it is cut off, even if it was replaced before the workload became a singleton. It is lost
// only with its node.
func (t *tick) fence(w *v1.Workload, r *v1.Replica, one *rollout.Replica, fallen *casualties) {
	removed, leased := placement.NodeRemoved(t.snap, r), placement.Leased(t.snap, r)
	leases := t.cluster.leases
	switch {
	case one.Phase == spec.PhaseLost && w.GetMetadata().GetDeleteTime() == nil:
		recent := t.now.Sub(r.GetStatus().GetEndTime().AsTime()) < 2*lease.Duration // it gets no lease any more
		one.Held = placement.Lingers(t.snap, r) || leased && recent && !t.expired(w, r)
		return
	case spec.Ended(one.Phase) || one.Node == "":
		return
	case !one.Away && !removed:
		if leases != nil {
			leases.Admit(one.UID)
		}
		return
	case !leased && !removed && w.GetMetadata().GetDeleteTime() != nil:
		return // no other replica follows
	}
	one.Away, one.Held = false, true
	if one.Patient || !leased && !removed {
		return // its workload waits for the node even longer
	}
	if leased && !t.expired(w, r) {
		return
	}
	if !t.room.has(1) {
		t.left.Workloads[w.GetMetadata().GetUid()] = true
		return
	}
	if !removed && one.Desired != spec.DesiredStopped && !t.spend() {
		t.deferTurn(w, 1)
		return
	}
	why := "is offline"
	if removed {
		why = "was removed"
	}
	if leased {
		why += ", and its lease has expired"
	}
	t.lose(r, fmt.Sprintf("node %s %s", r.GetSpec().GetNode(), why))
	one.Held, one.Phase = false, spec.PhaseLost
	fallen.fenced, fallen.lost = append(fallen.fenced, fallen.lost...), nil
}

// expired reports whether the lease of a replica has certainly expired. If not, its workload is
// due again then.
func (t *tick) expired(w *v1.Workload, r *v1.Replica) bool {
	if t.cluster.leases == nil {
		return true
	}
	again, fenced := t.cluster.leases.Fence(t.now, r.GetMetadata().GetUid())
	if !fenced {
		t.later(w.GetMetadata().GetUid(), again)
	}
	return fenced
}

// epochShift leaves room for every entry of a log below the cluster's own epoch, which a
// restored backup raises.
const epochShift = 40

// nextEpoch is a fencing epoch above those of all replicas in a state: each of them was
// made from an earlier state.
func nextEpoch(snap *state.Snapshot) uint64 {
	return snap.Cluster().GetStatus().GetEpoch()<<epochShift | snap.Index()
}
