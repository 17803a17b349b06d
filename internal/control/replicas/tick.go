package replicas

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Due says what a tick looks at.
type Due struct {
	// Workloads by uid.
	Workloads map[string]bool
	// PhaseChanged are workloads, by uid, in which only phases of replicas changed. A
	// workload whose tally shows that nothing follows from that is skipped.
	PhaseChanged map[string]bool
	// Nodes by uid whose replicas' workloads are due.
	Nodes map[string]bool
	// Placement retries everything that is pending, because a node may have room now.
	Placement bool
	// Waiting are workloads with an outdated replica, or one on an offline node, whose
	// successor fits nowhere. A tick reports them; they are due again with the next
	// Placement.
	Waiting map[string]bool
	// Moved is whether a replica was placed or began to run, or a workload's labels,
	// priority or minAvailable changed. Watching is the subset of Waiting that this may
	// help, because its workloads have rules about others or may preempt.
	Moved    bool
	Watching map[string]bool
	// Depending maps the path of a workload to the workloads, by uid, that wait until it is
	// ready or has completed. A tick reports them.
	Depending map[string]map[string]bool
	// Later are workloads that are due again at a time, even without a change. A tick
	// reports them.
	Later map[string]time.Time
	// Rebalance looks for a replica that should be moved to another node.
	Rebalance bool
}

// Empty reports whether there is nothing to do.
func (d Due) Empty() bool {
	return len(d.Workloads) == 0 && len(d.PhaseChanged) == 0 && len(d.Nodes) == 0 && !d.Placement && !d.Rebalance
}

// add adds everything that another Due has.
func (d *Due) add(o Due) {
	if d.Workloads == nil {
		d.Workloads = map[string]bool{}
	}
	maps.Copy(d.Workloads, o.Workloads)
	if d.PhaseChanged == nil {
		d.PhaseChanged = map[string]bool{}
	}
	maps.Copy(d.PhaseChanged, o.PhaseChanged)
	if d.Nodes == nil {
		d.Nodes = map[string]bool{}
	}
	maps.Copy(d.Nodes, o.Nodes)
	d.Rebalance = d.Rebalance || o.Rebalance
	d.Placement = d.Placement || o.Placement // Moved acts through Watching instead
}

// maxReplicas bounds how many replicas one tick creates, stops or loses, and how many
// existing ones it places; maxLabels bounds the bytes of their labels. They keep the
// transaction small, because other writers wait for it.
const (
	maxReplicas = 192
	maxLabels   = 2 << 20
)

// room is how many more replicas may be changed, and how many bytes of labels they may
// have.
type room struct{ replicas, labels int }

func newRoom() room { return room{replicas: maxReplicas, labels: maxLabels} }

func (r *room) has(replicas int) bool { return r.replicas >= replicas && r.labels > 0 }

// take takes room for one replica with so many bytes of labels; give returns it.
func (r *room) take(labels int) { r.replicas, r.labels = r.replicas-1, r.labels-labels }
func (r *room) give(labels int) { r.replicas, r.labels = r.replicas+1, r.labels+labels }

// tick returns the changes that bring what is due one step nearer to the desired state, and
// an empty batch when there is nothing to do. What did not fit into the batch is left for
// the next tick. newUID is its only source of identity, now its only clock. The cluster
// must be up to date with the snapshot; unplaced replicas wait in it for a change that
// helps.
//
// Covers may take all the room of a tick and then find no place. In that case tick runs
// again for the workloads that got no room. This ends, because workloads whose covers found
// no place are not tried again.
func (c *cluster) tick(now time.Time, snap *state.Snapshot, due Due, newUID func() string) (batch *state.Batch, left Due) {
	c.decided = nil
	left = Due{Waiting: map[string]bool{}, Watching: map[string]bool{}, Later: map[string]time.Time{}, Depending: map[string]map[string]bool{}}
	for {
		t := newTick(c, now, snap, newUID)
		t.left.Waiting, t.left.Watching, t.left.Later, t.left.Depending = left.Waiting, left.Watching, left.Later, left.Depending
		t.run(due)
		if left = t.left; t.batch.Len() > 0 || len(left.Workloads) == 0 {
			return t.batch, left
		}
		due = Due{Workloads: left.Workloads}
	}
}

func newTick(c *cluster, now time.Time, snap *state.Snapshot, newUID func() string) *tick {
	return &tick{
		now: now, snap: snap, cluster: c, newUID: newUID, batch: &state.Batch{}, room: newRoom(), moves: newRoom(),
		held: map[string]bool{}, stopped: map[string]bool{}, unplaced: map[string]*v1.Replica{}, covers: map[string]string{},
		departures: map[string][]departure{}, placeless: map[string]bool{}, surging: map[string]bool{},
		deployments: map[string]*v1.Deployment{}, finished: map[string]bool{}, fallen: placement.NewLosses(snap), trials: map[string]*trial{}, postponed: map[string]bool{},
		left: Due{Workloads: map[string]bool{}},
	}
}

// run examines what is due.
func (t *tick) run(due Due) {
	t.readBudget()
	for _, uid := range t.cluster.workloads(t.snap, due) {
		if !t.room.has(1) {
			t.left.Workloads[uid] = true
			continue
		}
		delete(t.cluster.pace.deferred, uid)
		if w := t.snap.Workload(uid); w != nil {
			t.workload(w)
		}
	}
	t.coverInTurn()
	if due.Placement {
		for r := range t.snap.ReplicasOn("") {
			t.waits(r)
		}
	}
	t.place()
	t.finishCovers()
	t.finishSurges()
	t.finishStops()
	t.finishDelays()
	t.finishLosses()
	t.finishDrains(due.Nodes)
	t.finishTurns()
	t.rebalance(due.Rebalance)
}

// workloads lists the uids of the workloads to examine, sorted.
func (c *cluster) workloads(snap *state.Snapshot, d Due) []string {
	all := maps.Clone(d.Workloads)
	if all == nil {
		all = map[string]bool{}
	}
	for uid := range d.PhaseChanged {
		if !all[uid] && !c.settled(snap, snap.Workload(uid)) {
			all[uid] = true
		}
	}
	for node := range d.Nodes {
		for r := range snap.ReplicasOn(node) {
			if phase := r.GetStatus().GetPhase(); spec.Live(phase) || phase == spec.PhaseLost { // see fence
				all[r.GetSpec().GetWorkloadUid()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// tick collects the changes of one call.
type tick struct {
	now     time.Time
	snap    *state.Snapshot
	cluster *cluster
	newUID  func() string
	batch   *state.Batch

	// room is for replicas that are created, stopped or lost, moves for those that are
	// placed; left is what did not fit.
	room, moves room
	left        Due
	// placed are the placements of this tick, in order, if there are too many for an event
	// each.
	placed []placed
	many   bool
	// held are the namespaces in which the tick has placed something.
	held map[string]bool
	// stopped are the uids of the replicas that this tick stops. stops are those of them
	// that their own workload stops, and losses the replicas that it gives up. Both are
	// written at the end.
	stopped map[string]bool
	stops   []*v1.Replica
	losses  []*v1.Replica
	// victims are the uids of the replicas that its moves preempt.
	victims map[string]bool
	// successors are the new successors of stopping replicas.
	successors []*v1.Replica
	// unplaced replicas by uid: new ones, and pending ones that are retried.
	unplaced map[string]*v1.Replica
	// covers maps the uids of unplaced replicas that cover others, which may still run, to
	// the reason: "a is offline".
	covers map[string]string
	// uncovered are workloads that could have more covers; placeless are those for which a
	// cover found no place.
	uncovered []string
	placeless map[string]bool
	// surging are the uids of new replicas that start before outdated ones are stopped.
	// crowdedOut are the workloads of those that found no node after all.
	surging    map[string]bool
	crowdedOut []string
	// deployments are those that this tick has changed, by workload.
	deployments map[string]*v1.Deployment
	// finished are the jobs, by uid, whose workload this tick has written.
	finished map[string]bool
	// budget is how many lost replicas may be replaced.
	budget budget
	// fallen says what the losses of nodes mean for replicas. trials are those of suspects, by workload and revision; delayed are new replicas that wait for a time,
	// and postponed the uids of those that wait longer than before.
	fallen    *placement.Losses
	trials    map[string]*trial
	delayed   []*v1.Replica
	postponed map[string]bool
	// departures are replicas, by workload, that must leave their node and could be covered.
	departures map[string][]departure
	// relocations say why a new replica takes the place of another one, by its uid.
	relocations map[string]relocation
}

// later makes a workload due at a time, or earlier.
func (t *tick) later(workloadUID string, at time.Time) {
	if first, known := t.left.Later[workloadUID]; !known || at.Before(first) {
		t.left.Later[workloadUID] = at
	}
}

// take takes room for one replica of a workload, if there is any.
func (t *tick) take(workloadUID string) bool {
	if !t.room.has(1) {
		t.left.Workloads[workloadUID] = true
		return false
	}
	t.room.take(t.labelsOf(workloadUID))
	return true
}

// labelsOf is how many bytes of labels each replica of a workload has.
func (t *tick) labelsOf(workloadUID string) (bytes int) {
	for key, value := range t.snap.Workload(workloadUID).GetMetadata().GetLabels() {
		bytes += len(key) + len(value)
	}
	return bytes
}

func (t *tick) workload(w *v1.Workload) {
	switch w.GetSpec().GetKind() {
	case spec.KindJob:
		t.job(w)
	case spec.KindDaemon:
		t.daemon(w)
	case spec.KindCron: // only its jobs have replicas
	default:
		t.service(w)
	}
}

func (t *tick) service(w *v1.Workload) {
	if t.followGroup(w) {
		return
	}
	if missing, known := t.cluster.lacks(w); known && !rollingOut(t.snap, w) {
		t.add(w, missing, 0, survey{})
		return
	}
	have := t.survey(w)
	if have.gone {
		t.remove(w)
		return
	}
	if t.deploy(w, int(spec.Replicas(w)), have.replicas) {
		return // what to do now follows from the revision that it returned to
	}
	if w = t.target(w); w == nil {
		return // it has no revision yet that may run
	}
	in := placement.InputOf(w, have.replicas)
	in.Places = t.placesToLevel(w)
	t.steer(w, &in.Update)
	if base := t.baseOf(w); base != nil {
		t.runBoth(w, base, in, have)
		return
	}
	t.carryStep(w, rollout.Next(in), have)
}

// carryStep does what package rollout has decided for a service.
func (t *tick) carryStep(w *v1.Workload, step rollout.Step, have survey) {
	t.loseAndStop(step.Lose, step.Stop)
	t.depart(w.GetMetadata().GetUid(), step.Depart)
	t.addSuccessors(w, step.Succeed)
	if found := t.surge(w, t.newReplicas(w, step.Surge), step.Surge, step.Replace, step.Blocked); step.Stranded && !found {
		t.departUncovered(w.GetMetadata().GetUid())
	}
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		t.waits(r)
	}
	t.add(w, step.Create, step.Cover, have)
}

// placesToLevel returns the topology domains of a node over which the scheduler levels a
// workload. They are computed on the first call, because most ticks need none.
func (t *tick) placesToLevel(w *v1.Workload) func(node string) []string {
	keys := sync.OnceValue(func() []string {
		revision, err := t.cluster.Revision(t.snap, w.GetStatus().GetRevisionUid())
		if err != nil {
			return nil
		}
		return revision.Preferences.Levels()
	})
	return func(uid string) (places []string) {
		n := t.snap.Node(uid)
		if n == nil {
			return nil
		}
		labels := spec.NodeLabels(n)
		for _, key := range keys() {
			value := labels[key]
			if key == scheduler.KeyNode {
				value = uid
			}
			places = append(places, key+"="+value)
		}
		return places
	}
}

// maxTries bounds for how many replicas a tick searches all nodes for a successor's place,
// and maxPlaces for how many more it checks only the replica's own node, which is cheaper.
const (
	maxTries  = 16
	maxPlaces = 1024
)

// replace stops the first outdated replica whose successor would then find a node: an old
// version that serves is better than a new one that cannot start. Replicas of one revision
// on one node make the same room, so it tries only one of them. It reports whether one stops.
func (t *tick) replace(w *v1.Workload, outdated []string) bool {
	tried := map[[2]string]bool{} // by node and revision
	for _, uid := range outdated {
		old := t.snap.Replica(uid)
		room := [2]string{old.GetSpec().GetNodeUid(), old.GetSpec().GetRevisionUid()}
		if tried[room] {
			continue
		}
		if len(tried) == maxTries+maxPlaces {
			break
		}
		tried[room] = true
		if t.hasSuccessor(w, old, len(tried) > maxTries) {
			t.succeed(w, old)
			return true
		}
	}
	if len(outdated) > 0 {
		t.blocked(w)
	}
	return false
}

// blocked makes a workload wait for a change that could help it.
func (t *tick) blocked(w *v1.Workload) {
	uid := w.GetMetadata().GetUid()
	t.left.Waiting[uid] = true
	revision, err := t.cluster.Revision(t.snap, w.GetStatus().GetRevisionUid())
	if err == nil && (len(revision.Preferences.Affinity)+len(revision.Preferences.Spread) > 0 || revision.Priority > spec.DefaultPriority) {
		t.left.Watching[uid] = true
	}
}

// hasSuccessor reports whether a replica of the current revision would find a node, or fit
// on the old one's, in its place.
func (t *tick) hasSuccessor(w *v1.Workload, old *v1.Replica, there bool) bool {
	revision, err := t.cluster.Revision(t.snap, w.GetStatus().GetRevisionUid())
	if err != nil || t.awaitsSecret(w.GetStatus().GetRevisionUid()) != "" {
		return false
	}
	ask := placement.AskFor(revision, []*v1.Replica{old}, nil)
	if there {
		ask.Pinned, ask.On = true, []string{old.GetSpec().GetNodeUid()}
	}
	plan := t.cluster.View.Plan(scheduler.Request{Asks: []scheduler.Ask{ask}, Without: []string{old.GetMetadata().GetUid()}})
	return len(plan.Unplaced) == 0
}

func (t *tick) remove(w *v1.Workload) {
	t.removeReleases(w)
	t.finished[w.GetMetadata().GetUid()] = true
	t.batch.DeleteWorkload(t.snap, w)
	t.event(w, "Deleted", "", state.SeverityInfo)
}

// stop asks the node to stop a replica. A replica without a node has stopped at once.
func (t *tick) stop(old *v1.Replica) {
	t.stopped[old.GetMetadata().GetUid()] = true
	if old.GetSpec().GetDesired() == spec.DesiredStopped || !t.take(old.GetSpec().GetWorkloadUid()) {
		return
	}
	t.announceStay(old)
	r := proto.CloneOf(old)
	r.Spec.Desired, r.Spec.ReservedNodeUid = spec.DesiredStopped, ""
	if r.GetSpec().GetNodeUid() == "" {
		r.Status.Phase, r.Status.Reason = spec.PhaseStopped, "" // it waits for nothing any more
		r.Status.EndTime = timestamppb.New(t.now)
	}
	t.stops = append(t.stops, r)
}

// lose gives up a replica on a node that is offline or removed.
func (t *tick) lose(old *v1.Replica, why string) {
	if !t.take(old.GetSpec().GetWorkloadUid()) {
		return
	}
	r := proto.CloneOf(old)
	r.Status.Phase = spec.PhaseLost
	r.Status.Reason = why
	r.Status.EndTime = timestamppb.New(t.now)
	t.losses = append(t.losses, r)
}

// finishLosses writes the lost replicas. It comes last, because it advances the marks that
// other parts of the batch check.
func (t *tick) finishLosses() {
	for _, r := range t.losses {
		t.batch.Update(r, r.GetMetadata().GetVersion())
		t.event(r, "Lost", r.GetStatus().GetReason(), state.SeverityWarning)
	}
}

func (t *tick) newReplica(w *v1.Workload) *v1.Replica {
	uid := t.newUID()
	r := &v1.Replica{
		ApiVersion: spec.APIVersion,
		Kind:       "Replica",
		Metadata: &v1.Metadata{
			Uid:       uid,
			Name:      replicaName(w.GetMetadata().GetName(), uid),
			Namespace: w.GetMetadata().GetNamespace(),
			Labels:    w.GetMetadata().GetLabels(), // neither changes any more
		},
		Spec: &v1.ReplicaSpec{
			WorkloadUid: w.GetMetadata().GetUid(),
			Workload:    w.GetMetadata().GetName(),
			RevisionUid: w.GetStatus().GetRevisionUid(),
			Revision:    w.GetStatus().GetRevision(),
			Desired:     spec.DesiredRunning,
		},
		Status: &v1.ReplicaStatus{Phase: spec.PhasePending},
	}
	if w.GetSpec().GetSingleton() {
		r.Spec.Epoch = nextEpoch(t.snap)
	}
	return r
}

// replicaName is the workload's name with the random end of the uid, which has no dash.
func replicaName(workload, uid string) string {
	return fmt.Sprintf("%s-%s", workload, uid[len(uid)-8:])
}

// waits adds a replica without a node to those to be placed. It skips outdated replicas,
// which are about to stop, successors whose predecessor has not ended, and those that wait for
// a time.
func (t *tick) waits(r *v1.Replica) {
	if r.GetSpec().GetNodeUid() != "" || spec.Ended(r.GetStatus().GetPhase()) ||
		r.GetSpec().GetDesired() == spec.DesiredStopped || t.stopped[r.GetMetadata().GetUid()] || placement.Awaits(t.snap, r) {
		return
	}
	if t.runningAs(r) == nil {
		return
	}
	if t.stored(r) && !t.admit(r) {
		return
	}
	t.unplaced[r.GetMetadata().GetUid()] = r
}

func (t *tick) stored(r *v1.Replica) bool { return r.GetMetadata().GetVersion() != 0 }

func (t *tick) put(old, r *v1.Replica) {
	if t.stored(old) {
		t.batch.Update(r, old.GetMetadata().GetVersion())
		return
	}
	t.batch.Create(r)
}

func (t *tick) event(about state.Object, reason, message, severity string) {
	t.batch.Create(state.NewEvent(t.newUID(), t.now, about, severity, reason, message, "scheduler"))
}
