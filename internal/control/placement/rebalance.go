package placement

import (
	"cmp"
	"fmt"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Rebalancing moves only replicas of which another one can serve first, and only while nothing
// else is going on. The replica that takes the place of another one remembers that, so every
// leader knows which moves are under way, how many there were, and which replicas rest.

// Unsettled says why nothing is moved in the whole cluster now, empty if something may be.
func Unsettled(snap *state.Snapshot) string {
	for r := range snap.ReplicasOn("") {
		if Wanted(r) {
			return fmt.Sprintf("%s of namespace %s has no node", r.GetMetadata().GetName(), r.GetMetadata().GetNamespace())
		}
	}
	for n := range snap.Nodes("") {
		offline := n.GetStatus().GetState() == spec.NodeOffline
		if !offline && !spec.Drains(n) {
			continue
		}
		for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
			if !Wanted(r) || snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec().GetKind() == spec.KindDaemon {
				continue
			}
			if offline {
				return fmt.Sprintf("node %s is offline, and %s is not replaced yet", n.GetMetadata().GetName(), r.GetMetadata().GetName())
			}
			return fmt.Sprintf("node %s is being drained", n.GetMetadata().GetName())
		}
	}
	return ""
}

// Unmovable says why no replica of a workload is moved now, empty if one may be.
func Unmovable(snap *state.Snapshot, w *v1.Workload) string {
	want := int(spec.Replicas(w))
	switch d := snap.Deployment(w.GetStatus().GetDeploymentUid()); {
	case w.GetMetadata().GetDeleteTime() != nil:
		return "it is being deleted"
	case w.GetSpec().GetKind() != "":
		return "only replicas of services are moved"
	case w.GetSpec().GetSingleton():
		return "it is a singleton, which would not run meanwhile"
	case w.GetSpec().GetRestart().GetPolicy() != rollout.PolicyAlways:
		return "its work ends by itself and must not be done twice"
	case UpdateOf(w, want).Surge == 0:
		return "its update strategy stops replicas before it starts others"
	case spec.DeploymentOpen(d) || spec.Waits(w, d):
		return fmt.Sprintf("its deployment %d has not ended", d.GetSpec().GetNumber())
	}
	if why := AwaitsSecret(snap, snap.Revision(w.GetStatus().GetRevisionUid()), time.Now()); why != "" {
		return "a new replica of it " + why
	}
	live := 0
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if !spec.Live(r.GetStatus().GetPhase()) {
			continue
		}
		live++
		if !Wanted(r) || !spec.Steady(r) || Away(snap, r) || r.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() {
			return fmt.Sprintf("not all of its replicas serve, such as %s", r.GetMetadata().GetName())
		}
	}
	if live != want {
		return fmt.Sprintf("it has %s and wants %d", spec.Count(live, "replica"), want)
	}
	return ""
}

// Rest is why a replica stays where it is for a while.
type Rest struct {
	// Since is when it was moved, or when a move of it has failed.
	Since time.Time
	// Moves is how many there were in a row.
	Moves int
}

// RestsOf are those of the replicas of a workload, by uid.
func RestsOf(snap *state.Snapshot, w *v1.Workload) map[string]Rest {
	var rests map[string]Rest
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		of := r.GetSpec().GetReplaces()
		if of.GetCause() != CauseMoved {
			continue
		}
		if rests == nil {
			rests = map[string]Rest{}
		}
		rest := Rest{Since: r.GetMetadata().GetCreateTime().AsTime(), Moves: int(of.GetTimes())}
		for _, uid := range []string{r.GetMetadata().GetUid(), of.GetReplicaUid()} {
			if rest.Since.After(rests[uid].Since) {
				rests[uid] = rest
			}
		}
	}
	return rests
}

// Until is when a rest is over. One that began far in the future was recorded by a leader whose clock was wrong.
func (r Rest) Until(now time.Time, limit spec.Rebalance) (at time.Time) {
	if r.Moves == 0 || r.Since.After(now.Add(clockSkew)) {
		return at
	}
	return r.Since.Add(limit.RestAfter(r.Moves))
}

// forgotten is after how many times its length a rest does not count any more.
const forgotten = 4

// Next is the number of the next move. A replica that is moved again and again rests longer and longer, because some
// rules of workloads chase each other forever.
func (r Rest) Next(now time.Time, limit spec.Rebalance) int {
	if now.Sub(r.Since) > forgotten*limit.RestAfter(r.Moves) {
		return 1
	}
	return r.Moves + 1
}

// Moves reports whether a replica is to leave its node as soon as another one, which takes its place, serves. The time is
// when that is given up.
func Moves(snap *state.Snapshot, now time.Time, from, to *v1.Replica) (until time.Time, moves bool) {
	w := snap.Workload(to.GetSpec().GetWorkloadUid())
	crashed := to.GetStatus().GetRestarts() > 0 || to.GetStatus().GetPhase() == spec.PhaseBackoff
	if from == nil || w == nil || !Wanted(from) || !Wanted(to) || Away(snap, to) || NodeRemoved(snap, to) || crashed ||
		spec.Drains(snap.Node(to.GetSpec().GetNodeUid())) ||
		to.GetSpec().GetReplaces().GetCause() != CauseMoved || to.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() ||
		w.GetMetadata().GetDeleteTime() != nil || others(snap, w, from, to) >= int(spec.Replicas(w)) {
		return until, false
	}
	if spec.Steady(to) {
		return until, true
	}
	most := spec.ProgressDeadlineOf(w.GetSpec())
	until = to.GetMetadata().GetCreateTime().AsTime().Add(most)
	return until, now.Before(until) && until.Sub(now) <= most+clockSkew
}

// others counts the replicas of a workload beside two: if they are enough, neither of the two is needed.
func others(snap *state.Snapshot, w *v1.Workload, from, to *v1.Replica) (count int) {
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if uid := r.GetMetadata().GetUid(); Wanted(r) && !Away(snap, r) && uid != from.GetMetadata().GetUid() && uid != to.GetMetadata().GetUid() {
			count++
		}
	}
	return count
}

// moverOf is the replica that takes the place of another one, or nil.
func moverOf(snap *state.Snapshot, from *v1.Replica) *v1.Replica {
	for to := range snap.ReplicasOf(from.GetSpec().GetWorkloadUid()) {
		if to.GetSpec().GetReplaces().GetReplicaUid() == from.GetMetadata().GetUid() {
			if _, moves := Moves(snap, time.Now(), from, to); moves {
				return to
			}
		}
	}
	return nil
}

// stays says why a replica is not moved to a better node, or that it is. It continues a sentence about the better node.
func (x *explainer) stays(r *v1.Replica, review *scheduler.Review) string {
	limit, now := spec.RebalanceOf(x.snap.Cluster().GetSpec()), time.Now()
	if !limit.Enabled {
		return notMoved
	}
	if to := moverOf(x.snap, r); to != nil {
		return fmt.Sprintf("; it stops when %s serves on node %s", to.GetMetadata().GetName(), to.GetSpec().GetNode())
	}
	switch gain := review.Gain(); {
	case review.Own.Rank == 0:
		return notMoved
	case !gain.Reaches(limit.MinGain):
		return fmt.Sprintf("; it is not moved for a gain of %s, because rebalance.minGain is %s", spec.FormatScore(gain.By), spec.FormatScore(limit.MinGain))
	}
	rest := ""
	if until := RestsOf(x.snap, x.workload)[r.GetMetadata().GetUid()].Until(now, limit); now.Before(until) {
		rest = "it was moved a short time ago, until " + until.UTC().Format(time.TimeOnly) + " UTC"
	}
	if why := cmp.Or(Unmovable(x.snap, x.workload), rest, Unsettled(x.snap)); why != "" {
		return "; it is not moved now: " + why
	}
	return fmt.Sprintf("; it is moved when its turn comes, at most %d within %s", limit.Replicas, spec.FormatDuration(limit.Per))
}
