package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
)

// Timing of votes.
const (
	pilotUpdate    = 500 * time.Millisecond
	pilotReconcile = time.Second
	// A server that lags by this much, or has not heard from the leader for so long, is not fit to vote.
	maxLag     = 2000
	maxSilence = 2 * time.Second
	// DefaultStable is how long a server must be fit before it gets a vote, and DefaultDead how long one must be dead
	// before it is removed.
	DefaultStable = time.Second
	DefaultDead   = 10 * time.Minute
	// DefaultFirstLook is how long a new leader may take to hear from the others.
	DefaultFirstLook = 3 * time.Second

	metaZone = "zone"
)

// Member is a server that should take part.
type Member struct {
	ID, Name, Address, Zone string
	// Alive is whether gossip sees it.
	Alive bool
}

// PilotOptions say which servers should take part.
type PilotOptions struct {
	// Voters is how many servers should vote.
	Voters func() int
	// Members are all servers that should take part, this one included.
	Members func() []Member
	// Progress asks another server how far it is.
	Progress func(ctx context.Context, id string) (Progress, error)
	// Stable, Dead and FirstLook default to DefaultStable, DefaultDead and DefaultFirstLook.
	Stable, Dead, FirstLook time.Duration
}

func (o *PilotOptions) validate() error {
	if o.Voters == nil || o.Members == nil || o.Progress == nil {
		return errors.New("a pilot needs Voters, Members and Progress")
	}
	if o.Stable == 0 {
		o.Stable = DefaultStable
	}
	if o.Dead == 0 {
		o.Dead = DefaultDead
	}
	if o.FirstLook == 0 {
		o.FirstLook = DefaultFirstLook
	}
	return nil
}

// Health is what the leader knows of a server.
type Health struct {
	ID      string
	Healthy bool
	// Unknown is whether the leader is new and has not heard from it yet.
	Unknown bool
	// Reason says why it is not healthy.
	Reason string
	// Lag is by how many entries it is behind.
	Lag uint64
	// LastTerm and LastIndex are of the newest entry in its log, 0 if unknown.
	LastTerm, LastIndex uint64
	// Silent is whether it did not answer the last question.
	Silent bool
	// Full is whether its disk has no room for changes.
	Full bool
	// Skew is by how much its clock is ahead of the leader's.
	Skew time.Duration
}

// pilot keeps the right servers voting while this one leads.
type pilot struct {
	*Group
	PilotOptions

	mu    sync.Mutex
	began time.Time            // when this server began to look
	met   map[string]bool      // servers that have been healthy since then
	since map[string]time.Time // when a member was first seen dead
	said  map[string]Progress  // the latest answers of servers that still answer
	last  uint64               // newest entry of this server when they were asked
	// answered holds the latest answer of each server, even if it no longer answers.
	answered map[raft.ServerID]lastAnswer
}

// lastAnswer is a server's answer, and its time.
type lastAnswer struct {
	at    time.Time
	stats autopilot.ServerStats
}

func newPilot(g *Group, o PilotOptions) *pilot {
	return &pilot{
		Group: g, PilotOptions: o, began: time.Now(),
		met: map[string]bool{}, since: map[string]time.Time{}, said: map[string]Progress{}, answered: map[raft.ServerID]lastAnswer{},
	}
}

// Pilot manages members and votes while this server leads, until ctx ends. It adds servers that should take part,
// without a vote. Those that have caught up get a vote, up to the desired number. It removes servers that should not
// take part, and those that are long dead, if the rest is a majority.
func (g *Group) Pilot(ctx context.Context, o PilotOptions) error {
	if err := o.validate(); err != nil {
		return err
	}
	p := newPilot(g, o)
	auto := autopilot.New(g.raft, p, autopilot.WithPromoter(promoter{p}), autopilot.WithLogger(newHCLogger(g.logger)),
		autopilot.WithUpdateInterval(pilotUpdate), autopilot.WithReconcileInterval(pilotReconcile))
	auto.Start(ctx)
	defer func() {
		<-auto.Stop()
		g.health.Store(nil)
	}()
	ticker := time.NewTicker(pilotUpdate)
	defer ticker.Stop()
	for {
		p.yieldWhenFull(ctx)
		if err := p.updateMembers(ctx); err != nil && ctx.Err() == nil {
			g.logger.Warn("the servers that take part could not be changed", "error", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// yieldWhenFull transfers leadership when there is no room for changes here, to the most up-to-date server that has
// room. If none has, this one keeps leading: it refuses changes as all others would, and answers reads.
func (p *pilot) yieldWhenFull(ctx context.Context) {
	full := p.room.check(0)
	if full == nil {
		return
	}
	to := p.withRoom()
	if to == "" {
		return
	}
	p.logger.Warn("another server should lead", "reason", full, "server", to)
	if err := p.Transfer(ctx, to); err != nil && ctx.Err() == nil {
		p.logger.Warn("no other server took over", "error", err)
	}
}

// withRoom is the most up-to-date voter that reports room; empty if there is none.
func (p *pilot) withRoom() (furthest string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.Servers() {
		said, answers := p.said[s.ID]
		if !s.Voter || s.ID == p.id || !answers || said.Full {
			continue
		}
		if furthest == "" || said.LastIndex > p.said[furthest].LastIndex {
			furthest = s.ID
		}
	}
	return furthest
}

// updateMembers adds members that do not take part yet, and removes servers that are not members.
func (p *pilot) updateMembers(ctx context.Context) error {
	taking := p.Servers()
	members := p.Members()
	if len(members) == 0 {
		return nil // the state is not there yet
	}
	for _, m := range members {
		if m.Alive && m.Address != "" && p.missingOrMoved(taking, m) {
			p.logger.Info("server takes part", "server", m.ID, "name", m.Name, "address", m.Address)
			if err := p.Add(ctx, Server{ID: m.ID, Address: m.Address}); err != nil {
				return err
			}
		}
	}
	for _, s := range taking {
		if s.ID == p.id || slices.ContainsFunc(members, func(m Member) bool { return m.ID == s.ID }) {
			continue
		}
		p.logger.Info("server takes part no more", "server", s.ID, "address", s.Address)
		if err := p.Remove(ctx, s.ID); err != nil {
			return err
		}
	}
	return nil
}

// missingOrMoved reports whether raft does not know a member, or has an old address of this very server. The known address of
// another server stays unchanged: raft 1.8.0 reads it without a lock while it sends, and needs it only for servers that
// the state does not know.
func (p *pilot) missingOrMoved(taking []Server, m Member) bool {
	i := slices.IndexFunc(taking, func(s Server) bool { return s.ID == m.ID })
	return i < 0 || m.ID == p.id && taking[i].Address != m.Address
}

func (p *pilot) now() time.Time { return time.Now() }

func (p *pilot) desired() int { return max(1, p.Voters()) }

// longDead reports whether a dead server should be removed.
func (p *pilot) longDead(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, dead := p.since[id]
	return dead && p.now().Sub(since) >= p.Dead
}

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	return &autopilot.Config{
		CleanupDeadServers: true, LastContactThreshold: maxSilence, MaxTrailingLogs: maxLag,
		ServerStabilizationTime: p.Stable,
	}
}

// KnownServers implements autopilot.ApplicationIntegration.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	known := map[raft.ServerID]*autopilot.Server{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.withSelf(p.Members()) {
		status := autopilot.NodeAlive
		if m.Alive || m.ID == p.id {
			delete(p.since, m.ID)
		} else {
			status = autopilot.NodeFailed
			if _, known := p.since[m.ID]; !known {
				p.since[m.ID] = p.now()
			}
		}
		known[raft.ServerID(m.ID)] = &autopilot.Server{
			ID: raft.ServerID(m.ID), Name: m.Name, Address: raft.ServerAddress(m.Address), NodeStatus: status,
			Meta: map[string]string{metaZone: m.Zone}, IsLeader: m.ID == p.id, RaftVersion: int(raft.ProtocolVersionMax),
		}
	}
	return known
}

// withSelf adds this server to the members if the state does not name it yet: the leader exists.
func (p *pilot) withSelf(members []Member) []Member {
	if slices.ContainsFunc(members, func(m Member) bool { return m.ID == p.id }) {
		return members
	}
	self := Member{ID: p.id, Name: p.id, Alive: true}
	for _, s := range p.Servers() {
		if s.ID == p.id {
			self.Address = s.Address
		}
	}
	return append(members, self)
}

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p *pilot) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	stats := map[raft.ServerID]*autopilot.ServerStats{}
	said := map[string]Progress{}
	last := p.raft.LastIndex() // before asking: no server is behind what came later
	var mu sync.Mutex
	var asking sync.WaitGroup
	for id := range servers {
		asking.Go(func() {
			progress, err := p.Group.Progress(), error(nil)
			if string(id) != p.id {
				progress, err = p.PilotOptions.Progress(ctx, string(id))
			}
			if err != nil {
				p.logger.Debug("server does not say how far it is", "server", id, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			said[string(id)] = progress
			stats[id] = &autopilot.ServerStats{LastContact: progress.LastContact, LastTerm: progress.LastTerm, LastIndex: progress.LastIndex}
		})
	}
	asking.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said, p.last = said, last
	p.rememberAnswers(servers, stats)
	return stats
}

// rememberAnswers remembers the answers of servers, and treats long-silent ones as cut off from the leader. Autopilot would
// trust the last answer as long as gossip sees the server as alive, which may be many seconds after several have ended.
// A single answer may be lost.
func (p *pilot) rememberAnswers(servers map[raft.ServerID]*autopilot.Server, stats map[raft.ServerID]*autopilot.ServerStats) {
	now := p.now()
	for id := range servers {
		if said := stats[id]; said != nil {
			p.answered[id] = lastAnswer{now, *said}
			continue
		}
		if last, ever := p.answered[id]; ever && now.Sub(last.at) > maxSilence {
			last.stats.LastContact = now.Sub(last.at)
			stats[id] = &last.stats
		}
	}
}

// answerOf is a server's answer to the last question, and whether it answered.
func (p *pilot) answerOf(id string) (said Progress, answers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	said, answers = p.said[id]
	return said, answers
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p *pilot) NotifyState(s *autopilot.State) {
	var all []Health
	p.mu.Lock()
	defer p.mu.Unlock()
	said, last := p.said, p.last
	for id, one := range s.Servers {
		h := Health{ID: string(id), Healthy: one.Health.Healthy, Full: said[string(id)].Full, Skew: said[string(id)].Skew}
		h.LastTerm, h.LastIndex = one.Stats.LastTerm, one.Stats.LastIndex
		_, answers := said[h.ID]
		h.Silent = !answers
		if last > one.Stats.LastIndex {
			h.Lag = last - one.Stats.LastIndex
		}
		switch {
		case h.Healthy:
			p.met[h.ID] = true
		case !p.met[h.ID] && p.now().Sub(p.began) < p.FirstLook:
			h.Unknown, h.Reason = true, "unknown: the leader has just begun to check"
		default:
			h.Reason = reasonOf(one, h.Silent, h.Lag)
		}
		all = append(all, h)
	}
	p.health.Store(&all)
}

func reasonOf(s *autopilot.ServerState, silent bool, lag uint64) string {
	switch {
	case s.Server.NodeStatus != autopilot.NodeAlive:
		return "the other servers do not hear of it"
	case silent, s.Stats.LastIndex == 0:
		return "it does not answer"
	case s.Stats.LastContact < 0 || s.Stats.LastContact > maxSilence:
		return "it does not hear of the leader"
	case lag > maxLag:
		return fmt.Sprintf("it is %d entries behind", lag)
	}
	return "it has not caught up yet"
}

// RemoveFailedServer implements autopilot.ApplicationIntegration. The server stays a member: if it comes back, it is
// added again.
func (p *pilot) RemoveFailedServer(s *autopilot.Server) {
	p.logger.Warn("a server that is dead votes no more", "server", s.ID, "name", s.Name)
	p.start(func() {
		if err := p.raft.RemoveServer(s.ID, 0, 0).Error(); err != nil {
			p.logger.Warn("a dead server could not be let go", "server", s.ID, "error", err)
		}
	})
}

// Health returns what the leader knows of the members; nothing on other servers.
func (g *Group) Health() []Health {
	if all := g.health.Load(); all != nil {
		return *all
	}
	return nil
}
