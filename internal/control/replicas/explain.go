package replicas

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
	// toldNodes are how many nodes that would take a replica are told of, and how
	// many that refuse, unless all are asked for.
	toldNodes = 20
	// toldGroups bounds the groups of replicas, because each asks about all nodes;
	// mostGroups does so if all are asked for.
	toldGroups, mostGroups = 20, 1000
	// toldNames are how many replicas of a group are named.
	toldNames = 10
)

// Explanation judges every node for a workload, and says of its replicas why they
// are where they are. That is worked out anew, as the replicas would be placed today:
// what speaks for their nodes now is what can be acted on, and to keep it for
// millions of replicas would cost more than to ask again. The scores of the newest
// decisions are remembered beside it, see Decisions.
//
// It reads the snapshot alone and holds up nobody. A node of which the uid is given
// is the only one that is told of; all tells of every node.
func (p Placement) Explanation(snap *state.Snapshot, workloadUID, nodeUID string, all bool) (*v1.Explanation, error) {
	w := snap.Workload(workloadUID)
	c := newCluster(snap)
	revision, err := c.revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil, fmt.Errorf("explain workload %s: %w", w.GetMetadata().GetName(), err)
	}
	x := &inquiry{decisions: p.Decisions, snap: snap, cluster: c, workload: w, revision: revision, only: nodeUID, all: all}
	x.sort()
	return x.answer(), nil
}

// inquiry is one explanation under way.
type inquiry struct {
	decisions *Decisions

	snap     *state.Snapshot
	cluster  *cluster
	workload *v1.Workload
	revision *scheduler.Revision
	only     string // uid of the only node to tell of
	all      bool

	// placed are those with a node, away those of them on an offline one, and
	// outdated those of another revision than the current one; waiting have no
	// node. missing will be made by the loop, covers in place of those that are away
	// if they have a place.
	placed, away, outdated, waiting []*v1.Replica
	// heirs have no node either, but that of their predecessors soon.
	heirs           []*v1.Replica
	missing, covers int
	// on are the nodes that those of a daemon are for, but for held ones.
	on []string
	// each is what the nodes are to a daemon, by uid.
	each map[string]ground

	outlook outlook
}

// sort looks at the replicas that live, the oldest first.
func (x *inquiry) sort() {
	var replicas []rollout.Replica
	for _, r := range byUID(x.snap, x.workload.GetMetadata().GetUid()) {
		one := rollout.ReplicaFromProto(r)
		one.Away = Away(x.snap, r)
		replicas = append(replicas, one)
		current := r.GetSpec().GetRevisionUid() == x.workload.GetStatus().GetRevisionUid()
		switch {
		case !wanted(r):
			continue // it has ended, or is about to
		case awaits(x.snap, r):
			x.heirs = append(x.heirs, r)
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
	x.foresee(replicas)
}

// foresee finds what the loop will make for the workload, by its kind.
func (x *inquiry) foresee(replicas []rollout.Replica) {
	w := x.workload
	switch w.GetSpec().GetKind() {
	case spec.KindCron:
	case spec.KindDaemon:
		d, _ := x.cluster.daemonOf(w, x.revision)
		d.Replicas = replicas
		missing := rollout.NextOfDaemon(d).Create
		x.missing = len(missing)
		x.on = slices.Concat(onlyNodes(slices.DeleteFunc(slices.Clone(x.waiting), func(r *v1.Replica) bool { return expectant(x.snap, r) })), missing)
	case spec.KindJob:
		job := jobOf(x.snap, w)
		job.Replicas = replicas
		step := rollout.NextOfJob(job, time.Time{}) // whatever pause there is after a failure
		x.missing, x.covers = step.Create, step.Cover
	default:
		step := rollout.Next(inputOf(w, replicas))
		x.missing, x.covers = step.Create, step.Cover
	}
}

// expectant reports whether there is room for a replica as soon as others have ended.
func expectant(snap *state.Snapshot, r *v1.Replica) bool {
	return promised(snap, r) != "" || awaits(snap, r)
}

func (x *inquiry) answer() *v1.Explanation {
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
	x.explainHeirs(answer)
	answer.Summary = x.summary(answer)
	answer.Help = help() // the last, because it changes the view
	return answer
}

// judgeAll puts all nodes in order, and returns what says what would help.
func (x *inquiry) judgeAll(answer *v1.Explanation) (help func() []string) {
	question := scheduler.Question{Revision: x.revision, Most: toldNodes}
	inPlaceOf := func(old *v1.Replica) {
		answer.About = "the successor of " + old.GetMetadata().GetName() + ", in its place"
		question.Without = []string{old.GetMetadata().GetUid()}
	}
	answer.About = "one more replica"
	switch {
	case len(x.waiting)+x.missing > 0:
		answer.About = "a replica that has no node"
		if held := making(x.snap, x.workload.GetMetadata().GetUid()); len(held) == len(x.waiting)+x.missing {
			question.Without = held[:1] // what is promised to it is not in its own way
		}
	case x.covers > 0:
		answer.About = "a replacement for " + x.away[0].GetMetadata().GetName() + ", whose node is offline"
	case len(x.heirs) > 0:
		inPlaceOf(predecessor(x.snap, x.heirs[0]))
	case len(x.outdated) > 0:
		inPlaceOf(x.outdated[0])
	}
	switch {
	case x.only != "":
		question.Most, question.Nodes = scheduler.NoNodes, []string{x.only}
	case x.all:
		question.Most = 0
	}
	e := x.cluster.view.Explain(question)
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

// node is what is told of one node.
func (x *inquiry) node(e *scheduler.Explanation, k int) *v1.NodeExplanation {
	j := &e.Nodes[k]
	told := &v1.NodeExplanation{Node: j.NodeName, Rank: int32(j.Rank), Score: scoreProto(j)}
	for _, r := range j.Refusals {
		told.Refusals = append(told.Refusals, &v1.Refusal{Filter: r.Filter, Reason: r.Reason})
	}
	for _, p := range j.Preemptions {
		victim := x.snap.Replica(p.Replica)
		told.Displaces = append(told.Displaces, &v1.Displaced{
			Replica: victim.GetMetadata().GetName(), Namespace: victim.GetMetadata().GetNamespace(), Workload: p.Name, Priority: int32(p.Priority),
		})
	}
	if k+1 < len(e.Nodes) && j.Rank > 0 && e.Nodes[k+1].Rank == j.Rank+1 {
		told.BeforeNext = e.Why(j, &e.Nodes[k+1])
	}
	return told
}
