package sim

import (
	"maps"
	"slices"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// oracle is what the simulator remembers for its checks; the product does not know it.
type oracle struct {
	// done are the replicas that have done the work of a revision, by its uid.
	done map[string]map[string]bool
	// failed are the failed replicas of jobs, over the outcomes of jobs, both by the uid of
	// the revision; runs are the jobs of crons by owner and name.
	failed map[string]map[string]bool
	over   map[string]string
	runs   map[string]bool
	// cloned are the nodes that existed twice at once: the reports of two machines under
	// one name cannot be checked.
	cloned map[string]bool
	// scored are the last writes of the scores of nodes.
	scored map[string]scored
	// lastWork is when a replica last ended by itself.
	lastWork time.Duration
	// ended are the final phases of deployments, good the revisions of those that succeeded by workload and number, and
	// switched the revisions that got the traffic of a blue-green workload.
	ended    map[string]string
	good     map[string]map[uint64]string
	switched map[string]string
	// fences are the newest epochs of singletons that ran, and released the release jobs that ran.
	fences   map[string]uint64
	released map[string]bool
	// epoch is the newest committed one.
	epoch uint64
	plans int
	paced paced
	// moved are the newest moves of replicas to better nodes, and moves counts all.
	moved paced
	moves int
}

func newOracle() oracle {
	return oracle{
		done: map[string]map[string]bool{}, failed: map[string]map[string]bool{}, over: map[string]string{}, runs: map[string]bool{}, cloned: map[string]bool{},
		scored: map[string]scored{}, ended: map[string]string{}, good: map[string]map[uint64]string{}, switched: map[string]string{},
		fences: map[string]uint64{}, released: map[string]bool{},
	}
}

// needs are what a replica of a revision takes of its node.
type needs = scheduler.Needs

// needsOf reads a revision, which never changes.
func (w *World) needsOf(snap *state.Snapshot, revision string) (needs, bool) {
	if n, known := w.needs[revision]; known {
		return n, true
	}
	r := snap.Revision(revision)
	if r == nil {
		return needs{}, false
	}
	read, err := scheduler.RevisionFromProto(snap.Workload(r.GetSpec().GetWorkloadUid()), r)
	if err != nil {
		w.fail("specs can be read", "%v", err)
	}
	w.needs[revision] = read.Needs
	return read.Needs, true
}

// checkEntry checks the invariants after every entry of the log.
func (w *World) checkEntry(p *proposal, before, after *state.Snapshot) {
	w.oracle.epoch = max(w.oracle.epoch, after.Cluster().GetStatus().GetEpoch())
	w.checkReplacing(p, before)
	w.checkDisruptions(p)
	w.checkPace(p, before, after)
	w.checkMoves(p, before, after)
	w.checkQuotas(p, before, after)
	w.checkSuccession(p, before, after)
	nodes, touched := map[string]bool{}, map[string]bool{}
	for _, change := range p.made() {
		if d := change.GetPut().GetDeployment(); d != nil {
			uid := d.GetMetadata().GetUid()
			touched[d.GetSpec().GetWorkloadUid()] = true
			w.checkDeployment(p, before.Deployment(uid), after.Deployment(uid), after)
		}
		if n := change.GetPut().GetNode(); n != nil {
			w.checkNode(p, before.Node(n.GetMetadata().GetUid()), after.Node(n.GetMetadata().GetUid()))
		}
		if one := change.GetPut().GetWorkload(); one != nil {
			uid := one.GetMetadata().GetUid()
			w.returns(before.Workload(uid), after)
			w.checkWorkload(p, before.Workload(uid), after.Workload(uid))
		}
		if r := change.GetPut().GetReplica(); r != nil {
			uid := r.GetMetadata().GetUid()
			touched[r.GetSpec().GetWorkloadUid()] = true
			w.checkReplica(p, before, before.Replica(uid), after.Replica(uid), after)
			if node := r.GetSpec().GetNodeUid(); node != "" && !nodes[node] {
				nodes[node] = true
				w.checkPromises(after, node)
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(touched)) {
		if one := after.Workload(uid); one != nil {
			w.checkTraffic(after, one)
		}
	}
}

// checkReplica checks one replica that has changed.
func (w *World) checkReplica(p *proposal, snapBefore *state.Snapshot, old, now *v1.Replica, after *state.Snapshot) {
	name, phase := now.GetMetadata().GetName(), now.GetStatus().GetPhase()
	if old != nil && spec.Ended(old.GetStatus().GetPhase()) {
		w.fail("an ended replica stays as it ended", "%s: %s was %s and is %s", p.who, name, old.GetStatus().GetPhase(), phase)
	}
	if old != nil && old.GetSpec().GetNodeUid() != "" && old.GetSpec().GetNodeUid() != now.GetSpec().GetNodeUid() {
		w.fail("a replica stays on its node", "%s: %s", p.who, name)
	}
	if spec.Live(phase) {
		if after.Workload(now.GetSpec().GetWorkloadUid()) == nil {
			w.fail("a live replica belongs to a workload", "%s: %s is %s", p.who, name, phase)
		}
		if after.Revision(now.GetSpec().GetRevisionUid()) == nil {
			w.fail("a live replica has its revision", "%s: %s is %s", p.who, name, phase)
		}
	}
	if old == nil {
		w.checkNew(p, now, after)
	}
	w.remember(now, after)
	if phase == spec.PhaseCompleted || phase == spec.PhaseFailed {
		w.oracle.lastWork = w.now
	}
	switch {
	case old == nil || !wanted(old) || wanted(now) || p.who == "reports":
	case now.GetSpec().GetPreemptedFor() != "":
		w.checkPreempted(p, old, now, snapBefore, after)
	case now.GetSpec().GetStopReason() != "":
		w.checkEvicted(p, old, snapBefore)
	default:
		w.checkGivenUp(p, snapBefore, old)
	}
}

// checkReplacing checks that an update of a service takes away no serving replica that is
// needed. Where there is no room for a new one beside it, it may take away one at a time, and
// none that minAvailable needs.
func (w *World) checkReplacing(p *proposal, before *state.Snapshot) {
	if p.who != "replicas" {
		return
	}
	going := map[string]int{} // by workload
	for _, change := range p.made() {
		r := change.GetPut().GetReplica()
		old := before.Replica(r.GetMetadata().GetUid())
		one := p.base.Workload(r.GetSpec().GetWorkloadUid())
		if one != nil {
			one = p.runningAs(r, target(p.base, one))
		}
		if old == nil || !wanted(old) || r.GetSpec().GetDesired() != spec.DesiredStopped || r.GetSpec().GetStopReason() != "" || !spec.Serves(old) ||
			one == nil || one.GetSpec().GetKind() == spec.KindJob || one.GetSpec().GetKind() == spec.KindDaemon || recreates(p.base, one) ||
			one.GetMetadata().GetDeleteTime() != nil || one.GetStatus().GetRevisionUid() == r.GetSpec().GetRevisionUid() {
			continue
		}
		going[one.GetMetadata().GetUid()]++
	}
	for _, uid := range slices.Sorted(maps.Keys(going)) {
		one := target(p.base, p.base.Workload(uid))
		canary := ""
		if base := p.baseOf(one); base != nil { // canaries make up for nothing
			one, canary = base, one.GetStatus().GetRevisionUid()
		}
		revision := one.GetStatus().GetRevisionUid()
		want := max(0, int(spec.Replicas(one))-len(w.oracle.done[revision]))
		serving, leaving, starting, steady := 0, 0, 0, 0
		for r := range p.base.ReplicasOf(uid) {
			phase := r.GetStatus().GetPhase()
			if r.GetSpec().GetRevisionUid() == canary {
				continue
			}
			if wanted(r) && r.GetSpec().GetRevisionUid() == revision && !placement.Away(p.base, r) && !w.mustLeave(p.base, r) {
				switch {
				case spec.Steady(r):
					steady++
				case !spec.Serves(r) && r.GetSpec().GetNodeUid() != "":
					starting++
				}
			}
			switch {
			case placement.Away(p.base, r):
			case wanted(r) && spec.Serves(r): // also if a taint is tolerated for a while
				serving++
			case (phase == spec.PhaseRunning || phase == spec.PhaseStopping) && r.GetSpec().GetRevisionUid() != revision && !wanted(r):
				leaving++
			}
		}
		left := serving - going[uid]
		switch {
		case left >= want:
		case going[uid]+leaving > 1:
			w.fail("an update keeps the replicas that are needed", "%s: %d of %d serving replicas are stopped while %d are stopping, and %d are wanted",
				one.GetMetadata().GetName(), going[uid], serving, leaving, want)
		case left < int(one.GetSpec().GetMinAvailable()):
			w.fail("an update keeps minAvailable", "%s: %d would serve", one.GetMetadata().GetName(), left)
		case steady == 0 && starting > 0:
			w.fail("a release proves itself first", "%s: %d of %d serving replicas are stopped, %d are wanted, and %d of the new revision do not serve yet",
				one.GetMetadata().GetName(), going[uid], serving, want, starting)
		}
	}
}

func wanted(r *v1.Replica) bool {
	return spec.Live(r.GetStatus().GetPhase()) && r.GetSpec().GetDesired() != spec.DesiredStopped
}

// remember notes finished work.
func (w *World) remember(r *v1.Replica, snap *state.Snapshot) {
	revision := r.GetSpec().GetRevisionUid()
	policy := snap.Revision(revision).GetSpec().GetWorkload().GetRestart().GetPolicy()
	phase := r.GetStatus().GetPhase()
	done := phase == spec.PhaseCompleted && policy != "always" || phase == spec.PhaseFailed && policy == "never"
	if !done || r.GetSpec().GetDesired() == spec.DesiredStopped {
		return
	}
	to := w.oracle.done
	if phase == spec.PhaseFailed && snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec().GetKind() == spec.KindJob {
		to = w.oracle.failed
	}
	if to[revision] == nil {
		to[revision] = map[string]bool{}
	}
	to[revision][r.GetMetadata().GetUid()] = true
}

// returns forgets the work of an earlier revision to which a workload returns, as far as it was deleted meanwhile: only
// the proofs of the current revision are kept.
func (w *World) returns(before *v1.Workload, after *state.Snapshot) {
	revision := after.Workload(before.GetMetadata().GetUid()).GetStatus().GetRevisionUid()
	if before.GetStatus().GetRevisionUid() == revision {
		return
	}
	maps.DeleteFunc(w.oracle.done[revision], func(uid string, _ bool) bool { return after.Replica(uid) == nil })
}

// checkNew checks that finished work is not done again, even if its proof was deleted, and
// that no more replicas are created than wanted.
func (w *World) checkNew(p *proposal, r *v1.Replica, after *state.Snapshot) {
	revision := r.GetSpec().GetRevisionUid()
	one := p.base.Workload(r.GetSpec().GetWorkloadUid())
	if p.who == "replicas" {
		w.checkSize(p, r, one, after)
	}
	if before := target(p.base, one); before != nil && before.GetStatus().GetRevisionUid() == revision {
		one = before // the deployment waits
	}
	one = p.runningAs(r, one)
	if one == nil || one.GetStatus().GetRevisionUid() != revision {
		if p.who != "inherited" {
			w.fail("replicas are made of the current revision", "%s", r.GetMetadata().GetName())
		}
		return
	}
	live := 0
	for other := range after.ReplicasOf(one.GetMetadata().GetUid()) {
		if wanted(other) && other.GetSpec().GetRevisionUid() == revision && !placement.Away(p.base, other) && !w.mayGo(p, after, other) {
			live++
		}
	}
	switch one.GetSpec().GetKind() {
	case spec.KindJob:
		w.checkNewOfJob(p, r, one, live)
		return
	case spec.KindDaemon:
		w.checkNewOfDaemon(p, r, after)
		return
	}
	if p.who == "replicas" {
		w.checkCanaries(p, one, r, live)
	}
	if done := len(w.oracle.done[revision]); live+done > int(spec.Replicas(one)) {
		w.fail("finished work is not repeated", "%s is made, the %dth living one; %d have done their work, %d are wanted",
			r.GetMetadata().GetName(), live, done, spec.Replicas(one))
	}
}

// checkGivenUp checks that a replica is lost only for a reason.
func (w *World) checkGivenUp(p *proposal, before *state.Snapshot, r *v1.Replica) {
	for _, snap := range []*state.Snapshot{before, p.base} {
		one := snap.Workload(r.GetSpec().GetWorkloadUid())
		canary := ""
		if base := p.baseOf(one); base != nil && base.GetStatus().GetRevisionUid() == r.GetSpec().GetRevisionUid() {
			one, canary = base, one.GetStatus().GetRevisionUid()
		}
		switch {
		case one == nil, one.GetMetadata().GetDeleteTime() != nil, one.GetStatus().GetRevisionUid() != r.GetSpec().GetRevisionUid():
			return
		}
		if one.GetSpec().GetKind() != "" && w.mayGoByKind(snap, one, r) {
			return
		}
		have := len(w.oracle.done[r.GetSpec().GetRevisionUid()])
		for other := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
			if wanted(other) && other.GetSpec().GetRevisionUid() != canary {
				have++
			}
		}
		if one.GetSpec().GetKind() == "" && have > int(spec.Replicas(one)) {
			return
		}
		if node := snap.Node(r.GetSpec().GetNodeUid()); r.GetSpec().GetNodeUid() != "" && (node == nil || mayLose(node)) {
			return
		}
	}
	if p.who == "remove "+r.GetSpec().GetNode() || p.who == "inherited" {
		return
	}
	w.fail("a replica is lost only for a reason", "%s gives up %s, which is %s on %s", p.who,
		r.GetMetadata().GetName(), r.GetStatus().GetPhase(), r.GetSpec().GetNode())
}

// mayLose reports whether replicas of a node in this state may be replaced.
func mayLose(n *v1.Node) bool {
	switch n.GetStatus().GetState() {
	case "offline", "failed", "draining":
		return true
	}
	return false
}

// checkPromises checks that a node is not overcommitted, and that one of its ports goes to
// one workload only.
func (w *World) checkPromises(snap *state.Snapshot, uid string) {
	n := snap.Node(uid)
	if n == nil {
		return
	}
	if n.GetStatus().GetCapacity() == nil {
		return
	}
	capacity := scheduler.NodeFromProto(n, spec.NodePolicy{})
	var sum scheduler.Resources
	owners := map[scheduler.Port]string{}
	for r := range snap.ReplicasOn(uid) {
		if spec.Ended(r.GetStatus().GetPhase()) {
			continue
		}
		need, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid())
		if !ok {
			continue
		}
		sum[scheduler.CPU] += need.Resources[scheduler.CPU]
		sum[scheduler.Memory] += need.Resources[scheduler.Memory]
		owner := r.GetSpec().GetWorkloadUid()
		if !need.SharePorts {
			owner = r.GetMetadata().GetUid()
		}
		for _, port := range need.Ports {
			if other, taken := owners[port]; taken && other != owner {
				w.fail("a port is promised once", "port %d of %s to %s too", port.Number, n.GetMetadata().GetName(), r.GetMetadata().GetName())
			}
			owners[port] = owner
		}
	}
	if sum[scheduler.CPU] > capacity.Capacity[scheduler.CPU] || sum[scheduler.Memory] > capacity.Capacity[scheduler.Memory] {
		w.fail("no node is overcommitted", "%s has %+v and has promised %+v", n.GetMetadata().GetName(), capacity.Capacity, sum)
	}
}

// checkPlacement checks that a loop puts replicas only where they may be, in the state that
// it has seen.
func (w *World) checkPlacement(snap *state.Snapshot, b *state.Batch) {
	for _, change := range b.Transaction(w.clock()).GetChanges() {
		r := change.GetPut().GetReplica()
		if r == nil || r.GetStatus().GetPhase() != spec.PhasePlaced || snap.Replica(r.GetMetadata().GetUid()).GetSpec().GetNodeUid() != "" {
			continue
		}
		n := snap.Node(r.GetSpec().GetNodeUid())
		need, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid())
		if !ok || n == nil || !may(n, need) {
			w.fail("replicas go only where they may", "%s to %s, which is %s", r.GetMetadata().GetName(),
				r.GetSpec().GetNode(), n.GetStatus().GetState())
		}
	}
}

// may reports whether a node may take a replica at all, however much is free.
func may(n *v1.Node, need needs) bool {
	for _, rule := range need.Rules {
		if !slices.Contains(rule.Values, n.GetMetadata().GetLabels()[rule.Key]) {
			return false
		}
	}
	return n.GetStatus().GetState() == "ready" && !refusedByTaint(n, need.Tolerations)
}

// checkNodes checks that no node goes offline that is heard, nor by a leader that has not
// listened long enough.
func (w *World) checkNodes(t *term, snap *state.Snapshot, b *state.Batch) {
	for _, change := range b.Transaction(w.clock()).GetChanges() {
		n := change.GetPut().GetNode()
		if n == nil {
			continue
		}
		uid := n.GetMetadata().GetUid()
		was := snap.Node(uid).GetStatus().GetState()
		if was != n.GetStatus().GetState() {
			w.note("nodes: %s is %s, was %s", n.GetMetadata().GetName(), n.GetStatus().GetState(), was)
		}
		if was == "offline" || n.GetStatus().GetState() != "offline" || w.oracle.cloned[uid] {
			continue
		}
		live := spec.LivenessOf(snap.Cluster().GetSpec(), n)
		if s := t.sessions[uid]; s != nil && s.beating && w.now-s.heard() < live.Silence {
			w.fail("no node is offline that is heard", "%s was heard of %s ago", n.GetMetadata().GetName(), w.now-s.heard())
		}
		if m := w.machineOf(uid); m != nil && m.sound && w.now-m.soundSince > soundFor {
			w.fail("a leader change makes no node offline", "%s has been well for %s", m.name, w.now-m.soundSince)
		}
		if !t.met[uid] && w.now-t.since < live.Reconnect {
			w.fail("a new leader gives nodes time to reconnect", "%s, %s after it began to lead", n.GetMetadata().GetName(), w.now-t.since)
		}
	}
}

// soundFor is how long a machine must have been healthy so that only the servers can be the
// reason for its silence: keepalive, retry pause, and the silence before.
const soundFor = 30 * time.Second

func (w *World) machineOf(uid string) *machine {
	for _, m := range w.machines {
		if m.uid == uid && !m.clone {
			return m
		}
	}
	return nil
}

// offlineSlack is the time to commit it.
const offlineSlack = 5 * time.Second

// expectOffline checks that a silent node goes offline in time, as far as there is a leader
// to decide that.
func (w *World) expectOffline(m *machine, quiet int) {
	bound := func() time.Duration {
		live := w.liveness(m)
		// The leader notices a loss of power by the silence, which ends sooner than the session. Not if
		// trouble made it listen anew: then the session may end first, which begins the reconnect window.
		if m.on || w.lastTrouble > m.silentSince {
			return live.Silence + live.Reconnect + offlineSlack
		}
		return max(live.Silence, live.Reconnect) + offlineSlack
	}
	var check func()
	check = func() {
		if quiet != m.quiet || m.clone || m.uid == "" || w.oracle.cloned[m.uid] {
			return
		}
		since := max(m.silentSince, w.lastTrouble)
		if w.leader != nil {
			since = max(since, w.leader.since)
		}
		if left := since + bound() - w.now; left > 0 || w.leader == nil || w.leader.frozen {
			w.after(max(left, time.Second), check)
			return
		}
		n := w.leader.server.store.Snapshot().Node(m.uid)
		if n != nil && !settledAway(n) {
			w.fail("a silent node is offline in time", "%s is %s, and silent since %s", m.name, n.GetStatus().GetState(), m.silentSince)
		}
	}
	w.after(bound(), check)
}

// checkRetention checks that nothing is deleted that is still needed.
func (w *World) checkRetention(now time.Time, snap *state.Snapshot, b *state.Batch) {
	for _, change := range b.Transaction(w.clock()).GetChanges() {
		key := change.GetDelete()
		if job := change.GetPut().GetWorkload(); spec.IsRelease(job) && job.GetMetadata().GetDeleteTime() != nil && rollout.Outcome(job) != "" {
			continue // the loop of replicas deletes it
		}
		if key == nil {
			w.fail("retention only deletes", "%v", change)
			return
		}
		if why := w.needed(now, snap, key); why != "" {
			w.fail("retention never deletes what is needed", "%s %s: %s", key.GetKind(), key.GetUid(), why)
		}
	}
}

// needed says why something must be kept, empty if it need not.
func (w *World) needed(now time.Time, snap *state.Snapshot, key *statev1.Key) string {
	limits := w.limits(snap)
	switch state.Kind(key.GetKind()) {
	case state.KindReplica:
		r := snap.Replica(key.GetUid())
		if spec.Live(r.GetStatus().GetPhase()) {
			return "it is " + r.GetStatus().GetPhase()
		}
		if age := now.Sub(r.GetStatus().GetEndTime().AsTime()); age <= limits.Replicas {
			return "it ended only " + age.String() + " ago"
		}
	case state.KindRevision:
		r := snap.Revision(key.GetUid())
		if snap.Workload(r.GetSpec().GetWorkloadUid()).GetStatus().GetRevisionUid() == key.GetUid() {
			return "it is the current one"
		}
		for one := range snap.ReplicasOf(r.GetSpec().GetWorkloadUid()) {
			if one.GetSpec().GetRevisionUid() == key.GetUid() && spec.Live(one.GetStatus().GetPhase()) {
				return "a replica of it lives"
			}
		}
	case state.KindDeployment:
		d := snap.Deployment(key.GetUid())
		one := snap.Workload(d.GetSpec().GetWorkloadUid())
		if newest := one.GetStatus().GetDeployment(); spec.DeploymentOpen(d) || newest < d.GetSpec().GetNumber()+uint64(limits.Deployments) {
			return "it is open, or they are not too many"
		}
		if rollout.LastGood(snap.DeploymentsOf(one.GetMetadata().GetUid()), anyDeployment) == d {
			return "it is the last good one"
		}
	case state.KindToken:
		if t := snap.Token(key.GetUid()); now.Sub(t.GetSpec().GetExpireTime().AsTime()) <= limits.Tokens {
			return "it is valid, or was until now"
		}
	case state.KindEvent:
		e, _ := snap.Get(state.KindEvent, key.GetUid()).(*v1.Event)
		if now.Sub(e.GetSpec().GetTime().AsTime()) <= limits.Events && snap.Count(state.KindEvent) <= limits.MaxEvents {
			return "it is young, and they are not too many"
		}
	case state.KindReceipt:
		r, _ := snap.Get(state.KindReceipt, key.GetUid()).(*statev1.Receipt)
		if now.Sub(r.GetMetadata().GetCreateTime().AsTime()) <= limits.Receipts {
			return "the call may be repeated"
		}
	case state.KindConfiguration:
		c, _ := snap.Get(state.KindConfiguration, key.GetUid()).(*v1.Configuration)
		if c.GetSpec().GetNumber() == snap.Cluster().GetStatus().GetConfiguration() || snap.Count(state.KindConfiguration) <= limits.Configurations {
			return "it is in force, or they are not too many"
		}
	case state.KindCredential:
	default:
		return "these must not be deleted"
	}
	return ""
}

// newest is the state after the last entry of the log, even if no server that has applied
// it is up.
func (w *World) newest() *state.Snapshot { return w.log.agreed }

// checkStop checks that an agent stops a replica only if that was committed: not because a
// server is away, nor because one has forgotten it.
func (w *World) checkStop(m *machine, r *record) {
	if !r.stop() || r.ended() || m.clone || w.newest().Node(m.uid) == nil { // the replicas of a removed node are lost
		return
	}
	if now := w.newest().Replica(r.uid); now != nil && now.GetSpec().GetNodeUid() == m.uid && wanted(now) {
		w.fail("no wanted replica is stopped", "%s on %s is %s", r.name, m.name, now.GetStatus().GetPhase())
	}
}

// checkAssigned checks that an agent gets only live replicas of its own.
func (w *World) checkAssigned(m *machine, a *v1.Assignment) {
	r := a.GetReplica()
	switch {
	case r.GetSpec().GetNodeUid() != m.uid:
		w.fail("a node gets only its own replicas", "%s to %s", r.GetMetadata().GetName(), m.name)
	case spec.Ended(r.GetStatus().GetPhase()):
		w.fail("a node gets only live replicas", "%s is %s", r.GetMetadata().GetName(), r.GetStatus().GetPhase())
	case a.GetRevision() == nil:
		w.fail("a node gets replicas with their revision", "%s", r.GetMetadata().GetName())
	}
}
