package sim

import (
	"maps"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// machine is a computer with an agent. The agent's records are on its disk and survive
// everything but a wipe; its programs survive the agent but not a power loss.
type machine struct {
	w *World
	// hostname is its own name, name and uid are those of its node.
	hostname    string
	name, uid   string
	labels      map[string]string
	cpu, memory string
	// clone is whether it is the copy of another one.
	clone bool

	on, agent, hung bool
	// mute is whether a firewall drops probes, broken whether it can run nothing, buried
	// whether it stays off when everything else is healed.
	mute, broken, buried bool
	// cutUp and cutDown are whether what it sends or receives is lost, for one server, or
	// for all of them if cutFrom is nil.
	cutUp, cutDown bool
	cutFrom        *server
	skew           time.Duration
	boot           int

	records map[string]*record
	tasks   map[string]*task
	// epoch is the newest that it has seen.
	epoch uint64

	// life is the number of the agent's process: what another one planned does
	// not happen. What falls into a hang happens after it.
	life     int
	deferred []func()

	session *session
	dialing bool
	tries   int
	pending map[string]bool
	saying  bool
	// leasing is whether the agent asks for leases.
	leasing bool

	// quiet is the number of the current period of silence or noise, see fellSilent; paths
	// is that of the current path to the servers.
	quiet, paths int
	silentSince  time.Duration
	// soundSince is since when it is healthy, if sound is set.
	sound      bool
	soundSince time.Duration
}

// acts reports whether the agent does anything.
func (m *machine) acts() bool { return m.on && m.agent && !m.hung }

// reaches and reachedBy report whether packets arrive.
func (m *machine) reaches(s *server) bool {
	return m.on && !s.dark && !(m.cutUp && (m.cutFrom == nil || m.cutFrom == s))
}

func (m *machine) reachedBy(s *server) bool {
	return m.on && !s.dark && !(m.cutDown && (m.cutFrom == nil || m.cutFrom == s))
}

// do lets the agent do something now, or when it can again, or never.
func (m *machine) do(f func()) {
	switch {
	case !m.on || !m.agent:
	case m.hung:
		life := m.life
		m.deferred = append(m.deferred, func() {
			if life == m.life {
				m.do(f)
			}
		})
	default:
		f()
	}
}

// later is do after a while, by the same process.
func (m *machine) later(d time.Duration, f func()) {
	life := m.life
	m.w.after(d, func() {
		if life == m.life {
			m.do(f)
		}
	})
}

// status is the agent's report about the machine.
func (m *machine) status() *v1.NodeStatus {
	return &v1.NodeStatus{
		Conditions: []*v1.Condition{{Type: "Ready", Status: !m.broken}},
		Capacity:   &v1.NodeResources{Cpu: m.cpu, Memory: m.memory},
		Drivers:    []*v1.DriverInfo{{Name: "container", Version: "sim"}},
		Info:       &v1.NodeInfo{Hostname: m.hostname, Os: "linux"},
	}
}

// changed re-evaluates everything after a fault has begun or ended.
func (m *machine) changed() {
	m.paths++
	if sound := m.acts() && !m.cutUp && !m.cutDown; sound != m.sound {
		m.sound, m.soundSince = sound, m.w.now
	}
	if s := m.session; s != nil {
		s.pulse()
		s.t.w.after(s.t.w.latency(), s.arrive)
	}
	if m.w.leader != nil {
		if s := m.w.leader.sessions[m.uid]; s != nil && s.m == m && s != m.session {
			s.pulse()
		}
		m.w.leader.suspect(m)
		m.w.leader.loops.nodes.wake()
	}
	m.keepalive()
	m.redial()
}

// keepalive lets both sides of a session detect that the other one is gone.
func (m *machine) keepalive() {
	paths := m.paths
	if s := m.session; s != nil {
		m.later(agentKeepalive, func() {
			if paths == m.paths && s.atAgent && !(s.atServer && m.reaches(s.t.server) && m.reachedBy(s.t.server)) {
				s.closeAtAgent("the server does not answer")
			}
		})
	}
	if t := m.w.leader; t != nil {
		if s := t.sessions[m.uid]; s != nil && s.m == m {
			m.w.after(serverKeepalive, func() {
				if paths == m.paths && s.atServer && !(s.atAgent && m.acts() && m.reaches(t.server) && m.reachedBy(t.server)) {
					s.closeAtServer("the agent does not answer")
				}
			})
		}
	}
}

// fellSilent begins to count the silence of a node: it has to be noticed in time.
func (m *machine) fellSilent() {
	m.quiet++
	m.silentSince = m.w.now
	m.w.expectOffline(m, m.quiet)
}

// redial tries to open a session, unless there is one. Without a server to talk to, it
// waits for a notification, which saves the events of futile attempts.
func (m *machine) redial() {
	if m.session != nil || m.dialing || !m.on || !m.agent || m.uid == "" {
		return
	}
	m.dialing = true
	pause := min(5*time.Second, 50*time.Millisecond<<min(m.tries, 7))
	m.tries++
	m.later(pause/2+m.w.between(0, pause/2)+m.w.latency(), func() {
		m.dialing = false
		m.dial()
	})
}

func (m *machine) dial() {
	t := m.w.leader
	if m.session != nil || t == nil || !m.reaches(t.server) || !m.reachedBy(t.server) {
		return
	}
	if t.server.store.Snapshot().Node(m.uid) == nil {
		m.w.note("%s is refused and stops its replicas: its node was removed", m.name)
		for _, uid := range slices.Sorted(maps.Keys(m.records)) {
			m.remove(uid)
		}
		// The operator who removed it may not have learned that the removal was committed.
		uid := m.uid
		m.w.after(10*time.Minute, func() { m.w.startOver(m, uid) })
		return
	}
	clear(m.pending) // hello reports everything
	m.session = t.enter(m)
}

// callAll lets every agent without a session try again.
func (w *World) callAll() {
	for _, m := range w.machines {
		m.redial()
	}
}

// powerOff ends everything on the machine at once.
func (m *machine) powerOff() {
	if !m.on {
		return
	}
	m.w.note("%s loses power", m.name)
	m.on = false
	m.tasks = map[string]*task{}
	m.endAgent()
	m.hung = false
	m.changed()
}

func (m *machine) powerOn() {
	if m.on || m.buried {
		return
	}
	m.w.note("%s boots", m.name)
	m.on = true
	m.boot++
	m.startAgent()
}

// endAgent ends the process. The kernel closes its session if the machine is up.
func (m *machine) endAgent() {
	m.agent = false
	m.life++
	m.deferred, m.dialing, m.saying, m.leasing, m.tries = nil, false, false, false, 0
	s := m.session
	m.session = nil
	if s == nil {
		return
	}
	s.atAgent = false
	s.pulse()
	if m.reaches(s.t.server) {
		m.w.after(m.w.latency(), func() { s.closeAtServer("the agent has ended") })
	}
}

func (m *machine) killAgent() {
	if m.on && m.agent {
		m.w.note("the agent of %s is killed", m.name)
		m.endAgent()
		m.hung = false
		m.changed()
	}
}

// startAgent begins with what is on the disk and what runs.
func (m *machine) startAgent() {
	if !m.on || m.agent {
		return
	}
	m.w.note("the agent of %s starts", m.name)
	m.agent = true
	m.pending = map[string]bool{}
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		m.recover(m.records[uid])
	}
	m.changed()
}

func (m *machine) hang(hung bool) {
	if !m.on || !m.agent || m.hung == hung {
		return
	}
	m.w.note("%s hangs: %t", m.name, hung)
	m.hung = hung
	if !hung {
		deferred := m.deferred
		m.deferred = nil
		for _, f := range deferred {
			f()
		}
	}
	m.changed()
}

func (m *machine) cut(up, down bool, from *server) {
	if m.cutUp == up && m.cutDown == down && m.cutFrom == from {
		return
	}
	m.w.note("%s is cut off: up %t, down %t%s", m.name, up, down, fromWhom(from))
	m.cutUp, m.cutDown, m.cutFrom = up, down, from
	m.changed()
}

func fromWhom(s *server) string {
	if s == nil {
		return ""
	}
	return ", from server " + s.name
}

// breakDown lets the agent report whether it can run anything.
func (m *machine) breakDown(broken bool) {
	m.broken = broken
	m.do(func() {
		if s := m.session; s != nil {
			status := m.status()
			s.pass(&s.up, func() {
				s.t.server.watch.said(s.node, status)
				s.t.loops.nodes.wake()
			})
		}
	})
}

// down stops everything on the machine on purpose: the agent says goodbye.
func (m *machine) down() {
	if !m.acts() {
		return
	}
	m.w.note("%s goes down", m.name)
	if s := m.session; s != nil && m.reaches(s.t.server) && s.atServer {
		s.t.server.watch.goodbye(s.node)
	}
	m.tasks = map[string]*task{}
	m.boot++
	m.endAgent()
	m.changed()
}

// wipe makes a new machine of it.
func (m *machine) wipe() {
	m.buried, m.broken, m.epoch = false, false, 0
	m.tasks, m.records = map[string]*task{}, map[string]*record{}
	m.pending = map[string]bool{}
}
