package probe

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	// quickFirst and quickLater are the pauses between attempts before the first success: quickFirst while the program
	// is younger than quickFor, then quickLater, and the probe's period once it is older than patientAfter.
	quickFirst   = 100 * time.Millisecond
	quickLater   = 250 * time.Millisecond
	quickFor     = 5 * time.Second
	patientAfter = time.Minute
	// lookOften is the pause between looks at the sockets of a program that is younger than lookOftenFor. A look costs
	// much less than a connection, and most programs listen at once.
	lookOften    = 20 * time.Millisecond
	lookOftenFor = time.Second
	// quickShare bounds what quick attempts cost: a pause lasts at least so many times as long as the attempt before.
	quickShare = 4
	// minUptime is how long a program without ports must run until it counts as serving.
	minUptime = time.Second
	// calmAfter separates flapping from ordinary losses: readiness that is lost sooner than this was gained too early.
	// Each time that it passes without a change, half as many successes are needed again.
	calmAfter = time.Minute
	// maxDamping bounds how often losses double the successes that are needed.
	maxDamping = 3
)

// Result is how one attempt of a probe ended.
type Result struct {
	OK bool
	// Unknown is set if the program could not be asked at all, which says nothing about it.
	Unknown bool
	// Reason says in a clause what went wrong, such as "port 80 answered with status 503".
	Reason string
	// Output is what the program answered or the command printed.
	Output string
}

// Word is the result in one word.
func (r Result) Word() string {
	switch {
	case r.OK:
		return "success"
	case r.Unknown:
		return "unknown"
	}
	return "failure"
}

// check is one probe and what its attempts have shown so far. Times are those since the start of the program.
//
//	waiting ──success──▶ passed ──failures in a row──▶ failed
//	   ▲                    ▲                            │
//	   └── a new attempt    └───successes in a row───────┘
//
// A failed startup or liveness probe is the end of the attempt: the replica is restarted.
type check struct {
	name                   string
	probe                  *v1.Probe // nil for the check of replicas without a readiness probe
	period, timeout        time.Duration
	failures, successes    int
	quick                  bool // whether attempts before the first success follow each other quickly
	once                   bool // whether a passed check is never made again
	passed, ever, underway bool
	good, bad              int           // in a row
	counted                time.Duration // when the last failure that counts began, if bad > 0
	due                    time.Duration // of the next attempt
	damping                int
	changed                time.Duration // when it last passed or failed
	last                   Result        // the last failure
}

func newCheck(name string, p *v1.Probe) *check {
	if p == nil {
		return nil
	}
	c := &check{
		name: name, probe: p, failures: int(p.GetFailures()), successes: int(p.GetSuccesses()),
		quick: name != spec.ProbeLiveness, passed: name == spec.ProbeLiveness,
	}
	c.due, c.period, c.timeout = spec.ProbeTimes(p)
	return c
}

// needed is how many successes in a row make the check pass. It grows while readiness flaps.
func (c *check) needed(at time.Duration) int { return c.successes << c.dampingAt(at) }

// dampingAt is the damping that is left at that time.
func (c *check) dampingAt(at time.Duration) int {
	return max(0, c.damping-int((at-c.changed)/calmAfter))
}

// note takes the result of an attempt from began to ended, and schedules the next one.
func (c *check) note(r Result, began, ended time.Duration) {
	c.underway = false
	switch {
	case r.Unknown:
		if !c.ever {
			c.last = r
		}
	case r.OK:
		c.bad = 0
		c.good++
		c.ever = true
		if !c.passed && c.good >= c.needed(ended) {
			c.damping = c.dampingAt(ended)
			c.passed, c.changed = true, ended
		}
	default:
		c.fail(r, began, ended)
	}
	c.due = max(began+c.pause(began, ended), ended)
}

// fail counts a failure. Failures of quick attempts count once a period, so that quick attempts leave a program as much
// time as slow ones.
func (c *check) fail(r Result, began, at time.Duration) {
	c.last, c.good = r, 0
	if c.bad > 0 && began-c.counted < c.period {
		return
	}
	c.bad++
	c.counted = began
	if !c.passed || c.bad < c.failures {
		return
	}
	if c.name == spec.ProbeReadiness {
		was := c.dampingAt(at)
		if at-c.changed < calmAfter && c.ever {
			was = min(was+1, maxDamping)
		}
		c.damping = was
	}
	c.passed, c.changed = false, at
}

// pause is the time from the beginning of one attempt to that of the next.
func (c *check) pause(began, ended time.Duration) time.Duration {
	if !c.quick || c.ever || ended > patientAfter {
		return c.period
	}
	pause := quickFirst
	switch {
	case c.probe == nil && ended < lookOftenFor:
		pause = lookOften
	case ended > quickFor:
		pause = quickLater
	}
	return min(c.period, max(pause, quickShare*(ended-began)))
}

// exhausted says why the replica must be restarted; it is empty if it need not be.
func (c *check) exhausted() string {
	if c == nil || c.name == spec.ProbeReadiness || c.bad < c.failures || c.name == spec.ProbeStartup && c.passed {
		return ""
	}
	if c.failures == 1 {
		return fmt.Sprintf("Its %s probe failed: %s.", c.name, c.last.Reason)
	}
	return fmt.Sprintf("Its %s probe failed %d times in a row: %s.", c.name, c.bad, c.last.Reason)
}

// machine decides from the results of all checks whether a replica serves. It is pure: times are arguments.
type machine struct {
	startup, liveness, readiness *check // nil if there is none
	minReady                     time.Duration
	served                       time.Duration
	serving                      bool
}

// newMachine describes a replica whose program has run for that long. One that was ready stays so until a probe fails.
func newMachine(w *v1.WorkloadSpec, at time.Duration, wasReady bool) *machine {
	p := w.GetProbes()
	m := &machine{
		startup: newCheck(spec.ProbeStartup, p.GetStartup()), liveness: newCheck(spec.ProbeLiveness, p.GetLiveness()),
		readiness: newCheck(spec.ProbeReadiness, p.GetReadiness()),
	}
	m.minReady = spec.MinReady(w)
	if m.readiness == nil && !spec.RunsToEnd(w) {
		m.readiness = &check{name: spec.ProbeReadiness, successes: 1, failures: 1, period: patientPeriod, timeout: patientPeriod, quick: true, once: true}
		if len(w.GetPorts()) == 0 {
			m.readiness.due = minUptime
		}
	}
	for _, c := range m.checks() {
		c.due = max(c.due, at)
		if wasReady {
			c.passed, c.ever, c.changed = true, true, at
		}
	}
	if wasReady {
		m.serving = true // since the start of the program, as far as is known
	}
	m.judge(at)
	return m
}

// patientPeriod is the pause between looks at the sockets of a program that has not listened for a long time.
const patientPeriod = time.Second

func (m *machine) checks() (all []*check) {
	for _, c := range []*check{m.startup, m.liveness, m.readiness} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// due are the checks to be made now, and when to look again. Nothing else runs until the startup probe has passed.
func (m *machine) due(at time.Duration) (now []*check, next time.Duration, more bool) {
	all := m.checks()
	if m.startup != nil && !m.startup.passed {
		all = all[:1]
	}
	for _, c := range all {
		switch {
		case c.underway, c.passed && (c.once || c == m.startup):
		case c.due <= at:
			now = append(now, c)
		case !more || c.due < next:
			next, more = c.due, true
		}
	}
	if settled := m.settled(); m.settling(at) && (!more || settled < next) {
		next, more = settled, true
	}
	return now, next, more
}

// note takes a result.
func (m *machine) note(c *check, r Result, began, ended time.Duration) {
	c.note(r, began, ended)
	m.judge(ended)
}

func (m *machine) judge(at time.Duration) {
	serving := m.unready() == ""
	if serving && !m.serving {
		m.served = at
	}
	m.serving = serving
}

// unready says why the replica does not serve; it is empty if it does.
func (m *machine) unready() string {
	switch {
	case m.startup != nil && !m.startup.passed:
		return m.startup.waiting()
	case m.readiness == nil || m.readiness.passed:
		return ""
	case m.readiness.probe == nil && m.readiness.last.Reason == "":
		return spec.JustStarted
	case m.readiness.probe == nil:
		return m.readiness.last.Reason
	}
	return m.readiness.waiting()
}

// waiting says that a probe has not passed.
func (c *check) waiting() string {
	switch {
	case c.last.Reason == "":
		return fmt.Sprintf("Its %s probe has not succeeded yet.", c.name)
	case c.last.Unknown:
		return fmt.Sprintf("Its %s probe cannot be made: %s.", c.name, c.last.Reason)
	case c.bad == 0 && c.needed(c.changed) > 1:
		return fmt.Sprintf("Its %s probe must succeed %d times in a row.", c.name, c.needed(c.changed))
	}
	return fmt.Sprintf("Its %s probe failed: %s.", c.name, c.last.Reason)
}

// settled is when the replica has served for long enough.
func (m *machine) settled() time.Duration { return m.served + m.minReady }

// settling reports whether the replica serves, but not yet for long enough.
func (m *machine) settling(at time.Duration) bool { return m.serving && at < m.settled() }

// restart says why the replica must be restarted; it is empty if it need not be.
func (m *machine) restart() string {
	if why := m.startup.exhausted(); why != "" {
		return why
	}
	return m.liveness.exhausted()
}

// maxOutput is how many bytes of an output are kept.
const maxOutput = 300

// printable is the beginning of an output, fit for a terminal and for the API.
func printable(output string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029':
			return -1
		}
		return r
	}, strings.ToValidUTF8(output, "\uFFFD"))
	clean = strings.TrimSpace(clean)
	if len(clean) > maxOutput {
		clean = strings.ToValidUTF8(clean[:maxOutput], "") + "…"
	}
	return clean
}
