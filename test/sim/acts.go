package sim

import (
	"math/rand/v2"
	"time"
)

// act is a fault or a request of an operator at a moment. It has its own random source, so
// that it stays the same when others are left out.
type act struct {
	at   time.Duration // since the beginning of the round
	kind string
	seed uint64
	// ambush is whether it waits until a proposal is in flight.
	ambush bool
}

// kinds are the acts with their relative frequency.
var kinds = []struct {
	name   string
	weight int
	do     func(w *World, c *rand.Rand)
}{
	{"create", 10, (*World).actCreate},
	{"update", 7, (*World).actUpdate},
	{"scale", 8, (*World).actScale},
	{"autoscale", 4, (*World).actAutoscale},
	{"load", 6, (*World).actLoad},
	{"silence", 3, (*World).actSilence},
	{"restart", 4, (*World).actRestart},
	{"delete", 4, (*World).actDelete},
	{"broken release", 4, (*World).actBreakRelease},
	{"steer", 6, (*World).actSteer},
	{"undo", 2, (*World).actUndo},
	{"apply", 4, (*World).actApply},
	{"token", 1, (*World).actToken},
	{"remove node", 2, (*World).actRemoveNode},
	{"reinstall", 1, (*World).actReinstall},
	{"cordon", 3, (*World).actCordon},
	{"mark", 4, (*World).actMark},
	{"taint", 4, (*World).actTaint},
	{"configure", 2, (*World).actConfigure},
	{"quota", 4, (*World).actQuota},
	{"epoch", 1, (*World).actEpoch},
	{"lose leader", 4, (*World).actLoseLeader},
	{"isolate leader", 2, (*World).actIsolateLeader},
	{"transfer leader", 2, (*World).actTransfer},
	{"lose server", 2, (*World).actLoseServer},
	{"lag", 1, (*World).actLag},
	{"slow disk", 2, (*World).actSlowDisk},
	{"full disk", 1, (*World).actFullDisk},
	{"lose machine", 5, (*World).actLoseMachine},
	{"reboot", 3, (*World).actReboot},
	{"kill agent", 4, (*World).actKillAgent},
	{"hang", 4, (*World).actHang},
	{"cut", 6, (*World).actCut},
	{"clone", 1, (*World).actClone},
	{"bury", 2, (*World).actBury},
	{"down", 2, (*World).actDown},
	{"break", 2, (*World).actBreak},
	{"clock", 2, (*World).actClock},
	{"missing image", 2, (*World).actMissingImage},
	{"crash", 4, (*World).actCrash},
	{"flaky", 3, (*World).actFlaky},
	{"unwell", 3, (*World).actUnwell},
}

// round is one period of faults with an end.
type round struct {
	length time.Duration
	acts   []act
}

// rounds are drawn before anything happens.
func (w *World) rounds() []round {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	all := make([]round, 2+w.rng.IntN(4))
	for i := range all {
		r := &all[i]
		r.length = []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 6 * time.Hour}[w.rng.IntN(4)]
		for range 5 + w.rng.IntN(30) {
			a := act{at: w.between(0, r.length), seed: w.rng.Uint64(), ambush: w.rng.IntN(3) == 0}
			if len(r.acts) > 0 { // faults seldom come alone
				last := r.acts[len(r.acts)-1].at
				switch w.rng.IntN(4) {
				case 0:
					a.at = last + w.between(0, 50*time.Millisecond)
				case 1:
					a.at = last + w.between(0, 20*time.Second)
				}
				a.at = min(a.at, r.length)
			}
			choice := w.rng.IntN(total)
			for _, k := range kinds {
				if choice -= k.weight; choice < 0 {
					a.kind = k.name
					break
				}
			}
			r.acts = append(r.acts, a)
		}
		if i == 0 { // something to begin with
			for j := range 3 + w.rng.IntN(10) {
				r.acts = append(r.acts, act{at: time.Duration(j) * time.Second, kind: "create", seed: w.rng.Uint64()})
			}
		}
	}
	return all
}

// live runs all rounds and returns how many acts there were.
func (w *World) live(keep func(int) bool) int {
	count := 0
	for i, r := range w.rounds() {
		w.note("round %d: %s", i+1, r.length)
		w.healed = false
		w.exhume()
		w.suspend(false)
		begin := w.now
		for _, a := range r.acts {
			number := count
			count++
			if keep != nil && !keep(number) {
				continue
			}
			w.after(a.at, func() {
				if a.ambush { // until a proposal is in flight that it can race with
					w.ambushes = append(w.ambushes, func() { w.perform(number, a) })
					return
				}
				w.perform(number, a)
			})
		}
		w.run(begin + r.length)
		w.heal()
		w.rest()
		if w.failure != nil {
			return count
		}
		w.tryPlan(rand.New(rand.NewPCG(w.seed, uint64(i))))
		if w.failure != nil {
			return count
		}
	}
	return count
}

func (w *World) perform(number int, a act) {
	if w.healed {
		return // it waited for too long
	}
	w.note("act %d: %s", number, a.kind)
	for _, k := range kinds {
		if k.name == a.kind {
			k.do(w, rand.New(rand.NewPCG(a.seed, w.seed)))
		}
	}
}

// heal ends all faults at once, except for machines that are gone until the next round
// begins.
func (w *World) heal() {
	w.ambushes, w.healed = nil, true
	w.note("everything is healed")
	w.slowUntil, w.fullUntil, w.isolated = 0, 0, nil
	clear(w.missing)
	clear(w.flaky)
	clear(w.unwell)
	clear(w.silent)
	for _, s := range w.servers {
		w.setClock(s, 0)
		if !s.up {
			w.start(s)
		}
	}
	if w.leader != nil && w.leader.frozen {
		w.depose("it had no majority")
	}
	w.elect()
	for _, m := range w.machines {
		m.skew = 0
		m.probeAll()
		if m.clone {
			m.powerOff()
			continue
		}
		if m.uid == "" {
			continue
		}
		m.hang(false)
		m.cut(false, false, nil)
		m.breakDown(false)
		m.powerOn()
		m.startAgent()
	}
	w.dropClones()
	w.suspend(true)
	w.finishDeployments()
	w.removeOrphans()
}

func (w *World) dropClones() {
	var real []*machine
	for _, m := range w.machines {
		if !m.clone {
			real = append(real, m)
		}
	}
	w.machines = real
}
