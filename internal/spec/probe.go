package spec

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The three probes of a workload.
const (
	ProbeStartup   = "startup"
	ProbeLiveness  = "liveness"
	ProbeReadiness = "readiness"
)

// Defaults of probes.
const (
	defaultDelay     = "0s"
	defaultPeriod    = "5s"
	defaultTimeout   = "1s"
	defaultFailures  = 3
	defaultSuccesses = 1
	defaultPath      = "/"
	defaultScheme    = "http"
)

const (
	// minPeriod keeps a probe from becoming a load of its own.
	minPeriod = 100 * time.Millisecond
	// maxProbeTime bounds the delay, the period and the timeout of a probe.
	maxProbeTime = time.Hour
)

// MinReady is how long a replica must serve until it is steady.
func MinReady(s *v1.WorkloadSpec) time.Duration {
	if RunsToEnd(s) {
		return 0
	}
	return MinReadyOf(s)
}

// ProbePort is the port that a probe with this port asks: the first TCP port of the workload if it is 0, and 0 if there
// is none.
func ProbePort(s *v1.WorkloadSpec, port int32) int32 {
	if port != 0 {
		return port
	}
	for _, p := range s.GetPorts() {
		if p.GetProtocol() == defaultProtocol || p.GetProtocol() == "" {
			return p.GetPort()
		}
	}
	return 0
}

// ProbeTimes are the times of a probe in canonical form.
func ProbeTimes(p *v1.Probe) (delay, period, timeout time.Duration) {
	return durationOf(p.GetDelay()), durationOf(p.GetPeriod()), durationOf(p.GetTimeout())
}

// namedProbe is a probe and its field.
type namedProbe struct {
	name string
	*v1.Probe
}

// probesOf are the probes that are given.
func probesOf(p *v1.Probes) (given []namedProbe) {
	for _, one := range []namedProbe{{ProbeStartup, p.GetStartup()}, {ProbeLiveness, p.GetLiveness()}, {ProbeReadiness, p.GetReadiness()}} {
		if one.Probe != nil {
			given = append(given, one)
		}
	}
	return given
}

// normalProbes returns nil if there are no probes, so that "none" has one form.
func normalProbes(p *v1.Probes) *v1.Probes {
	given := probesOf(p)
	if len(given) == 0 {
		return nil
	}
	for _, one := range given {
		normalDuration(&one.Delay, defaultDelay)
		normalDuration(&one.Period, defaultPeriod)
		normalDuration(&one.Timeout, defaultTimeout)
		if one.Failures == 0 {
			one.Failures = defaultFailures
		}
		if one.Successes == 0 {
			one.Successes = defaultSuccesses
		}
		if h := one.Http; h != nil {
			fill(&h.Path, defaultPath)
			fill(&h.Scheme, defaultScheme)
		}
	}
	return p
}

// checkProbes gets a spec in canonical form.
func checkProbes(s *v1.WorkloadSpec, found *violations) {
	const path = "spec.probes."
	for _, one := range probesOf(s.GetProbes()) {
		at := path + one.name
		checkProbeKind(s, one.Probe, at, found)
		checkProbeTimes(one.Probe, at, found)
		if one.name == ProbeLiveness && one.Successes != defaultSuccesses {
			found.add(at+".successes", "is not for liveness: a program that answers once is alive; leave it out")
		}
	}
	if RunsToEnd(s) && s.GetProbes().GetReadiness() != nil {
		found.add(path+ProbeReadiness, "is not for kind %s, which serves no requests; leave it out", s.Kind)
	}
}

// checkProbeKind checks how a probe asks.
func checkProbeKind(s *v1.WorkloadSpec, p *v1.Probe, at string, found *violations) {
	type way struct {
		name string
		port *int32 // nil if it needs none
	}
	var ways []way
	if h := p.Http; h != nil {
		ways = append(ways, way{"http", proto.Int32(h.Port)})
	}
	if t := p.Tcp; t != nil {
		ways = append(ways, way{"tcp", proto.Int32(t.Port)})
	}
	if g := p.Grpc; g != nil {
		ways = append(ways, way{"grpc", proto.Int32(g.Port)})
	}
	if p.Exec != nil {
		ways = append(ways, way{name: "exec"})
	}
	switch {
	case len(ways) == 0:
		found.add(at, "does not say how to probe: give http, tcp, grpc or exec")
		return
	case len(ways) > 1:
		found.add(at+"."+ways[1].name, "is one way too many: the probe has %s already; keep one of them", ways[0].name)
		return
	}
	switch one := ways[0]; {
	case one.port == nil:
		checkProbeCommand(p.Exec, at+".exec", found)
	case s.Network == "none":
		found.add(at+"."+one.name, "cannot reach a replica with network none; use exec, or network node")
	case ProbePort(s, *one.port) == 0:
		found.add(at+"."+one.name+".port", "is missing: the workload has no TCP port in ports; give the port to probe")
	}
	if p.Http != nil {
		checkHTTPProbe(p.Http, at+".http", found)
	}
}

func checkProbeCommand(e *v1.ExecProbe, at string, found *violations) {
	if len(e.GetCommand()) == 0 || e.GetCommand()[0] == "" {
		found.add(at+".command", "is missing: name the program to run, and its arguments")
	}
	checkNoZeros(at+".", process{command: e.GetCommand()}, found)
}

func checkHTTPProbe(h *v1.HttpProbe, at string, found *violations) {
	if _, err := url.ParseRequestURI(h.Path); err != nil && !found.has(at+".path") || hasControl(h.Path) {
		found.add(at+".path", "is not the path of a URL, such as /healthz or /status?full=1")
	}
	if hasControl(h.Host) || strings.ContainsAny(h.Host, " /?#@") {
		found.add(at+".host", "is not the name of a host, such as example.com")
	}
	for _, key := range slices.Sorted(maps.Keys(h.Headers)) {
		switch {
		case strings.EqualFold(key, "host"):
			found.add(keyPath(at+".headers", key), "is given as host")
		case hasControl(h.Headers[key]):
			found.add(keyPath(at+".headers", key), "has a control character, which no header may have")
		}
	}
}

// hasControl reports whether a text has a byte that would end a line of HTTP or garble a terminal.
func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

func checkProbeTimes(p *v1.Probe, at string, found *violations) {
	for _, one := range []struct {
		field, value string
		least        time.Duration
	}{{".delay", p.Delay, 0}, {".period", p.Period, minPeriod}, {".timeout", p.Timeout, time.Millisecond}} {
		d, ok := readAmount(at+one.field, one.value, ParseDuration, found)
		if ok && (d < one.least || d > maxProbeTime) {
			found.add(at+one.field, "must be between %s and %s", FormatDuration(one.least), FormatDuration(maxProbeTime))
		}
	}
}
