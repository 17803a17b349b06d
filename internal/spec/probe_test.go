package spec

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// probed is a workload with TCP port 80 and a readiness probe.
func probed(p *v1.Probe, change ...func(*v1.WorkloadSpec)) *v1.Workload {
	s := &v1.WorkloadSpec{Image: "hello:1", Ports: []*v1.Port{{Port: 53, Protocol: "udp"}, {Port: 80}}, Probes: &v1.Probes{Readiness: p}}
	for _, c := range change {
		c(s)
	}
	return &v1.Workload{Metadata: &v1.Metadata{Name: "work"}, Spec: s}
}

func TestProbesHaveDefaults(t *testing.T) {
	s := Normalized(probed(&v1.Probe{Http: &v1.HttpProbe{}, Period: "60s"}).GetSpec())
	want := &v1.Probe{
		Http: &v1.HttpProbe{Path: "/", Scheme: "http"}, Delay: "0s", Period: "1m", Timeout: "1s", Failures: 3, Successes: 1,
	}
	if !proto.Equal(s.GetProbes().GetReadiness(), want) {
		t.Errorf("got %v, want %v", s.GetProbes().GetReadiness(), want)
	}
	if port := ProbePort(s, 0); port != 80 {
		t.Errorf("the first TCP port is %d, want 80", port)
	}
	if none := Normalized(&v1.WorkloadSpec{Probes: &v1.Probes{}}); none.Probes != nil {
		t.Errorf("no probes become %v", none.Probes)
	}
	if delay, period, timeout := ProbeTimes(s.GetProbes().GetReadiness()); delay != 0 || period != time.Minute || timeout != time.Second {
		t.Errorf("the times are %v, %v and %v", delay, period, timeout)
	}
}

// A program may end soon after its readiness probe has passed. So a probe does not shorten the time in which the first new
// replica proves itself, but the others need no such time.
func TestHowRevisionsProveThemselves(t *testing.T) {
	readiness := &v1.Probes{Readiness: &v1.Probe{}}
	for name, c := range map[string]struct {
		of    *v1.WorkloadSpec
		least time.Duration
		byOne bool
	}{
		"unprobed":  {&v1.WorkloadSpec{}, 3 * time.Second, false},
		"liveness":  {&v1.WorkloadSpec{Probes: &v1.Probes{Liveness: &v1.Probe{}}}, 3 * time.Second, false},
		"readiness": {&v1.WorkloadSpec{Probes: readiness}, 3 * time.Second, true},
		"explicit":  {&v1.WorkloadSpec{Update: &v1.Update{MinReady: "10s"}}, 10 * time.Second, false},
		"both":      {&v1.WorkloadSpec{Update: &v1.Update{MinReady: "0s"}, Probes: readiness}, 0, false},
		"job":       {&v1.WorkloadSpec{Kind: KindJob}, 0, false},
	} {
		if least, byOne := MinReady(c.of), ProvenByOne(c.of); least != c.least || byOne != c.byOne {
			t.Errorf("%s: got %v, %v", name, least, byOne)
		}
	}
}

func TestServesAndSteady(t *testing.T) {
	for _, c := range []struct {
		status         *v1.ReplicaStatus
		serves, steady bool
	}{
		{&v1.ReplicaStatus{Phase: PhaseRunning}, true, true},
		{&v1.ReplicaStatus{Phase: PhaseRunning, Settling: true}, true, false},
		{&v1.ReplicaStatus{Phase: PhaseRunning, Unready: "It does not listen yet."}, false, false},
		{&v1.ReplicaStatus{Phase: PhaseBackoff}, false, false},
	} {
		r := &v1.Replica{Status: c.status}
		if Serves(r) != c.serves || Steady(r) != c.steady {
			t.Errorf("%v: serves is %v and steady %v", c.status, Serves(r), Steady(r))
		}
	}
}

func TestAnotherProbeMakesARevision(t *testing.T) {
	a, b := probed(&v1.Probe{Tcp: &v1.TcpProbe{}}).GetSpec(), probed(&v1.Probe{Grpc: &v1.GrpcProbe{}}).GetSpec()
	if ReplacesNone(a, b) || ReplacesNone(a, probed(nil).GetSpec()) {
		t.Error("replicas are not replaced, so the new probe would never run")
	}
	if changes := Diff(a, b); len(changes) != 2 {
		t.Errorf("the plan would show %v", changes)
	}
}

func TestUsefulProbesAreValid(t *testing.T) {
	for _, w := range []*v1.Workload{
		probed(&v1.Probe{Tcp: &v1.TcpProbe{}}),
		probed(&v1.Probe{Grpc: &v1.GrpcProbe{Port: 9000, Service: "shop.Cart"}}, func(s *v1.WorkloadSpec) { s.Ports = nil }),
		probed(&v1.Probe{Exec: &v1.ExecProbe{Command: []string{"true"}}}, func(s *v1.WorkloadSpec) { s.Ports, s.Network = nil, "none" }),
		probed(&v1.Probe{Http: &v1.HttpProbe{Path: "/ok?full=1", Host: "example.com", Headers: map[string]string{"X-Probe": "1"}}, Delay: "10s", Failures: 1, Successes: 5}),
		probed(nil, func(s *v1.WorkloadSpec) {
			s.Kind, s.Probes.Liveness = KindJob, &v1.Probe{Exec: &v1.ExecProbe{Command: []string{"true"}}}
		}),
	} {
		if err := Validate(w); err != nil {
			t.Errorf("%v: %v", w.GetSpec().GetProbes(), err)
		}
	}
}

func TestUselessProbesAreRefused(t *testing.T) {
	http := func(h *v1.HttpProbe) *v1.Workload { return probed(&v1.Probe{Http: h}) }
	tcp := func(p *v1.Probe) *v1.Workload {
		p.Tcp = &v1.TcpProbe{}
		return probed(p)
	}
	for _, c := range []struct {
		of   *v1.Workload
		want string
	}{
		{probed(&v1.Probe{}), "spec.probes.readiness: does not say how to probe: give http, tcp, grpc or exec"},
		{tcp(&v1.Probe{Http: &v1.HttpProbe{}}), "spec.probes.readiness.tcp: is one way too many: the probe has http already; keep one of them"},
		{
			probed(&v1.Probe{Tcp: &v1.TcpProbe{}}, func(s *v1.WorkloadSpec) { s.Ports = s.Ports[:1] }),
			"spec.probes.readiness.tcp.port: is missing: the workload has no TCP port in ports; give the port to probe",
		},
		{
			probed(&v1.Probe{Http: &v1.HttpProbe{Port: 80}}, func(s *v1.WorkloadSpec) { s.Ports, s.Network = nil, "none" }),
			"spec.probes.readiness.http: cannot reach a replica with network none; use exec, or network node",
		},
		{probed(&v1.Probe{Exec: &v1.ExecProbe{}}), "spec.probes.readiness.exec.command: is missing: name the program to run, and its arguments"},
		{http(&v1.HttpProbe{Path: "healthz"}), "spec.probes.readiness.http.path: must begin with /"},
		{http(&v1.HttpProbe{Path: "/a\r\nb"}), "spec.probes.readiness.http.path: is not the path of a URL"},
		{http(&v1.HttpProbe{Host: "a b"}), "spec.probes.readiness.http.host: is not the name of a host"},
		{http(&v1.HttpProbe{Headers: map[string]string{"Host": "a"}}), `spec.probes.readiness.http.headers["Host"]: is given as host`},
		{http(&v1.HttpProbe{Headers: map[string]string{"A": "a\nb"}}), `spec.probes.readiness.http.headers["A"]: has a control character`},
		{tcp(&v1.Probe{Period: "10ms"}), "spec.probes.readiness.period: must be between 100ms and 1h"},
		{tcp(&v1.Probe{Timeout: "0s"}), "spec.probes.readiness.timeout: must be between 1ms and 1h"},
		{tcp(&v1.Probe{Failures: -1}), "spec.probes.readiness.failures: must be between 0 and 1000"},
		{
			probed(nil, func(s *v1.WorkloadSpec) { s.Probes.Liveness = &v1.Probe{Tcp: &v1.TcpProbe{}, Successes: 2} }),
			"spec.probes.liveness.successes: is not for liveness: a program that answers once is alive; leave it out",
		},
		{
			probed(&v1.Probe{Tcp: &v1.TcpProbe{}}, func(s *v1.WorkloadSpec) { s.Kind = KindJob }),
			"spec.probes.readiness: is not for kind job, which serves no requests; leave it out",
		},
	} {
		if err := Validate(c.of); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %s", c.of.GetSpec().GetProbes(), err, c.want)
		}
	}
}
