package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/consensus"
)

// crew is a set of servers with a pilot.
type crew struct {
	t       *testing.T
	members map[string]*member
	mu      sync.Mutex
	// known are those that should take part; desired is how many should vote.
	known   []consensus.Member
	desired int
}

// newCrew starts servers; the first one leads and runs the pilot.
func newCrew(t *testing.T, size, desired int) *crew {
	t.Helper()
	first := cluster(t, 1)[0]
	c := &crew{t: t, desired: desired, members: map[string]*member{first.id: first}}
	c.enter(first)
	for number := 2; number <= size; number++ {
		m := newMember(t, number, first.addresses)
		m.open(t)
		c.members[m.id] = m
		c.enter(m)
	}
	c.pilot(first)
	return c
}

// pilot runs until the test ends.
func (c *crew) pilot(first *member) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- first.Pilot(ctx, consensus.PilotOptions{
			Voters: c.voters, Members: c.all, Progress: c.progress, Stable: time.Millisecond, Dead: 200 * time.Millisecond,
		})
	}()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			c.t.Errorf("the pilot ended with %v", err)
		}
	})
}

func (c *crew) enter(m *member) {
	c.known = append(c.known, consensus.Member{ID: m.id, Name: m.id, Address: m.options.Address, Alive: true})
}

func (c *crew) all() []consensus.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.known)
}

func (c *crew) voters() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.desired
}

func (c *crew) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *crew) progress(_ context.Context, id string) (consensus.Progress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.known {
		if one.ID == id && one.Alive {
			return c.members[id].Progress(), nil
		}
	}
	return consensus.Progress{}, fmt.Errorf("server %s is away", id)
}

// dies ends a server, and lets the others notice.
func (c *crew) dies(id string) {
	c.t.Helper()
	c.change(func() {
		for i := range c.known {
			if c.known[i].ID == id {
				c.known[i].Alive = false
			}
		}
	})
	closed(c.t, c.members[id].Consensus)
}

// until waits until so many vote and so many take part without a vote.
func (c *crew) until(voters, others int) []consensus.Server {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Minute)
	defer cancel()
	for {
		servers := c.members["server-1"].Servers()
		v := 0
		for _, s := range servers {
			if s.Voter {
				v++
			}
		}
		if v == voters && len(servers)-v == others {
			return servers
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("the servers are %+v, want %d voters and %d others", servers, voters, others)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Right after a start, the state names no server yet.
func TestLeaderIsHealthyBeforeTheStateNamesIt(t *testing.T) {
	leader := cluster(t, 1)[0]
	nameless := &crew{t: t, desired: 3, members: map[string]*member{leader.id: leader}}
	nameless.pilot(leader)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for leader.Health() == nil {
		select {
		case <-ctx.Done():
			t.Fatal("the pilot never looked")
		case <-time.After(time.Millisecond):
		}
	}
	if h := leader.Health(); len(h) != 1 || !h[0].Healthy || h[0].Reason != "" || h[0].Lag != 0 {
		t.Errorf("the leader knows of itself: %+v", h)
	}
}

// No server lags behind entries that came after the question, least of all the leader, the reference.
func TestEntriesAfterTheQuestionCauseNoLag(t *testing.T) {
	leader := cluster(t, 1)[0]
	lag := consensus.LagOfLeader(t, leader.Consensus, func() {
		if _, err := leader.Propose(t.Context(), numbered(1)); err != nil {
			t.Fatal(err)
		}
	})
	if lag != 0 {
		t.Errorf("the leader is %d entries behind itself", lag)
	}
}

// Only the leader's own address changes in raft: the addresses of others are read all the time.
func TestOnlyTheLeadersOwnAddressChanges(t *testing.T) {
	c := newCrew(t, 3, 3)
	before := map[string]string{}
	for _, s := range c.until(3, 0) {
		before[s.ID] = s.Address
	}
	c.change(func() {
		slices.Reverse(c.known) // the leader is the last one to be looked at
		for i := range c.known {
			c.known[i].Address = "elsewhere-" + c.known[i].ID
		}
	})
	leader := c.members["server-1"]
	var now []consensus.Server
	for !slices.Contains(now, consensus.Server{ID: leader.id, Address: "elsewhere-" + leader.id, Voter: true}) {
		select {
		case <-t.Context().Done():
			t.Fatalf("the leader is not known to be elsewhere: %+v", now)
		case <-leader.Changed():
		case <-time.After(10 * time.Millisecond):
		}
		now = leader.Servers()
	}
	for _, s := range now {
		if s.ID != leader.id && s.Address != before[s.ID] {
			t.Errorf("raft has the address %[2]s of server %[1]s now", s.ID, s.Address)
		}
	}
}

// Servers get a vote up to the desired number, which can change. The others wait.
func TestPilotKeepsTheDesiredNumberOfVoters(t *testing.T) {
	c := newCrew(t, 5, 3)
	leader := c.members["server-1"]
	c.until(3, 2)
	propose(t, leader.Consensus, 0, 5)
	c.change(func() { c.desired = 5 })
	c.until(5, 0)
	propose(t, leader.Consensus, 5, 10)
	c.change(func() { c.desired = 3 })
	c.until(3, 2)
	if !leader.IsLeader() {
		t.Error("the leader lost its vote")
	}
	// A server that is no longer a member takes part no more.
	c.change(func() {
		c.known = slices.DeleteFunc(c.known, func(m consensus.Member) bool { return m.ID == "server-2" })
	})
	servers := c.until(3, 1)
	if slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.ID == "server-2" }) {
		t.Errorf("the servers are %+v", servers)
	}
	propose(t, leader.Consensus, 10, 11)
	if health := leader.Health(); !slices.ContainsFunc(health, func(h consensus.Health) bool { return h.ID == "server-1" && h.Healthy }) {
		t.Errorf("the leader knows %+v", health)
	}
}

// Dead servers are removed while the rest is a majority, and a spare server gets the vote.
func TestDeadServersAreRemoved(t *testing.T) {
	c := newCrew(t, 4, 3)
	leader := c.members["server-1"]
	servers := c.until(3, 1)
	var victim string
	for _, s := range servers {
		if s.Voter && s.ID != "server-1" {
			victim = s.ID
		}
	}
	c.dies(victim)
	servers = c.until(3, 0)
	if slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.ID == victim }) {
		t.Errorf("the dead server is still there: %+v", servers)
	}
	propose(t, leader.Consensus, 0, 5)
}

func TestPilotOptionsAreRequired(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	if err := c.Pilot(t.Context(), consensus.PilotOptions{}); err == nil {
		t.Error("a pilot without anything flies")
	}
}

// A new leader does not judge servers that it has not met yet: when all servers have just started, the others are on
// their way. One that was there and is gone is judged at once.
func TestNewLeaderDoesNotJudgeUnknownServers(t *testing.T) {
	for _, one := range []struct {
		firstLook time.Duration
		want      consensus.Health
	}{
		{time.Hour, consensus.Health{ID: "late", Silent: true, Unknown: true, Reason: "unknown: the leader has just begun to check"}},
		{time.Nanosecond, consensus.Health{ID: "late", Silent: true, Reason: "the other servers do not hear of it"}},
	} {
		look := consensus.Look(cluster(t, 1)[0].Consensus, one.firstLook)
		got := look("late", false)
		if got.LastIndex = 0; got != one.want {
			t.Errorf("within %s one that was never there is %+v, want %+v", one.firstLook, got, one.want)
		}
		if got := look("late", true); !got.Healthy || got.Unknown {
			t.Errorf("within %s one that is there is %+v", one.firstLook, got)
		}
		if got := look("late", false); got.Unknown || got.Reason != "the other servers do not hear of it" {
			t.Errorf("within %s one that has gone is %+v", one.firstLook, got)
		}
	}
}
