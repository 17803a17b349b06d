package consensus

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
	"pgregory.net/rapid"
)

// parse reads servers such as "L1a V2b n3", a letter each for the leader, a fit voter (V), one that is away (v), a
// server without a vote that is fit (N) or not (n); then its number, and its zone if known.
func parse(t *testing.T, text string) []candidate {
	t.Helper()
	var all []candidate
	for word := range strings.FieldsSeq(text) {
		c := candidate{id: raft.ServerID(word[1:2]), zone: word[2:]}
		switch word[0] {
		case 'L':
			c.leader, c.voter, c.fit = true, true, true
		case 'V':
			c.voter, c.fit = true, true
		case 'v':
			c.voter = true
		case 'N':
			c.fit = true
		case 'n':
		default:
			t.Fatalf("what is %s?", word)
		}
		all = append(all, c)
	}
	return all
}

func TestChooseVoters(t *testing.T) {
	for _, c := range []struct {
		what    string
		desired int
		servers string
		want    string
	}{
		{"a server alone", 3, "L1", "1"},
		{"one that has not caught up waits", 3, "L1 n2", "1"},
		{"one that has votes", 3, "L1 N2", "12"},
		{"up to the desired number", 3, "L1 V2 V3 N4 N5", "123"},
		{"above it votes are taken back, not the leader's", 3, "V1 V2 V3 V4 L5", "125"},
		{"a dead one keeps its vote while no other could have it", 3, "L1 V2 v3 n4", "123"},
		{"and loses it to one who can", 3, "L1 V2 v3 N4", "124"},
		{"zones are spread", 3, "L1a N2a N3b N4c", "134"},
		{"a voter makes room for another zone", 3, "L1a V2a V3b N4c", "134"},
		{"without zones those who vote stay", 3, "L5 V4 V3 N1 N2", "345"},
		{"one zone is as good as another", 3, "L1a V2a V3a N4a", "123"},
		{"five", 5, "L1 V2 V3 N4 N5 N6", "12345"},
		{"none desired is one", 1, "L1 V2 V3", "1"},
	} {
		chosen := chooseVoters(c.desired, parse(t, c.servers))
		var got []string
		for id := range chosen {
			got = append(got, string(id))
		}
		slices.Sort(got)
		if strings.Join(got, "") != c.want {
			t.Errorf("%s: of %s vote %v, want %s", c.what, c.servers, got, c.want)
		}
	}
}

// In any cluster, the leader votes, never more than desired do, no server that is away gets a vote, and no seat stays
// empty that a fit server could have.
func TestVotesAreNeverWasted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		desired := rapid.IntRange(1, 7).Draw(t, "desired")
		n := rapid.IntRange(1, 9).Draw(t, "servers")
		leader := rapid.IntRange(0, n-1).Draw(t, "leader")
		var all []candidate
		fit := 0
		for i := range n {
			c := candidate{
				id: raft.ServerID(fmt.Sprint(i)), zone: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone"),
				voter: rapid.Bool().Draw(t, "voter"), fit: rapid.Bool().Draw(t, "fit"),
			}
			if i == leader {
				c.leader, c.voter, c.fit = true, true, true
			}
			if c.fit {
				fit++
			}
			all = append(all, c)
		}
		chosen := chooseVoters(desired, all)
		if !chosen[all[leader].id] {
			t.Fatal("the leader loses its vote")
		}
		if len(chosen) > desired {
			t.Fatalf("%d vote, %d desired", len(chosen), desired)
		}
		if len(chosen) < min(desired, fit) {
			t.Fatalf("%d vote, though %d are fit and %d desired", len(chosen), fit, desired)
		}
		for _, c := range all {
			if chosen[c.id] && !c.fit && !c.voter {
				t.Fatalf("%+v gets a vote", c)
			}
			if !chosen[c.id] && c.fit {
				for _, other := range all {
					if chosen[other.id] && !other.fit {
						t.Fatalf("%+v has no vote, but %+v has", c, other)
					}
				}
			}
		}
		again := chooseVoters(desired, apply(all, chosen))
		for id := range chosen {
			if !again[id] {
				t.Fatalf("what was chosen does not stay: %v, then %v", chosen, again)
			}
		}
	})
}

// Votes are taken away one after the other, and after each step the healthy voters are still a majority, even if the
// leader does not know yet which of the others are dead. A leader left with the votes of dead servers could neither go
// on nor be replaced.
func TestDemotionsKeepAQuorum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "voters")
		well := rapid.IntRange(n/2+1, n).Draw(t, "well")
		s := &autopilot.State{Servers: map[raft.ServerID]*autopilot.ServerState{}}
		said := map[string]Progress{}
		for i := range n {
			id := fmt.Sprint(n - i)
			one := &autopilot.ServerState{State: autopilot.RaftVoter}
			one.Health.Healthy = i < well || rapid.Bool().Draw(t, "believed")
			if i == 0 {
				one.State = autopilot.RaftLeader
			}
			if i < well {
				said[id] = Progress{}
			}
			s.Servers[raft.ServerID(id)] = one
		}
		desired := rapid.SampledFrom([]int{1, 3, 5, 7}).Draw(t, "desired")
		p := promoter{&pilot{PilotOptions: PilotOptions{Voters: func() int { return desired }}, said: said}}
		demoted := p.CalculatePromotionsAndDemotions(&autopilot.Config{}, s).Demotions
		for i, id := range demoted {
			n--
			if _, answers := said[string(id)]; answers {
				well--
			}
			if well < n/2+1 {
				t.Fatalf("after %v only %d of %d voters are well", demoted[:i+1], well, n)
			}
		}
	})
}

// A voter with a full disk loses its vote to a waiting server that has room, and keeps it otherwise. The leader never
// does: it transfers leadership first.
func TestFullVoterLosesItsVote(t *testing.T) {
	for about, c := range map[string]struct {
		full     []string
		promoted []raft.ServerID
		demoted  []raft.ServerID
	}{
		"all have room":       {nil, nil, nil},
		"a voter is full":     {[]string{"s2"}, []raft.ServerID{"s4"}, []raft.ServerID{"s2"}},
		"both are full":       {[]string{"s2", "s4"}, nil, nil},
		"one waits, full":     {[]string{"s4"}, nil, nil},
		"the leader is":       {[]string{"s1"}, nil, nil},
		"all voters are":      {[]string{"s1", "s2", "s3"}, []raft.ServerID{"s4"}, []raft.ServerID{"s3"}},
		"no server has space": {[]string{"s1", "s2", "s3", "s4"}, nil, nil},
	} {
		now := time.Now()
		s := &autopilot.State{Servers: map[raft.ServerID]*autopilot.ServerState{}}
		p := &pilot{PilotOptions: PilotOptions{Voters: func() int { return 3 }}, said: map[string]Progress{}}
		for id, as := range map[raft.ServerID]autopilot.RaftState{
			"s1": autopilot.RaftLeader, "s2": autopilot.RaftVoter, "s3": autopilot.RaftVoter, "s4": autopilot.RaftNonVoter,
		} {
			s.Servers[id] = &autopilot.ServerState{State: as, Health: autopilot.ServerHealth{Healthy: true, StableSince: now.Add(-time.Hour)}}
			p.said[string(id)] = Progress{Full: slices.Contains(c.full, string(id))}
		}
		got := promoter{p}.CalculatePromotionsAndDemotions(&autopilot.Config{}, s)
		if !slices.Equal(got.Promotions, c.promoted) || !slices.Equal(got.Demotions, c.demoted) {
			t.Errorf("%s: votes are given to %v and taken from %v", about, got.Promotions, got.Demotions)
		}
	}
}

// Its zone would be worth a vote, but it is unknown whether it has room. Votes would go to and fro with every lost
// answer.
func TestSilentFullServerGetsNoVote(t *testing.T) {
	stable := autopilot.ServerHealth{Healthy: true, StableSince: time.Now().Add(-time.Hour)}
	s := &autopilot.State{Servers: map[raft.ServerID]*autopilot.ServerState{}}
	p := &pilot{PilotOptions: PilotOptions{Voters: func() int { return 3 }}, said: map[string]Progress{}}
	for id, as := range map[raft.ServerID]autopilot.RaftState{
		"1a": autopilot.RaftLeader, "2b": autopilot.RaftVoter, "3b": autopilot.RaftVoter, "4c": autopilot.RaftNonVoter,
	} {
		one := &autopilot.ServerState{State: as, Health: stable}
		one.Server.Meta = map[string]string{metaZone: string(id[1:])}
		s.Servers[id] = one
		p.said[string(id)] = Progress{Full: id == "4c"}
	}
	for range 2 {
		if got := (promoter{p}).CalculatePromotionsAndDemotions(&autopilot.Config{}, s); len(got.Promotions)+len(got.Demotions) > 0 {
			t.Errorf("votes are given to %v and taken from %v", got.Promotions, got.Demotions)
		}
		delete(p.said, "4c")
	}
}

// A server's last answer counts for a moment only, and not until gossip notices that it is gone.
func TestSilentVoterLosesItsVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPilot(nil, PilotOptions{})
		servers := map[raft.ServerID]*autopilot.Server{"s1": {}, "never": {}}
		ask := func(said map[raft.ServerID]*autopilot.ServerStats) *autopilot.ServerStats {
			p.rememberAnswers(servers, said)
			return said["s1"]
		}
		ask(map[raft.ServerID]*autopilot.ServerStats{"s1": {LastTerm: 2, LastIndex: 7}})
		time.Sleep(maxSilence)
		if got := ask(map[raft.ServerID]*autopilot.ServerStats{}); got != nil {
			t.Errorf("of one that has missed a question is said %+v", got)
		}
		time.Sleep(time.Millisecond)
		nothing := map[raft.ServerID]*autopilot.ServerStats{}
		if got := ask(nothing); got == nil || got.LastContact <= maxSilence || got.LastTerm != 2 || got.LastIndex != 7 {
			t.Errorf("of one that says nothing any more is said %+v", got)
		}
		if nothing["never"] != nil {
			t.Errorf("of one that never answered is said %+v", nothing["never"])
		}
	})
}

// apply is the result once the chosen servers vote.
func apply(all []candidate, chosen map[raft.ServerID]bool) []candidate {
	after := slices.Clone(all)
	for i := range after {
		after[i].voter = chosen[after[i].id]
	}
	return after
}
