package replicas

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
)

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
	own, unless := &s.Own, ""
	if s.Pushes {
		unless = " without pushing others out"
	}
	switch {
	case away:
		return own.NodeName + " " + own.String() + "; it is replaced as soon as another node can take it"
	case own.Rank == 0 && s.Other.Rank == 0:
		return fmt.Sprintf("%s would refuse it today, as every node would%s: %s%s", own.NodeName, unless, own.String(), notMoved)
	case own.Rank == 0:
		return fmt.Sprintf("%s would refuse it today: %s; %s would be chosen%s", own.NodeName, own.String(), s.Other.NodeName, notMoved)
	case own.Rank > 1:
		return fmt.Sprintf("%s would be chosen today, of %d nodes that would take it: %s%s", s.Other.NodeName, s.Taking, s.Why(&s.Other, own), notMoved)
	case s.Other.Rank == 0:
		return own.NodeName + " is the only node that would take it" + unless
	default:
		return fmt.Sprintf("%s is the best of %d nodes that would take it: %s", own.NodeName, s.Taking, s.Why(own, &s.Other))
	}
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
