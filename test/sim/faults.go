package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

func draw(c *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(c.Int64N(int64(most-least)+1))
}

// machine draws a machine that has joined.
func (w *World) machine(c *rand.Rand) *machine {
	var joined []*machine
	for _, m := range w.machines {
		if m.uid != "" && !m.clone {
			joined = append(joined, m)
		}
	}
	if len(joined) == 0 {
		return nil
	}
	return joined[c.IntN(len(joined))]
}

// stop ends a server's process and restarts it after a while.
func (w *World) stop(s *server, away time.Duration, how string) {
	if !s.up {
		return
	}
	w.note("server %s %s, for %s", s.name, how, away)
	if how == handsOver && w.leader != nil && w.leader.server == s {
		w.depose(how)
	}
	s.up, s.dark = false, how == losesPower
	if w.leader != nil && w.leader.server == s {
		w.depose(how)
	}
	w.after(away, func() {
		if !s.up {
			w.note("server %s is back", s.name)
			w.start(s)
			w.elect()
		}
	})
	if w.leader != nil && 2*w.serversUp() <= len(w.servers) {
		w.depose("there is no majority")
	}
}

// How a server stops.
const (
	handsOver  = "hands over and stops"
	isKilled   = "is killed"
	losesPower = "loses power"
)

func (w *World) serversUp() int {
	up := 0
	for _, s := range w.servers {
		if s.up && s != w.isolated {
			up++
		}
	}
	return up
}

func (w *World) actLoseLeader(c *rand.Rand) {
	if w.leader != nil {
		w.stop(w.leader.server, draw(c, time.Second, 5*time.Minute), []string{isKilled, losesPower}[c.IntN(2)])
	}
}

func (w *World) actTransfer(*rand.Rand) { w.depose("an operator wants another leader") }

func (w *World) actLoseServer(c *rand.Rand) {
	w.stop(w.servers[c.IntN(len(w.servers))], draw(c, time.Second, time.Hour), handsOver)
}

// actIsolateLeader cuts the leader off from the other servers. Until it notices, it commits
// nothing.
func (w *World) actIsolateLeader(c *rand.Rand) {
	t := w.leader
	if t == nil || len(w.servers) == 1 {
		return
	}
	w.note("server %s is isolated", t.server.name)
	t.frozen, w.isolated = true, t.server
	w.troubled()
	w.disturbed()
	w.after(draw(c, 300*time.Millisecond, time.Second), func() {
		if w.leader == t {
			w.depose("it has no majority")
		}
	})
	w.after(draw(c, 2*time.Second, 5*time.Minute), func() {
		if w.isolated == t.server {
			w.isolated = nil
			w.elect()
		}
	})
}

// actLag makes the loop of replicas miss changes, so that it begins again.
func (w *World) actLag(*rand.Rand) {
	if t := w.leader; t != nil && !t.loops.dead {
		w.note("the loop of replicas has lagged")
		t.loops.replicas.lagged = true
		t.loops.replicas.wake()
	}
}

func (w *World) actSlowDisk(c *rand.Rand) {
	w.slowUntil = w.now + draw(c, time.Second, time.Minute)
	w.lastTrouble = max(w.lastTrouble, w.slowUntil+5*time.Second)
	w.disturbed()
}

func (w *World) actFullDisk(c *rand.Rand) {
	w.fullUntil = w.now + draw(c, time.Second, time.Minute)
	w.lastTrouble = max(w.lastTrouble, w.fullUntil+5*time.Second)
	w.disturbed()
}

func (w *World) actLoseMachine(c *rand.Rand) {
	if m := w.machine(c); m != nil {
		m.powerOff()
		w.after(draw(c, 10*time.Second, time.Hour), m.powerOn)
	}
}

func (w *World) actReboot(c *rand.Rand) {
	if m := w.machine(c); m != nil {
		m.powerOff()
		w.after(draw(c, 2*time.Second, 40*time.Second), m.powerOn)
	}
}

func (w *World) actKillAgent(c *rand.Rand) {
	if m := w.machine(c); m != nil {
		m.killAgent()
		w.after(draw(c, 100*time.Millisecond, 2*time.Minute), m.startAgent)
	}
}

func (w *World) actHang(c *rand.Rand) {
	if m := w.machine(c); m != nil {
		m.hang(true)
		w.after(draw(c, 100*time.Millisecond, 3*time.Minute), func() { m.hang(false) })
	}
}

func (w *World) actCut(c *rand.Rand) {
	m := w.machine(c)
	if c.IntN(3) == 0 {
		m = w.machineWithSingleton(m)
	}
	if m == nil {
		return
	}
	up, down := true, true
	switch c.IntN(4) {
	case 0:
		up = false
	case 1:
		down = false
	}
	var from *server
	if w.leader != nil && c.IntN(3) == 0 {
		from = w.leader.server
	}
	m.cut(up, down, from)
	w.after(draw(c, 100*time.Millisecond, 10*time.Minute), func() { m.cut(false, false, nil) })
}

// machineWithSingleton is the first machine that runs a singleton, or another one if there is none.
func (w *World) machineWithSingleton(other *machine) *machine {
	for _, m := range w.machines {
		for uid, r := range m.records {
			if r.single && m.tasks[uid] != nil && m.uid != "" && !m.clone {
				return m
			}
		}
	}
	return other
}

// actClone makes a copy of a machine, disk included, that runs for a while.
func (w *World) actClone(c *rand.Rand) {
	m := w.machine(c)
	if m == nil || !m.on {
		return
	}
	w.note("%s is cloned", m.name)
	w.oracle.cloned[m.uid] = true
	twin := &machine{
		w: w, hostname: m.hostname, name: m.name + "-clone", uid: m.uid, labels: m.labels, cpu: m.cpu, memory: m.memory, clone: true,
		boot: m.boot, tasks: map[string]*task{}, records: map[string]*record{},
	}
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		r := *m.records[uid]
		r.lease, r.check, r.stopping = 0, 0, false // leases are those of one boot
		twin.records[uid] = &r
	}
	w.machines = append(w.machines, twin)
	twin.powerOn()
	w.after(draw(c, time.Second, 20*time.Second), twin.powerOff)
}

// setClock sets a server's clock wrong, or right. The engine of a real leader measures periods by a clock that is never
// set; the one here begins again instead.
func (w *World) setClock(s *server, skew time.Duration) {
	if s.skew == skew {
		return
	}
	s.skew = skew
	if t := w.leader; t != nil && t.server == s && !t.loops.dead {
		t.loops.replicas.lagged = true
		t.loops.replicas.wake()
	}
}

// actClock sets a server's or a machine's clock wrong for less than the hour after which a
// date is trusted.
func (w *World) actClock(c *rand.Rand) {
	skew := draw(c, -48*time.Hour, 48*time.Hour)
	if c.IntN(2) == 0 {
		skew = draw(c, -time.Minute, time.Minute)
	}
	var set func(time.Duration)
	if m := w.machine(c); m != nil && c.IntN(2) == 0 {
		set = func(d time.Duration) { m.skew = d }
	} else {
		s := w.servers[c.IntN(len(w.servers))]
		set = func(d time.Duration) { w.setClock(s, d) }
	}
	w.note("a clock is off by %s", skew)
	set(skew)
	w.after(draw(c, time.Second, 50*time.Minute), func() { set(0) })
}

func (w *World) actMissingImage(c *rand.Rand) {
	w.missing[imageName(c.IntN(images))] = w.now + draw(c, time.Second, 20*time.Minute)
}

// actCrash ends some running programs.
func (w *World) actCrash(c *rand.Rand) {
	m := w.machine(c)
	if m == nil {
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(m.tasks)) {
		if c.IntN(2) == 0 {
			w.note("the program of %s crashes", m.records[uid].nameOr(uid))
			m.exit(uid, m.tasks[uid], 137)
		}
	}
}

func (r *record) nameOr(other string) string {
	if r == nil {
		return other
	}
	return r.name
}

func (w *World) actFlaky(c *rand.Rand) {
	if workload := w.workload(c); workload != nil {
		w.flaky[workload.GetMetadata().GetUid()] = w.now + draw(c, 10*time.Second, 10*time.Minute)
		w.note("the programs of %s crash now and then", workload.GetMetadata().GetName())
	}
}

// actBury removes a machine until the next round: its replicas have to run elsewhere. Most
// machines stay.
func (w *World) actBury(c *rand.Rand) {
	buried := 0
	for _, m := range w.machines {
		if m.buried {
			buried++
		}
	}
	if m := w.machine(c); m != nil && 3*(buried+1) <= len(w.machines) {
		m.powerOff()
		m.buried = true
	}
}

// exhume brings all machines back.
func (w *World) exhume() {
	for _, m := range w.machines {
		if m.buried {
			m.buried = false
			m.powerOn()
		}
	}
}

func (w *World) actDown(c *rand.Rand) {
	if m := w.machine(c); m != nil {
		m.down()
		w.after(draw(c, time.Second, 10*time.Minute), m.startAgent)
	}
}

func (w *World) actBreak(c *rand.Rand) {
	if m := w.machine(c); m != nil {
		w.note("%s can run nothing", m.name)
		m.breakDown(true)
		w.after(draw(c, time.Second, 10*time.Minute), func() { m.breakDown(false) })
	}
}
