package probe

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// workload is a service with these probes, in canonical form.
func workload(p *v1.Probes, ports ...int32) *v1.WorkloadSpec {
	w := &v1.WorkloadSpec{Probes: p}
	for _, port := range ports {
		w.Ports = append(w.Ports, &v1.Port{Port: port})
	}
	return spec.Normalized(w)
}

func tcp(change ...func(*v1.Probe)) *v1.Probe {
	p := &v1.Probe{Tcp: &v1.TcpProbe{Port: 80}}
	for _, c := range change {
		c(p)
	}
	return p
}

// play runs a machine in virtual time and asks program for the result of every attempt. It calls seen after each one,
// and stops at the end or when the replica must be restarted.
func play(m *machine, end time.Duration, program func(name string, at time.Duration) bool, seen func(at time.Duration)) {
	for at := time.Duration(0); at <= end && m.restart() == ""; {
		now, next, more := m.due(at)
		for _, c := range now {
			m.note(c, Result{OK: program(c.name, at), Reason: "it said no"}, at, at)
		}
		if seen != nil {
			seen(at)
		}
		if len(now) > 0 {
			continue
		}
		if !more {
			return
		}
		at = next
	}
}

func always(string, time.Duration) bool { return true }
func never(string, time.Duration) bool  { return false }

func TestFirstSuccessIsSeenQuickly(t *testing.T) {
	m := newMachine(workload(&v1.Probes{Readiness: tcp()}), 0, false)
	var served time.Duration
	play(m, 10*time.Second, func(_ string, at time.Duration) bool { return at >= 3*time.Second }, func(at time.Duration) {
		if m.serving && served == 0 {
			served = at
		}
	})
	if served < 3*time.Second || served > 3*time.Second+quickFirst {
		t.Errorf("a program that is ready after 3s serves after %v", served)
	}
}

// Quick attempts do not shorten the time that a program has to start.
func TestStartupProbeLeavesItsWholeTime(t *testing.T) {
	m := newMachine(workload(&v1.Probes{Startup: tcp(func(p *v1.Probe) { p.Failures, p.Period = 4, "5s" })}), 0, false)
	var gaveUp time.Duration
	play(m, time.Hour, never, func(at time.Duration) { gaveUp = at })
	if gaveUp < 15*time.Second || gaveUp > 15*time.Second+quickLater {
		t.Errorf("it gave up after %v, want 15s: four failures, 5s apart", gaveUp)
	}
	if want := "Its startup probe failed 4 times in a row: it said no."; m.restart() != want {
		t.Errorf("the reason is %q", m.restart())
	}
}

func TestNothingElseRunsBeforeStartupPassed(t *testing.T) {
	m := newMachine(workload(&v1.Probes{Startup: tcp(func(p *v1.Probe) { p.Failures = 100 }), Liveness: tcp(), Readiness: tcp()}), 0, false)
	started := false
	play(m, 30*time.Second, func(name string, at time.Duration) bool {
		if name != spec.ProbeStartup && !started {
			t.Fatalf("%s was probed before the program had started", name)
		}
		if name == spec.ProbeStartup {
			started = at >= 10*time.Second
			return started
		}
		return true
	}, nil)
	if !started || m.unready() != "" {
		t.Errorf("it does not serve: %s", m.unready())
	}
}

func TestLivenessNeedsFailuresInARow(t *testing.T) {
	m := newMachine(workload(&v1.Probes{Liveness: tcp()}), 0, false)
	attempts := 0
	play(m, 10*time.Minute, func(name string, _ time.Duration) bool {
		if name == spec.ProbeLiveness {
			attempts++
		}
		return name != spec.ProbeLiveness || attempts%3 == 0 // two failures, then a success
	}, nil)
	if m.restart() != "" {
		t.Errorf("it is restarted: %s", m.restart())
	}
	play(m, 20*time.Minute, never, nil)
	if m.restart() == "" {
		t.Error("three failures in a row do not restart it")
	}
}

func TestDelayPostponesTheFirstAttempt(t *testing.T) {
	m := newMachine(workload(&v1.Probes{Liveness: tcp(func(p *v1.Probe) { p.Delay = "20s" })}), 0, false)
	play(m, time.Minute, func(name string, at time.Duration) bool {
		if name == spec.ProbeLiveness && at < 20*time.Second {
			t.Fatalf("probed after %v", at)
		}
		return true
	}, nil)
}

// Each loss of readiness shortly after it was gained doubles the successes that are needed. That decays.
func TestFlappingIsDamped(t *testing.T) {
	m := newMachine(workload(&v1.Probes{Readiness: tcp(func(p *v1.Probe) { p.Failures, p.Period = 1, "1s" })}), 0, false)
	c := m.readiness
	at := time.Duration(0)
	attempt := func(ok bool) {
		m.note(c, Result{OK: ok, Reason: "it said no"}, at, at)
		at += time.Second
	}
	var needed []int
	for range 5 {
		successes := 0
		for !m.serving {
			attempt(true)
			successes++
		}
		needed = append(needed, successes)
		attempt(false)
	}
	for i, want := range []int{1, 2, 4, 8, 8} {
		if needed[i] != want {
			t.Fatalf("the replica needed %v successes, want 1, 2, 4, 8, 8", needed)
		}
	}
	for !m.serving {
		attempt(true)
	}
	at += maxDamping * calmAfter
	attempt(false)
	if got := c.needed(at); got != 1 {
		t.Errorf("after a calm time it still needs %d successes", got)
	}
}

func TestReadyReplicaStaysReadyUntilAProbeFails(t *testing.T) {
	m := newMachine(workload(&v1.Probes{Startup: tcp(), Readiness: tcp()}), time.Hour, true)
	if m.unready() != "" || m.settling(time.Hour) {
		t.Fatalf("it does not serve: %s", m.unready())
	}
	if slow := spec.Normalized(&v1.WorkloadSpec{Update: &v1.Update{MinReady: "1m"}}); newMachine(slow, time.Hour, true).settling(time.Hour) {
		t.Error("it has to settle again, though it has run for an hour")
	}
	play(m, 2*time.Hour, never, nil)
	if want := "Its readiness probe failed: it said no."; m.unready() != want || m.restart() != "" {
		t.Errorf("unready is %q, restart %q", m.unready(), m.restart())
	}
}

func TestSettlingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		of      *v1.WorkloadSpec
		settled time.Duration
	}{
		"without ports":    {workload(nil), 3 * time.Second},
		"with a port":      {workload(nil, 80), 3 * time.Second},
		"with a readiness": {workload(&v1.Probes{Readiness: tcp()}), 0},
	} {
		m := newMachine(c.of, 0, false)
		var steady time.Duration
		play(m, time.Minute, always, func(at time.Duration) {
			if !m.serving || m.settling(at) {
				steady = at
			}
		})
		if !m.serving || m.settling(time.Minute) || steady > c.settled {
			t.Errorf("%s: it was last unsteady after %v, want at most %v", name, steady, c.settled)
		}
	}
}

// Whatever a program does, these hold. It serves only after enough successes in a row. It is restarted only after enough
// failures in a row. Attempts are never closer together than allowed. The machine always has a next step.
func TestMachineKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *v1.Probe {
			if !rapid.Bool().Draw(t, "with "+name) {
				return nil
			}
			p := tcp(func(p *v1.Probe) {
				p.Delay = rapid.SampledFrom([]string{"0s", "300ms", "10s"}).Draw(t, "delay of "+name)
				p.Period = rapid.SampledFrom([]string{"100ms", "1s", "5s"}).Draw(t, "period of "+name)
				p.Failures = rapid.Int32Range(1, 4).Draw(t, "failures of "+name)
			})
			if name != spec.ProbeLiveness {
				p.Successes = rapid.Int32Range(1, 3).Draw(t, "successes of "+name)
			}
			return p
		}
		m := newMachine(workload(&v1.Probes{Startup: draw("startup"), Liveness: draw("liveness"), Readiness: draw("readiness")}), 0, rapid.Bool().Draw(t, "was ready"))
		bad, last := map[string]int{}, map[string]time.Duration{}
		at := time.Duration(0)
		for range 200 {
			now, next, more := m.due(at)
			if len(now) == 0 {
				if !more {
					break // nothing is left to ask
				}
				if next <= at {
					t.Fatalf("at %v, the next step is at %v", at, next)
				}
				at = next
				continue
			}
			c := now[0]
			if before, asked := last[c.name]; asked && at-before < min(quickFirst, c.period) && (c.probe != nil || at-before < lookOften) {
				t.Fatalf("%s was asked twice within %v", c.name, at-before)
			}
			if c != m.startup && m.startup != nil && !m.startup.passed {
				t.Fatalf("%s was asked before the startup probe passed", c.name)
			}
			last[c.name] = at
			ok := rapid.Bool().Draw(t, "success of "+c.name)
			bad[c.name]++
			if ok {
				bad[c.name] = 0
			}
			served := m.serving
			ended := at + time.Duration(rapid.IntRange(0, 400).Draw(t, "took"))*time.Millisecond
			m.note(c, Result{OK: ok, Reason: "it said no"}, at, ended)
			at = ended
			switch {
			case m.serving && !served && !ok:
				t.Fatal("a failure made it serve")
			case served && !m.serving && (ok || c == m.liveness):
				t.Fatalf("a %s result %v made it unready", c.name, ok)
			}
			if why := m.restart(); why != "" {
				if c.name == spec.ProbeReadiness || bad[c.name] < c.failures || !strings.Contains(why, c.name) {
					t.Fatalf("restarted by %s after %d failures: %s", c.name, bad[c.name], why)
				}
				return
			}
		}
	})
}

func TestOutputIsFitForATerminal(t *testing.T) {
	if got := printable("\x1b[31mbad\x00\r\n\tnews\xff" + strings.Repeat("é", maxOutput)); !strings.HasPrefix(got, "[31mbad  news\uFFFDé") || len(got) > maxOutput+len("…") || !strings.HasSuffix(got, "…") {
		t.Errorf("got %q", got)
	}
}
