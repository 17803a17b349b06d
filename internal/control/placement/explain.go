package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// maxNodes bounds the listed nodes that would take a replica, and those that refuse
	// it, unless the caller asks for all.
	maxNodes = 20
	// maxGroups bounds the groups of replicas, because each is checked against all nodes.
	// maxGroupsOfAll is the bound if the caller asks for all.
	maxGroups, maxGroupsOfAll = 20, 1000
	// maxNames bounds the replicas of a group that are listed by name.
	maxNames = 10
)

// Explanation judges every node for a workload, and says why its replicas are where they
// are. It computes this afresh, as the replicas would be placed today: only today's reasons
// can be acted on, and storing reasons for millions of replicas would cost more than
// computing them. The scores of the newest decisions are remembered as well, see Decisions.
//
// It reads only the snapshot and blocks nothing. If nodeUID is given, the answer is about
// that node only; all lists every node.
func (p Queries) Explanation(snap *state.Snapshot, workloadUID, nodeUID string, all bool) (*v1.Explanation, error) {
	w := snap.Workload(workloadUID)
	c := NewModel(snap)
	revision, err := c.Revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil, fmt.Errorf("explain workload %s: %w", w.GetMetadata().GetName(), err)
	}
	x := &explainer{decisions: p.Decisions, snap: snap, cluster: c, workload: w, revision: revision, only: nodeUID, all: all}
	x.secret = AwaitsSecret(snap, snap.Revision(w.GetStatus().GetRevisionUid()), time.Now())
	x.sort()
	return x.answer(), nil
}

// explainer is one explanation in progress.
type explainer struct {
	decisions *Decisions

	snap     *state.Snapshot
	cluster  *Model
	workload *v1.Workload
	revision *scheduler.Revision
	only     string // uid of the only node to report
	all      bool

	// placed replicas have a node: away ones an offline one, outdated ones another revision
	// than the current one. waiting replicas have no node. The loop will create missing
	// replicas, and covers in place of those away if they fit somewhere.
	placed, away, outdated, waiting []*v1.Replica
	// successors have no node yet and get that of their predecessors.
	successors      []*v1.Replica
	missing, covers int
	// on lists the nodes that a daemon's replicas are bound to, without the held ones.
	on []string
	// each describes the nodes of a daemon, by uid.
	each map[string]daemonNode

	outlook outlook
	// secret says which secret new replicas wait for.
	secret string
}

// sort classifies the live replicas, oldest first.
func (x *explainer) sort() {
	var replicas []rollout.Replica
	for _, r := range ByUID(x.snap, x.workload.GetMetadata().GetUid()) {
		one := rollout.ReplicaFromProto(r)
		one.Away = Away(x.snap, r)
		one.Patient = one.Away && time.Now().Before(LostAt(x.snap, x.workload, r))
		replicas = append(replicas, one)
		current := r.GetSpec().GetRevisionUid() == x.workload.GetStatus().GetRevisionUid()
		switch {
		case !Wanted(r):
			continue // it has ended, or is about to
		case Awaits(x.snap, r):
			x.successors = append(x.successors, r)
			continue
		case r.GetSpec().GetNodeUid() == "":
			if current { // others are about to be stopped
				x.waiting = append(x.waiting, r)
			}
			continue
		case one.Away:
			x.away = append(x.away, r)
		case !current:
			x.outdated = append(x.outdated, r)
		}
		x.placed = append(x.placed, r)
	}
	x.predict(replicas)
}

// predict computes what the loop will create for the workload, by kind.
func (x *explainer) predict(replicas []rollout.Replica) {
	w := x.workload
	switch w.GetSpec().GetKind() {
	case spec.KindCron:
	case spec.KindDaemon:
		d, _ := x.cluster.DaemonOf(w, x.revision)
		d.Replicas = replicas
		missing := rollout.NextOfDaemon(d).Create
		x.missing = len(missing)
		x.on = slices.Concat(OnlyNodes(slices.DeleteFunc(slices.Clone(x.waiting), func(r *v1.Replica) bool { return awaitsRoom(x.snap, r) })), missing)
	case spec.KindJob:
		job := JobOf(x.snap, w)
		job.Replicas = replicas
		step := rollout.NextOfJob(job, time.Time{}) // ignoring the backoff after a failure
		x.missing, x.covers = step.Create, step.Cover
	default:
		step := rollout.Next(InputOf(w, replicas))
		x.missing, x.covers = step.Create, step.Cover
	}
}

// awaitsRoom reports whether a replica gets room as soon as others have ended.
func awaitsRoom(snap *state.Snapshot, r *v1.Replica) bool {
	return Promised(snap, r) != "" || Awaits(snap, r)
}

func (x *explainer) answer() *v1.Explanation {
	x.outlook = x.plan()
	answer := &v1.Explanation{
		Namespace: x.workload.GetMetadata().GetNamespace(), Name: x.workload.GetMetadata().GetName(),
		Revision: x.workload.GetStatus().GetRevision(), Quota: x.outlook.quota,
	}
	var help func() []string
	if x.workload.GetSpec().GetKind() == spec.KindDaemon {
		help = x.judgeEach(answer)
	} else {
		help = x.judgeAll(answer)
	}
	x.explainPlaced(answer)
	x.explainWaiting(answer)
	x.explainSuccessors(answer)
	answer.Summary = x.summary(answer)
	answer.Help = help() // last, because it changes the view
	return answer
}

// judgeAll ranks all nodes, and returns a function that computes what would help.
func (x *explainer) judgeAll(answer *v1.Explanation) (help func() []string) {
	question := scheduler.Question{Revision: x.revision, Most: maxNodes}
	inPlaceOf := func(old *v1.Replica) {
		answer.About = "the successor of " + old.GetMetadata().GetName() + ", in its place"
		question.Without = []string{old.GetMetadata().GetUid()}
	}
	answer.About = "one more replica"
	switch {
	case len(x.waiting)+x.missing > 0:
		answer.About = "a replica that has no node"
		if held := making(x.snap, x.workload.GetMetadata().GetUid()); len(held) == len(x.waiting)+x.missing {
			question.Without = held[:1] // room reserved for the replica must not block the replica itself
		}
	case x.covers > 0:
		answer.About = "a replacement for " + x.away[0].GetMetadata().GetName() + ", whose node is offline"
	case len(x.successors) > 0:
		inPlaceOf(Predecessor(x.snap, x.successors[0]))
	case len(x.outdated) > 0:
		inPlaceOf(x.outdated[0])
	}
	switch {
	case x.only != "":
		question.Most, question.Nodes = scheduler.NoNodes, []string{x.only}
	case x.all:
		question.Most = 0
	}
	e := x.cluster.View.Explain(question)
	answer.Strategy, answer.Weights, answer.Levels = string(e.Strategy), weightsProto(e.Weights), levels(&e)
	answer.Quota = cmp.Or(answer.Quota, e.Quota)
	answer.NodeCount, answer.TakingCount, answer.YieldingCount = int32(e.All), int32(e.Taking), int32(e.Yielding)
	for k := range e.Nodes {
		answer.Nodes = append(answer.Nodes, x.node(&e, k))
	}
	for _, g := range e.Groups {
		answer.Refused = append(answer.Refused, &v1.RefusalGroup{Filter: g.Filter, Count: int32(g.Count), Node: g.NodeName, Reason: g.Example})
	}
	return func() []string {
		if answer.GetQuota() == "" && (x.outlook.unplaced == 0 || len(x.outlook.Placements) == 0) {
			return e.Help
		}
		first := x.quotaHelp(answer.GetQuota(), question.Without)
		return append(first, x.helpAfter(scheduler.Question{Revision: x.revision, Without: question.Without, Most: scheduler.NoNodes})...)
	}
}

func levels(e *scheduler.Explanation) []string {
	if !e.LevelsNodes {
		return e.Levels
	}
	return append(slices.Clone(e.Levels), scheduler.KeyNode)
}

// node describes one node.
func (x *explainer) node(e *scheduler.Explanation, k int) *v1.NodeExplanation {
	j := &e.Nodes[k]
	described := &v1.NodeExplanation{Node: j.NodeName, Rank: int32(j.Rank), Score: scoreProto(j)}
	for _, r := range j.Refusals {
		described.Refusals = append(described.Refusals, &v1.Refusal{Filter: r.Filter, Reason: r.Reason})
	}
	for _, p := range j.Preemptions {
		victim := x.snap.Replica(p.Replica)
		described.Displaces = append(described.Displaces, &v1.Displaced{
			Replica: victim.GetMetadata().GetName(), Namespace: victim.GetMetadata().GetNamespace(), Workload: p.Name, Priority: int32(p.Priority),
		})
	}
	if k+1 < len(e.Nodes) && j.Rank > 0 && e.Nodes[k+1].Rank == j.Rank+1 {
		described.BeforeNext = e.Why(j, &e.Nodes[k+1])
	}
	return described
}
