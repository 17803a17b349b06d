package replicas

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	missing, covers                 int
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
		x.on = slices.Concat(onlyNodes(slices.DeleteFunc(slices.Clone(x.waiting), reserved)), missing)
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

// reserved reports whether room is being made for a replica.
func reserved(r *v1.Replica) bool { return r.GetSpec().GetReservedNodeUid() != "" }

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
	answer.Summary = x.summary(answer)
	answer.Help = help() // the last, because it changes the view
	return answer
}

// judgeAll puts all nodes in order, and returns what says what would help.
func (x *inquiry) judgeAll(answer *v1.Explanation) (help func() []string) {
	question := scheduler.Question{Revision: x.revision, Most: toldNodes}
	answer.About = "one more replica"
	switch {
	case len(x.waiting)+x.missing > 0:
		answer.About = "a replica that has no node"
	case x.covers > 0:
		answer.About = "a replacement for " + x.away[0].GetMetadata().GetName() + ", whose node is offline"
	case len(x.outdated) > 0:
		old := x.outdated[0].GetMetadata()
		answer.About = "the successor of " + old.GetName() + ", in its place"
		question.Without = []string{old.GetUid()}
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

// explainPlaced says of the replicas that have a node why they are there.
func (x *inquiry) explainPlaced(answer *v1.Explanation) {
	type place struct{ node, revision string }
	groups := map[place][]*v1.Replica{}
	for _, r := range x.placed {
		if at := (place{r.GetSpec().GetNodeUid(), r.GetSpec().GetRevisionUid()}); x.only == "" || x.only == at.node {
			groups[at] = append(groups[at], r)
		}
	}
	order := slices.SortedFunc(maps.Keys(groups), func(a, b place) int {
		first, second := groups[a][0].GetSpec(), groups[b][0].GetSpec()
		return cmp.Or(cmp.Compare(first.GetNode(), second.GetNode()), cmp.Compare(first.GetRevision(), second.GetRevision()))
	})
	most := toldGroups
	if x.all {
		most = mostGroups
	}
	answer.ReplicasLeftOut = int32(max(0, len(order)-most))
	for _, at := range order[:min(most, len(order))] {
		answer.Replicas = append(answer.Replicas, x.standing(groups[at]))
	}
}

// standing says why replicas of one revision are on their node: what holds for one
// of them holds for all.
func (x *inquiry) standing(group []*v1.Replica) *v1.ReplicaExplanation {
	first := group[0]
	told := groupOf(group)
	if score, known := x.decisions.find(first.GetMetadata().GetUid(), first.GetSpec().GetNodeUid()); known {
		told.PlacedScore = scoreOf(&score)
	}
	s, known := x.cluster.view.Review(first.GetMetadata().GetUid())
	if !known {
		told.Reason = "what its revision asks for cannot be read any more, so nothing can be said about it"
		return told
	}
	told.Rank, told.Score = int32(s.Own.Rank), scoreProto(&s.Own)
	if x.each != nil {
		told.Rank = min(told.Rank, 1) // no other node is for it
		g := x.each[first.GetSpec().GetNodeUid()]
		if told.Reason = g.sentence(Away(x.snap, first)); !g.Keeps {
			return told
		}
		return x.outdatedToo(told, first)
	}
	if s.Own.Rank != 1 && s.Other.Rank == 1 {
		told.Better = s.Other.NodeName
	}
	told.Reason = reviewSentence(&s, Away(x.snap, first))
	return x.outdatedToo(told, first)
}

func (x *inquiry) outdatedToo(told *v1.ReplicaExplanation, first *v1.Replica) *v1.ReplicaExplanation {
	if first.GetSpec().GetRevisionUid() != x.workload.GetStatus().GetRevisionUid() {
		told.Reason += "; it is outdated and will be replaced"
	}
	return told
}

const notMoved = "; what runs is not moved for that"

func reviewSentence(s *scheduler.Review, away bool) string {
	own := &s.Own
	switch {
	case away:
		return own.NodeName + " " + own.String() + "; it is replaced as soon as another node can take it"
	case own.Rank == 0 && s.Other.Rank == 0:
		return fmt.Sprintf("%s would refuse it today, as every node would: %s%s", own.NodeName, own.String(), notMoved)
	case own.Rank == 0:
		return fmt.Sprintf("%s would refuse it today: %s; %s would be chosen%s", own.NodeName, own.String(), s.Other.NodeName, notMoved)
	case own.Rank > 1:
		return fmt.Sprintf("%s would be chosen today, of %d nodes that would take it: %s%s", s.Other.NodeName, s.Taking, s.Why(&s.Other, own), notMoved)
	case s.Other.Rank == 0:
		return own.NodeName + " is the only node that would take it"
	default:
		return fmt.Sprintf("%s is the best of %d nodes that would take it: %s", own.NodeName, s.Taking, s.Why(own, &s.Other))
	}
}

// outlook is what would become of those that have no node, were they placed now.
type outlook struct {
	scheduler.Plan
	count, unplaced int
	quota           string // what of it is used up, if that keeps some away
}

// plan places what has no node.
func (x *inquiry) plan() outlook {
	o := outlook{count: len(x.waiting) + x.missing + x.covers}
	if o.count == 0 {
		return o
	}
	held := making(x.snap, x.workload.GetMetadata().GetUid())
	ask := scheduler.Ask{Revision: x.revision, Count: o.count - len(held), Held: held}
	if ask.Pinned = x.workload.GetSpec().GetKind() == spec.KindDaemon; ask.Pinned {
		ask.On = x.on
	}
	o.Plan = x.cluster.view.Plan(scheduler.Request{Asks: []scheduler.Ask{ask}})
	for _, u := range o.Unplaced {
		o.unplaced += u.Count
		o.quota = cmp.Or(o.quota, u.Quota)
	}
	return o
}

// explainWaiting says of the replicas that have no node where they will go, or why
// nowhere. Those of services are for no node in particular.
func (x *inquiry) explainWaiting(answer *v1.Explanation) {
	switch {
	case x.outlook.count == 0:
	case x.only == "":
		answer.Replicas = append(answer.Replicas, x.expect(x.waiting, x.outlook.count, x.outlook.Plan))
	case x.workload.GetSpec().GetKind() == spec.KindDaemon:
		if waiting, plan, some := x.onlyHere(); some {
			answer.Replicas = append(answer.Replicas, x.expect(waiting, 1, plan))
		}
	}
}

// expect says what a plan has for replicas without a node, of which some may have
// to be made yet.
func (x *inquiry) expect(waiting []*v1.Replica, count int, plan scheduler.Plan) *v1.ReplicaExplanation {
	told := groupOf(waiting)
	told.Count, told.Revision = int32(count), x.workload.GetStatus().GetRevision()
	var texts []string
	if n := len(plan.Placements); n > 0 {
		texts = append(texts, fmt.Sprintf("%d %s a place: %s", n, verb(n, count), placesOf(plan)))
	}
	if n := len(plan.Held); n > 0 {
		texts = append(texts, fmt.Sprintf("room is being made for %d on %s", n, strings.Join(nodesOf(plan.Held), ", ")))
	}
	for _, u := range plan.Unplaced {
		texts = append(texts, u.Summary())
	}
	told.Reason = strings.Join(texts, "; ")
	return told
}

// helpAfter is what would help on the nodes when all have their place that find
// one, whatever the quota.
func (x *inquiry) helpAfter(question scheduler.Question) []string {
	for _, gone := range x.outlook.Preemptions {
		x.cluster.view.RemoveReplica(gone.Replica)
	}
	for i, p := range x.outlook.Placements {
		x.cluster.view.ApplyReplica(fmt.Sprint("planned ", i), x.revision, p.Node)
	}
	x.cluster.view.SetQuota(x.workload.GetMetadata().GetNamespace(), scheduler.Quota{})
	return x.cluster.view.Explain(question).Help
}

// nodesOf are the nodes on which others end to make room.
func nodesOf(held []scheduler.Held) (names []string) {
	for _, h := range held {
		names = append(names, h.NodeName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// placesOf are the nodes of a plan with how many replicas each gets, in the order
// in which they are chosen first.
func placesOf(plan scheduler.Plan) string {
	counts := map[string]int{}
	var order []string
	for _, p := range plan.Placements {
		if counts[p.NodeName]++; counts[p.NodeName] == 1 {
			order = append(order, p.NodeName)
		}
	}
	left := max(0, len(order)-toldNames)
	var texts []string
	for _, name := range order[:len(order)-left] {
		text := name
		if counts[name] > 1 {
			text += fmt.Sprintf(" (%d)", counts[name])
		}
		texts = append(texts, text)
	}
	if left > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", left))
	}
	return strings.Join(texts, ", ")
}

func groupOf(group []*v1.Replica) *v1.ReplicaExplanation {
	told := &v1.ReplicaExplanation{Count: int32(len(group))}
	for _, r := range group[:min(toldNames, len(group))] {
		told.Replicas = append(told.Replicas, r.GetMetadata().GetName())
	}
	if len(group) > 0 {
		told.Node, told.Revision = group[0].GetSpec().GetNode(), group[0].GetSpec().GetRevision()
	}
	return told
}

// summary is how the workload stands, in a sentence.
func (x *inquiry) summary(answer *v1.Explanation) string {
	var parts []string
	nodeless, unplaced := len(x.waiting)+x.missing, x.outlook.unplaced
	switch total := len(x.placed) + nodeless; {
	case total == 0:
		parts = append(parts, "no replica runs or waits")
	case x.missing == total:
		parts = append(parts, counted(total-unplaced, total)+" would have a node")
	default:
		parts = append(parts, fmt.Sprintf("%s %s a node", counted(len(x.placed), total), verb(len(x.placed), total)))
	}
	if without := min(nodeless, unplaced); without > 0 {
		parts = append(parts, fmt.Sprintf("%d %s no place", without, verb(without, without)))
	}
	if len(x.away) > 0 {
		text := fmt.Sprintf("%d on a node that is offline", len(x.away))
		if x.covers > 0 {
			text += stuck(answer, "a replacement")
		}
		parts = append(parts, text)
	}
	if len(x.outdated) > 0 {
		text := fmt.Sprintf("%d outdated", len(x.outdated))
		if nodeless+len(x.away) == 0 {
			text += stuck(answer, "a successor")
		}
		parts = append(parts, text)
	}
	if answer.GetQuota() != "" {
		text := answer.GetQuota()
		if nodeless+x.covers+len(x.outdated) == 0 {
			text = "for one more, " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// stuck continues a sentence about replicas if nothing can take their place.
func stuck(answer *v1.Explanation, what string) string {
	switch {
	case answer.GetEveryNode():
		if n := answer.GetSuitingCount() - answer.GetTakingCount() - answer.GetYieldingCount(); n > 0 {
			return fmt.Sprintf(", and on %d of the nodes %s cannot be placed", n, what)
		}
		return ""
	case answer.GetTakingCount()+answer.GetYieldingCount() == 0:
		return ", and no node can take " + what
	case answer.GetQuota() != "":
		return ", and the quota has no room for " + what
	}
	return ""
}

// verb is for so many of others: 1 of 3 has, 0 of 3 have, 0 of 1 has.
func verb(n, of int) string {
	if n == 1 || of == 1 {
		return "has"
	}
	return "have"
}

// counted is such as "2 of 3 replicas".
func counted(n, of int) string {
	if of == 1 {
		return fmt.Sprintf("%d of 1 replica", n)
	}
	return fmt.Sprintf("%d of %d replicas", n, of)
}

func scoreProto(j *scheduler.Judgement) *v1.NodeScore {
	if j.Rank == 0 || len(j.Refusals) > 0 {
		return nil
	}
	score := scoreOf(&j.Score)
	score.Same = j.Same
	return score
}

func scoreOf(s *scheduler.Score) *v1.NodeScore {
	return &v1.NodeScore{
		Affinity: s.Affinity, Avoided: s.Avoided, SameNode: s.SameNode, Total: float64(s.Total) / 1e6,
		Locality: part(s.Locality), Reliability: part(s.Reliability), Cost: part(s.Cost), Utilization: part(s.Utilization), Network: part(s.Network),
	}
}

func weightsProto(w scheduler.Weights) *v1.ScoreWeights {
	return &v1.ScoreWeights{
		Locality: new(part(w.Locality)), Reliability: new(part(w.Reliability)), Cost: new(part(w.Cost)),
		Utilization: new(part(w.Utilization)), Network: new(part(w.Network)),
	}
}

// part is what thousandths are of 1.
func part(thousandths int32) float64 { return float64(thousandths) / 1000 }
