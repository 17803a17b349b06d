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
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Due says what a tick looks at.
type Due struct {
	// Workloads by uid.
	Workloads map[string]bool
	// Stirred are workloads by uid of which no more has changed than the phase of
	// some replicas: those of which enough is known to say that nothing comes of
	// it are passed over.
	Stirred map[string]bool
	// Nodes by uid whose replicas' workloads are due.
	Nodes map[string]bool
	// Placement asks for another try to place what is pending everywhere,
	// because a node may have room now.
	Placement bool
	// Waiting are workloads with an outdated replica, or one on an offline node,
	// whose successor fits nowhere. A tick reports them; they are due again with the next Placement.
	Waiting map[string]bool
	// Moved is whether a replica came to a node or began to run, or a workload is another
	// one to the rules of others. Watching are those of Waiting that it may help, because they
	// have rules about others or may push them out.
	Moved    bool
	Watching map[string]bool
	// Later are workloads that are due again at a time, whatever happens until then.
	// A tick reports them.
	Later map[string]time.Time
}

// Empty reports whether there is nothing to do.
func (d Due) Empty() bool {
	return len(d.Workloads) == 0 && len(d.Stirred) == 0 && len(d.Nodes) == 0 && !d.Placement
}

// add makes due what is due by another.
func (d *Due) add(o Due) {
	if d.Workloads == nil {
		d.Workloads = map[string]bool{}
	}
	maps.Copy(d.Workloads, o.Workloads)
	if d.Stirred == nil {
		d.Stirred = map[string]bool{}
	}
	maps.Copy(d.Stirred, o.Stirred)
	if d.Nodes == nil {
		d.Nodes = map[string]bool{}
	}
	maps.Copy(d.Nodes, o.Nodes)
	d.Placement = d.Placement || o.Placement // that others have moved is told by the workloads
}

// maxReplicas is how many replicas one tick makes, stops or loses at most, and how
// many of those that are there already it gives a place; maxLabels is how many bytes of
// labels they carry. So the batch is a transaction of reasonable size however large a
// workload is and however many labels it has. Others that write wait for it.
const (
	maxReplicas = 192
	maxLabels   = 2 << 20
)

// room is how many more replicas may be changed, and how many bytes of labels they may
// have.
type room struct{ replicas, labels int }

func newRoom() room { return room{replicas: maxReplicas, labels: maxLabels} }

func (r *room) has(replicas int) bool { return r.replicas >= replicas && r.labels > 0 }

// take takes room for one replica with so many bytes of labels, and give gives it back.
func (r *room) take(labels int) { r.replicas, r.labels = r.replicas-1, r.labels-labels }
func (r *room) give(labels int) { r.replicas, r.labels = r.replicas+1, r.labels+labels }

// tick returns the changes that bring what is due one step nearer to what is
// desired, and an empty batch when nothing is to be done. What did not fit into
// the batch is left for the next tick. newUID is the only source of identity,
// now the only clock. The cluster must be up to date with the snapshot; what stays
// unplaced waits in it for something that helps.
//
// Some may have taken all the room for others in the place of replicas that are away, and
// found none to put them: then those have their turn who had no room beside them. They
// are fewer each time, because those who found no place are not left for another try.
func (c *cluster) tick(now time.Time, snap *state.Snapshot, due Due, newUID func() string) (batch *state.Batch, left Due) {
	c.decided = nil
	left = Due{Waiting: map[string]bool{}, Watching: map[string]bool{}, Later: map[string]time.Time{}}
	for {
		t := newTick(c, now, snap, newUID)
		t.left.Waiting, t.left.Watching, t.left.Later = left.Waiting, left.Watching, left.Later
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
		held: map[string]bool{}, stopped: map[string]bool{}, createdHeirs: map[string]bool{}, unplaced: map[string]*v1.Replica{}, covers: map[string]string{},
		overdue: map[string][]overdue{}, placeless: map[string]bool{},
		left: Due{Workloads: map[string]bool{}},
	}
}

// run looks at what is due.
func (t *tick) run(due Due) {
	for _, uid := range t.cluster.workloads(t.snap, due) {
		if !t.room.has(1) {
			t.left.Workloads[uid] = true
		} else if w := t.snap.Workload(uid); w != nil {
			t.workload(w)
		}
	}
	if due.Placement {
		for r := range t.snap.ReplicasOn("") {
			t.waits(r)
		}
	}
	t.place()
	t.finishCovers()
	t.finishStops()
	t.finishLosses()
}

// workloads are the uids of those to look at, in order.
func (c *cluster) workloads(snap *state.Snapshot, d Due) []string {
	all := maps.Clone(d.Workloads)
	if all == nil {
		all = map[string]bool{}
	}
	for uid := range d.Stirred {
		if !all[uid] && !c.settled(snap.Workload(uid)) {
			all[uid] = true
		}
	}
	for node := range d.Nodes {
		for r := range snap.ReplicasOn(node) {
			if rollout.Live(r.GetStatus().GetPhase()) {
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

	// room is for what is made, stopped or lost, moves for what gets a place; left is
	// what there was none for.
	room, moves room
	left        Due
	// placed are the placements of this tick, in their order, if they are too many
	// to be told one by one.
	placed []placed
	many   bool
	// held are the namespaces in which the tick has placed something.
	held map[string]bool
	// stopped are the replicas that this tick stops, stops what it writes at
	// its end about those that their own workload has no more use for, and losses what
	// it writes there about those that it gives up.
	stopped map[string]bool
	stops   []*v1.Replica
	losses  []*v1.Replica
	// victims are the uids of the replicas that its moves push out.
	victims map[string]bool
	// heirs are those that it makes for the room of others that are on their way out.
	heirs []*v1.Replica
	// createdHeirs are the uids of the heirs that the batch creates already.
	createdHeirs map[string]bool
	// unplaced replicas by uid: new ones, and pending ones that get another try.
	unplaced map[string]*v1.Replica
	// covers are those of them that are only for a replica which may still run, by
	// uid, with the reason: "a is offline".
	covers map[string]string
	// uncovered are workloads for which more of them could be made, and placeless those of
	// which one found no place.
	uncovered []string
	placeless map[string]bool
	// overdue are those that have to go because of a taint and could be covered, by
	// workload.
	overdue map[string][]overdue
}

// later has a workload looked at again at a time, or before.
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
	case spec.KindCron: // has no replicas but those of its jobs
	default:
		t.service(w)
	}
}

func (t *tick) service(w *v1.Workload) {
	if missing, known := t.cluster.lacks(w); known {
		t.add(w, missing, 0, nil)
		return
	}
	have := t.survey(w)
	if have.gone {
		t.remove(w)
		return
	}
	in := inputOf(w, have.replicas)
	in.Places = t.placesToLevel(w)
	step := rollout.Next(in)
	t.takeAway(step.Lose, step.Stop)
	t.passOn(w, step.Succeed)
	t.replace(w, step.Replace)
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		t.waits(r)
	}
	t.add(w, step.Create, step.Cover, have.away)
}

// inputOf is a service with its replicas as the rollout looks at it.
func inputOf(w *v1.Workload, replicas []rollout.Replica) rollout.Input {
	return rollout.Input{
		Desired:  int(w.GetSpec().GetReplicas()),
		Revision: w.GetStatus().GetRevisionUid(),
		Policy:   w.GetSpec().GetRestart().GetPolicy(),
		Deleting: w.GetMetadata().GetDeleteTime() != nil,
		Replicas: replicas,
	}
}

// placesToLevel are the places over which the scheduler levels the replicas of a
// workload. Which they are is found out when somebody asks, for most never do.
func (t *tick) placesToLevel(w *v1.Workload) func(node string) []string {
	keys := sync.OnceValue(func() []string {
		revision, err := t.cluster.revision(t.snap, w.GetStatus().GetRevisionUid())
		if err != nil {
			return nil
		}
		return revision.Wishes.Levels()
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

// maxTries bounds for how many replicas a tick asks whether a successor would find any
// node, and maxPlaces for how many more whether it would fit where they are, which costs less.
const (
	maxTries  = 16
	maxPlaces = 1024
)

// replace stops the first outdated replica whose successor would find a node
// then: an old version that serves is better than a new one that cannot start.
// Those of one revision on one node make the same room, so one of them is tried.
func (t *tick) replace(w *v1.Workload, outdated []string) {
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
			return
		}
	}
	if len(outdated) > 0 {
		t.blocked(w)
	}
}

// blocked has a workload wait for what could help it.
func (t *tick) blocked(w *v1.Workload) {
	uid := w.GetMetadata().GetUid()
	t.left.Waiting[uid] = true
	revision, err := t.cluster.revision(t.snap, w.GetStatus().GetRevisionUid())
	if err == nil && (len(revision.Wishes.Affinity)+len(revision.Wishes.Spread) > 0 || revision.Priority > spec.DefaultPriority) {
		t.left.Watching[uid] = true
	}
}

// hasSuccessor reports whether a replica of the current revision would find a node, or
// have the old one's, in its place.
func (t *tick) hasSuccessor(w *v1.Workload, old *v1.Replica, there bool) bool {
	revision, err := t.cluster.revision(t.snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return false
	}
	ask := askFor(revision, []*v1.Replica{old}, nil)
	if there {
		ask.Pinned, ask.On = true, []string{old.GetSpec().GetNodeUid()}
	}
	plan := t.cluster.view.Plan(scheduler.Request{Asks: []scheduler.Ask{ask}, Without: []string{old.GetMetadata().GetUid()}})
	return len(plan.Unplaced) == 0
}

// remove takes the workload away. Its ended replicas stay as long as their
// logs do.
func (t *tick) remove(w *v1.Workload) {
	for revision := range t.snap.RevisionsOf(w.GetMetadata().GetUid()) {
		t.batch.Delete(state.KindRevision, revision.GetMetadata().GetUid())
	}
	t.batch.DeleteVersion(state.KindWorkload, w.GetMetadata().GetUid(), w.GetMetadata().GetVersion())
	t.event(w, "Deleted", "", state.SeverityInfo)
}

// stop asks the node to stop a replica; one that is on no node has stopped.
func (t *tick) stop(old *v1.Replica) {
	t.stopped[old.GetMetadata().GetUid()] = true
	if old.GetSpec().GetDesired() == rollout.DesiredStopped || !t.take(old.GetSpec().GetWorkloadUid()) {
		return
	}
	r := proto.CloneOf(old)
	r.Spec.Desired, r.Spec.ReservedNodeUid = rollout.DesiredStopped, ""
	if r.GetSpec().GetNodeUid() == "" {
		r.Status.Phase, r.Status.Reason = rollout.PhaseStopped, "" // it waits for nothing any more
		r.Status.EndTime = timestamppb.New(t.now)
	}
	t.stops = append(t.stops, r)
}

// lose gives up a replica on a node that is offline or gone.
func (t *tick) lose(old *v1.Replica, why string) {
	if !t.take(old.GetSpec().GetWorkloadUid()) {
		return
	}
	r := proto.CloneOf(old)
	r.Status.Phase = rollout.PhaseLost
	r.Status.Reason = why
	r.Status.EndTime = timestamppb.New(t.now)
	t.losses = append(t.losses, r)
}

// finishLosses writes down who is given up. It comes last, because it moves the marks that
// other parts of the batch check.
func (t *tick) finishLosses() {
	for _, r := range t.losses {
		t.batch.Update(r, r.GetMetadata().GetVersion())
		t.event(r, "Lost", r.GetStatus().GetReason(), state.SeverityWarning)
	}
}

func (t *tick) newReplica(w *v1.Workload) *v1.Replica {
	uid := t.newUID()
	return &v1.Replica{
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
			Desired:     rollout.DesiredRunning,
		},
		Status: &v1.ReplicaStatus{Phase: rollout.PhasePending},
	}
}

// replicaName is the workload's name with the random end of the uid, which
// has no dash.
func replicaName(workload, uid string) string {
	return fmt.Sprintf("%s-%s", workload, uid[len(uid)-8:])
}

// waits puts a replica that has no node among those to be placed. One of an
// older revision is about to be stopped and needs no node any more, and one that waits
// for its predecessor to end needs none yet.
func (t *tick) waits(r *v1.Replica) {
	if r.GetSpec().GetNodeUid() != "" || rollout.Ended(r.GetStatus().GetPhase()) ||
		r.GetSpec().GetDesired() == rollout.DesiredStopped || t.stopped[r.GetMetadata().GetUid()] || awaits(t.snap, r) {
		return
	}
	if w := t.snap.Workload(r.GetSpec().GetWorkloadUid()); w.GetStatus().GetRevisionUid() != r.GetSpec().GetRevisionUid() {
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
