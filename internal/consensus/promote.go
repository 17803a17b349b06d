package consensus

import (
	"cmp"
	"slices"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
)

// candidate is a server with what matters for its vote.
type candidate struct {
	id            raft.ServerID
	zone          string
	voter, leader bool
	// fit means that it answers, is up to date and has room on its disk, and has been so for a while.
	fit bool
	// silent means that it did not answer just now. It may be about to become unfit.
	silent bool
}

// away is whether its vote may be missing when it is needed.
func (c candidate) away() bool { return !c.fit || c.silent }

// chooseVoters returns which servers should vote, at most desired: the leader, then fit servers, spread over zones if
// known. Among equals it prefers current voters and those that answer. If there are too few fit servers, current voters
// keep their votes: an unfit server loses its vote only to a fit one.
func chooseVoters(desired int, all []candidate) map[raft.ServerID]bool {
	chosen := map[raft.ServerID]bool{}
	inZone := map[string]int{}
	rest := slices.Clone(all)
	take := func(i int) {
		chosen[rest[i].id] = true
		if rest[i].zone != "" {
			inZone[rest[i].zone]++
		}
		rest = slices.Delete(rest, i, i+1)
	}
	if i := slices.IndexFunc(rest, func(c candidate) bool { return c.leader }); i >= 0 {
		take(i)
	}
	for len(chosen) < desired {
		best := -1
		for i, c := range rest {
			if (c.fit || c.voter) && (best < 0 || better(c, rest[best], inZone) < 0) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		take(best)
	}
	return chosen
}

// better orders servers by how much their vote is wanted.
func better(a, b candidate, inZone map[string]int) int {
	return cmp.Or(
		before(a.fit, b.fit),
		cmp.Compare(inZone[a.zone], inZone[b.zone]),
		before(a.voter, b.voter),
		before(!a.silent, !b.silent),
		cmp.Compare(a.id, b.id),
	)
}

func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// promoter is the autopilot's promoter: unlike the stock one it stops at the desired number, and takes votes away.
type promoter struct{ pilot *pilot }

var _ autopilot.Promoter = promoter{}

func (promoter) GetServerExt(*autopilot.Config, *autopilot.ServerState) any { return nil }
func (promoter) GetStateExt(*autopilot.Config, *autopilot.State) any        { return nil }
func (promoter) IsPotentialVoter(autopilot.NodeType) bool                   { return true }

func (promoter) GetNodeTypes(_ *autopilot.Config, s *autopilot.State) map[raft.ServerID]autopilot.NodeType {
	types := map[raft.ServerID]autopilot.NodeType{}
	for id := range s.Servers {
		types[id] = autopilot.NodeVoter
	}
	return types
}

// CalculatePromotionsAndDemotions implements autopilot.Promoter.
func (p promoter) CalculatePromotionsAndDemotions(config *autopilot.Config, s *autopilot.State) autopilot.RaftChanges {
	var all []candidate
	stable := s.ServerStabilizationTime(config)
	for id, one := range s.Servers {
		said, answers := p.pilot.answerOf(string(id))
		all = append(all, candidate{
			id: id, zone: one.Server.Meta[metaZone], voter: one.HasVotingRights(), leader: one.State == autopilot.RaftLeader,
			// A server that did not answer may have no room: it gets no vote that would be taken away again.
			fit:    one.Health.Healthy && !said.Full && (one.HasVotingRights() || answers && one.Health.IsStable(p.pilot.now(), stable)),
			silent: !answers,
		})
	}
	// Votes are taken away in this order, first from servers that are away: the rest must be able to agree after every
	// step.
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(before(a.away(), b.away()), cmp.Compare(a.id, b.id)) })
	var changes autopilot.RaftChanges
	chosen := chooseVoters(p.pilot.desired(), all)
	for _, c := range all {
		switch {
		case chosen[c.id] && !c.voter:
			changes.Promotions = append(changes.Promotions, c.id)
		case !chosen[c.id] && c.voter:
			changes.Demotions = append(changes.Demotions, c.id)
		}
	}
	return changes
}

// FilterFailedServerRemovals removes only servers that have been dead for a while: most of them come back. The pilot
// itself removes servers that are not members.
func (p promoter) FilterFailedServerRemovals(_ *autopilot.Config, _ *autopilot.State, failed *autopilot.FailedServers) *autopilot.FailedServers {
	dead := func(servers []*autopilot.Server) []*autopilot.Server {
		return slices.DeleteFunc(slices.Clone(servers), func(s *autopilot.Server) bool { return !p.pilot.longDead(string(s.ID)) })
	}
	return &autopilot.FailedServers{FailedVoters: dead(failed.FailedVoters), FailedNonVoters: dead(failed.FailedNonVoters)}
}
