package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// outlook is where the replicas without a node would go if they were placed now.
type outlook struct {
	scheduler.Plan
	count, unplaced int
	quota           string // the exhausted part of the quota, if that blocks some
}

// plan places the replicas without a node.
func (x *explainer) plan() outlook {
	o := outlook{count: len(x.waiting) + x.missing + x.covers}
	if o.count == 0 {
		return o
	}
	if x.secret != "" {
		o.unplaced = o.count
		return o
	}
	held := making(x.snap, x.workload.GetMetadata().GetUid())
	ask := scheduler.Ask{Revision: x.revision, Count: o.count - len(held), Held: held}
	if ask.Pinned = x.workload.GetSpec().GetKind() == spec.KindDaemon; ask.Pinned {
		ask.On = x.on
	}
	o.Plan = x.cluster.View.Plan(scheduler.Request{Asks: []scheduler.Ask{ask}})
	for _, u := range o.Unplaced {
		o.unplaced += u.Count
		o.quota = cmp.Or(o.quota, u.Quota)
	}
	return o
}

// explainWaiting says where the replicas without a node will go, or why they fit nowhere.
// Those of services are bound to no node.
func (x *explainer) explainWaiting(answer *v1.Explanation) {
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

// expect says what a plan has for replicas without a node. Some of them may not exist yet.
func (x *explainer) expect(waiting []*v1.Replica, count int, plan scheduler.Plan) *v1.ReplicaExplanation {
	described := groupOf(waiting)
	described.Count, described.Revision = int32(count), x.workload.GetStatus().GetRevision()
	var texts []string
	if x.secret != "" {
		texts = append(texts, x.secret)
	}
	if n := len(plan.Placements); n > 0 {
		texts = append(texts, fmt.Sprintf("%d %s a place: %s", n, verb(n, count), placesOf(plan)))
	}
	if n := len(plan.Held); n > 0 {
		texts = append(texts, fmt.Sprintf("room is being made for %d on %s", n, strings.Join(nodesOf(plan.Held), ", ")))
	}
	for _, u := range plan.Unplaced {
		texts = append(texts, u.Summary())
	}
	if now := time.Now(); len(waiting) > 0 && !slices.ContainsFunc(waiting, func(r *v1.Replica) bool { return !HeldBack(now, r) }) {
		texts = append([]string{HeldReason(waiting[0])}, texts...)
	}
	described.Reason = strings.Join(texts, "; ")
	return described
}

// helpAfter computes what would help on the nodes after every replica that fits has its
// place, ignoring the quota.
func (x *explainer) helpAfter(question scheduler.Question) []string {
	for _, gone := range x.outlook.Preemptions {
		x.cluster.View.RemoveReplica(gone.Replica)
	}
	for i, p := range x.outlook.Placements {
		x.cluster.View.ApplyReplica(fmt.Sprint("planned ", i), x.revision, p.Node)
	}
	x.cluster.View.SetQuota(x.workload.GetMetadata().GetNamespace(), scheduler.Quota{})
	return x.cluster.View.Explain(question).Help
}

// nodesOf lists the nodes on which replicas end to make room.
func nodesOf(held []scheduler.Held) (names []string) {
	for _, h := range held {
		names = append(names, h.NodeName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// placesOf lists the nodes of a plan with the number of replicas for each, in the order in
// which the plan first chooses them.
func placesOf(plan scheduler.Plan) string {
	counts := map[string]int{}
	var order []string
	for _, p := range plan.Placements {
		if counts[p.NodeName]++; counts[p.NodeName] == 1 {
			order = append(order, p.NodeName)
		}
	}
	left := max(0, len(order)-maxNames)
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

// explainSuccessors lists the replicas that wait for their predecessors.
func (x *explainer) explainSuccessors(answer *v1.Explanation) {
	for _, r := range x.successors {
		if x.only != "" && Predecessor(x.snap, r).GetSpec().GetNodeUid() != x.only {
			continue
		}
		described := groupOf([]*v1.Replica{r})
		described.Count, described.Revision, described.Reason = 1, r.GetSpec().GetRevision(), r.GetStatus().GetReason()
		answer.Replicas = append(answer.Replicas, described)
	}
}
