package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
)

// explainPlaced says why the placed replicas are where they are.
func (x *explainer) explainPlaced(answer *v1.Explanation) {
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
	most := maxGroups
	if x.all {
		most = maxGroupsOfAll
	}
	answer.ReplicasLeftOut = int32(max(0, len(order)-most))
	for _, at := range order[:min(most, len(order))] {
		answer.Replicas = append(answer.Replicas, x.standing(groups[at]))
	}
}

// standing says why replicas of one revision are on their node. They share one explanation.
func (x *explainer) standing(group []*v1.Replica) *v1.ReplicaExplanation {
	first := group[0]
	described := groupOf(group)
	if score, known := x.decisions.find(first.GetMetadata().GetUid(), first.GetSpec().GetNodeUid()); known {
		described.PlacedScore = scoreOf(&score)
	}
	s, known := x.cluster.View.Review(first.GetMetadata().GetUid())
	if !known {
		described.Reason = "what its revision asks for cannot be read any more, so nothing can be said about it"
		return described
	}
	described.Rank, described.Score = int32(s.Own.Rank), scoreProto(&s.Own)
	if x.each != nil {
		described.Rank = min(described.Rank, 1) // no other node is possible
		g := x.each[first.GetSpec().GetNodeUid()]
		if described.Reason = g.sentence(Away(x.snap, first)); !g.Keeps {
			return described
		}
		return x.outdatedToo(described, first)
	}
	if s.Own.Rank != 1 && s.Other.Rank == 1 {
		described.Better = s.Other.NodeName
	}
	if why := Stuck(x.snap, x.workload, first); why != "" {
		described.Reason = fmt.Sprintf("%s %s; %s", s.Own.NodeName, s.Own.String(), why)
		return described
	}
	described.Reason = reviewSentence(&s, Away(x.snap, first), x.stays(first, &s))
	return x.outdatedToo(described, first)
}

func (x *explainer) outdatedToo(described *v1.ReplicaExplanation, first *v1.Replica) *v1.ReplicaExplanation {
	if first.GetSpec().GetRevisionUid() != x.workload.GetStatus().GetRevisionUid() {
		described.Reason += "; it is outdated and will be replaced"
	}
	return described
}

const notMoved = "; what runs is not moved for that"

// reviewSentence says whether a node is the best for a replica; stays is why it is not moved if another one is better.
func reviewSentence(s *scheduler.Review, away bool, stays string) string {
	own, unless := &s.Own, ""
	if s.Pushes {
		unless = " without pushing others out"
	}
	switch {
	case away:
		return own.NodeName + " " + own.String() + "; it is replaced as soon as another node can take it"
	case own.Rank == 0 && s.Other.Rank == 0:
		return fmt.Sprintf("%s would refuse it today, as every node would%s: %s%s", own.NodeName, unless, own.String(), stays)
	case own.Rank == 0:
		return fmt.Sprintf("%s would refuse it today: %s; %s would be chosen%s", own.NodeName, own.String(), s.Other.NodeName, stays)
	case own.Rank > 1:
		return fmt.Sprintf("%s would be chosen today, of %d nodes that would take it: %s%s", s.Other.NodeName, s.Taking, s.Why(&s.Other, own), stays)
	case s.Other.Rank == 0:
		return own.NodeName + " is the only node that would take it" + unless
	default:
		return fmt.Sprintf("%s is the best of %d nodes that would take it: %s", own.NodeName, s.Taking, s.Why(own, &s.Other))
	}
}

func groupOf(group []*v1.Replica) *v1.ReplicaExplanation {
	described := &v1.ReplicaExplanation{Count: int32(len(group))}
	for _, r := range group[:min(maxNames, len(group))] {
		described.Replicas = append(described.Replicas, r.GetMetadata().GetName())
	}
	if len(group) > 0 {
		described.Node, described.Revision = group[0].GetSpec().GetNode(), group[0].GetSpec().GetRevision()
	}
	return described
}
