package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/state"
)

// session is the stream between an agent and the leader. Each side has its own view of
// whether it is open. Messages arrive in order, or when a cut is healed, or never.
type session struct {
	t                 *term
	m                 *machine
	node              string
	atServer, atAgent bool
	up, down          []func()

	// full and dirty are what waits to be sent to the agent.
	full    bool
	dirty   map[string]bool
	sending bool

	// Heartbeats are not events of their own: they come every interval since
	// beatFrom while beating is set.
	beating  bool
	beatFrom time.Duration
	interval time.Duration
	lastBeat time.Duration
}

// Keepalives detect that the other side is gone, at the agent and at the server.
const (
	agentKeepalive  = 6 * time.Second // a heartbeat is not acknowledged for five
	serverKeepalive = 50 * time.Second
)

// latency of one message.
func (w *World) latency() time.Duration {
	if w.tidy {
		return time.Millisecond
	}
	return w.between(200*time.Microsecond, 8*time.Millisecond)
}

// enter begins a session: the agent says hello, the leader listens.
func (t *term) enter(m *machine) *session {
	w := t.w
	s := &session{t: t, m: m, node: m.uid, atServer: true, atAgent: true, dirty: map[string]bool{}, interval: w.liveness(m).Heartbeat}
	if old := t.sessions[m.uid]; old != nil {
		old.closeAtServer("another session of the same node has taken over")
	}
	t.sessions[m.uid] = s
	w.note("%s opens a session", m.name)
	t.met[m.uid] = true
	t.learn(m, t.server.watch.connected(m.uid, m.status(), w.clock()))
	t.loops.nodes.wake()
	t.submit(m.uid, m.everything())
	s.lastBeat = w.now
	s.pulse()
	s.markAll()
	return s
}

// pulse finds out whether heartbeats arrive, after something has changed.
func (s *session) pulse() {
	w := s.t.w
	beats := s.atServer && s.atAgent && !s.t.over && s.m.acts() && s.m.reaches(s.t.server)
	switch {
	case beats == s.beating:
	case beats: // the next one comes within an interval
		s.beating, s.beatFrom = true, w.now+w.between(0, s.interval)
		s.m.quiet++
		w.after(s.beatFrom-w.now, func() {
			if s.beating {
				s.t.loops.nodes.wake()
			}
		})
	default:
		s.lastBeat = s.heard()
		s.beating = false
		s.m.fellSilent()
		if s.atServer && !s.t.over {
			s.t.server.watch.heartbeat(s.node, dawn.Add(s.lastBeat))
			s.t.loops.nodes.wake()
		}
	}
}

// heard is when the last heartbeat came.
func (s *session) heard() time.Duration {
	if !s.beating || s.t.w.now < s.beatFrom {
		return s.lastBeat
	}
	return s.beatFrom + (s.t.w.now-s.beatFrom)/s.interval*s.interval
}

// pace tells the agent how often to report, when that has changed.
func (s *session) pace() {
	interval := s.t.w.liveness(s.m).Heartbeat
	s.pass(&s.down, func() {
		s.m.do(func() {
			if !s.atAgent || interval == s.interval {
				return
			}
			s.lastBeat = s.heard()
			s.interval = interval
			if s.beating { // the next one comes an interval from now
				s.beatFrom = s.t.w.now + interval
			}
		})
	})
}

// hear adds the heartbeats until now to the leader's memory.
func (t *term) hear() {
	for _, uid := range slices.Sorted(maps.Keys(t.sessions)) {
		if s := t.sessions[uid]; s.beating {
			t.server.watch.heartbeat(uid, dawn.Add(s.heard()))
		}
	}
}

// allHeard reports whether every node is heard, or known to be away.
func (t *term) allHeard() bool {
	for n := range t.server.store.Snapshot().Nodes("") {
		s := t.sessions[n.GetMetadata().GetUid()]
		if heard := s != nil && s.beating && t.w.now >= s.beatFrom; !heard && !settledAway(n) {
			return false
		}
	}
	return true
}

func (s *session) mark(replica string) {
	s.dirty[replica] = true
	s.send()
}

func (s *session) markAll() {
	s.full = true
	s.send()
}

// send sends what waits to the agent, as it is at the moment of sending.
func (s *session) send() {
	if s.sending {
		return
	}
	s.sending = true
	s.t.w.after(0, func() {
		s.sending = false
		if !s.atServer || s.t.over {
			return
		}
		snap := s.t.server.store.Snapshot()
		message := assignment.News(snap, s.node, slices.Sorted(maps.Keys(s.dirty)))
		if s.full {
			message = assignment.Full(snap, s.node)
			switch s.t.w.flaw {
			case Forgetful:
				leaveOut(message)
			case Outdated:
				fromThePast(message)
			}
		}
		s.full = false
		clear(s.dirty)
		if message != nil {
			s.pass(&s.down, func() {
				s.m.do(func() {
					if s.atAgent {
						s.m.assign(message)
					}
				})
			})
		}
	})
}

// report delivers the agent's reports.
func (s *session) report(statuses []*v1.ReplicaReport) {
	s.pass(&s.up, func() {
		if s.t.sessions[s.node] == s {
			s.t.submit(s.node, statuses)
		}
	})
}

// pass sends a message.
func (s *session) pass(way *[]func(), deliver func()) {
	*way = append(*way, deliver)
	s.t.w.after(s.t.w.latency(), s.arrive)
}

// arrive delivers what can be delivered now. The rest waits for the cut to be healed, or is
// lost with the session.
func (s *session) arrive() {
	if s.atServer && !s.t.over && s.m.reaches(s.t.server) {
		for _, deliver := range take(&s.up) {
			if s.atServer {
				deliver()
			}
		}
	}
	if s.atAgent && s.m.reachedBy(s.t.server) {
		for _, deliver := range take(&s.down) {
			deliver()
		}
	}
}

func take(way *[]func()) []func() {
	taken := *way
	*way = nil
	return taken
}

// closeAtServer ends the session for the server. The agent learns of it if it can be
// reached.
func (s *session) closeAtServer(why string) {
	if !s.atServer {
		return
	}
	w := s.t.w
	s.lastBeat = s.heard()
	s.atServer = false
	w.note("the leader closes the session of %s: %s", s.m.name, why)
	s.pulse()
	if s.t.sessions[s.node] == s {
		delete(s.t.sessions, s.node)
		s.t.server.watch.disconnected(s.node, w.clock())
		s.t.server.watch.broke(w, s.node)
		s.t.suspect(s.m)
		s.t.loops.nodes.wake()
	}
	if !s.t.server.dark && s.m.reachedBy(s.t.server) {
		w.after(w.latency(), func() { s.m.do(func() { s.closeAtAgent("the server has closed it") }) })
		return
	}
	s.m.keepalive() // it will find out
}

// closeAtAgent ends the session for the agent, which tries to open another.
func (s *session) closeAtAgent(why string) {
	if !s.atAgent {
		return
	}
	w := s.t.w
	s.atAgent = false
	w.note("%s closes its session: %s", s.m.name, why)
	s.pulse()
	if s.m.session == s {
		s.m.session = nil
		s.m.redial()
	}
	if s.m.reaches(s.t.server) {
		w.after(w.latency(), func() { s.closeAtServer("the agent has closed it") })
	}
}

// actEpoch begins another epoch, as restoring a backup does: messages of the one before no
// longer count.
func (w *World) actEpoch(*rand.Rand) {
	wanted := w.newest().Cluster().GetStatus().GetEpoch() + 1
	w.operate("epoch", func(_ *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Cluster()
		if old.GetStatus().GetEpoch() >= wanted {
			return false
		}
		changed := proto.CloneOf(old)
		changed.Status.Epoch = wanted
		b.Update(changed, old.GetMetadata().GetVersion())
		return true
	}, nil)
}

// outdated reports whether assignments are of an older epoch than the agent has seen, which
// it ignores. Its disk remembers the newest.
func (m *machine) outdated(message *v1.Assignments) bool {
	switch {
	case message.GetEpoch() > m.w.oracle.epoch:
		m.w.fail("an epoch is committed before it is announced", "%s gets epoch %d, and %d is the newest", m.name, message.GetEpoch(), m.w.oracle.epoch)
	case message.GetEpoch() < m.epoch:
		m.w.note("%s ignores assignments of epoch %d, because it has seen %d", m.name, message.GetEpoch(), m.epoch)
		return true
	}
	m.epoch = message.GetEpoch()
	return false
}

// fromThePast changes a message to the epoch before.
func fromThePast(message *v1.Assignments) {
	if message.GetEpoch() > 1 {
		message.Epoch--
	}
}
