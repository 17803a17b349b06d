package telemetry

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Names follow the conventions of Prometheus, so that they explain themselves.
func TestCatalogueKeepsTheConventions(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range Catalogue() {
		if seen[m.Name] {
			t.Errorf("%s stands twice in the catalogue", m.Name)
		}
		seen[m.Name] = true
		if !strings.HasPrefix(m.Name, "cloudless_") || m.Help == "" || !strings.HasSuffix(m.Help, ".") || m.From == "" {
			t.Errorf("%s lacks its prefix, a sentence or who has it", m.Name)
		}
		if (m.Kind == KindCounter) != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s is a %s", m.Name, m.Kind)
		}
		if (m.Kind == KindHistogram) != (len(m.Buckets) > 0) {
			t.Errorf("%s is a %s with %d buckets", m.Name, m.Kind, len(m.Buckets))
		}
		if (m.Unit == "seconds" || m.Unit == "bytes") && !strings.Contains(m.Name, m.Unit) {
			t.Errorf("%s does not name its unit %s", m.Name, m.Unit)
		}
	}
}

// A metric that is defined but not listed would be missing in the docs.
func TestEveryMetricIsInTheCatalogue(t *testing.T) {
	parsed, err := parser.ParseFile(token.NewFileSet(), "catalogue.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	defined := 0
	for _, declared := range parsed.Decls {
		group, ok := declared.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, one := range group.Specs {
			if name := one.(*ast.ValueSpec).Names[0]; name.IsExported() {
				defined++
			}
		}
	}
	if listed := len(Catalogue()); listed != defined {
		t.Errorf("%d metrics are defined and %d are listed", defined, listed)
	}
}

func TestDocsAreUpToDate(t *testing.T) {
	var page bytes.Buffer
	if err := WriteReference(&page); err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page.Bytes(), committed) {
		t.Error("docs/metrics.md is not what the code says: run make docs")
	}
	for _, m := range Catalogue() {
		if !strings.Contains(page.String(), "`"+m.Name+"`") {
			t.Errorf("the docs do not name %s", m.Name)
		}
	}
}

func TestScrapeShowsWhatWasCountedAndCollected(t *testing.T) {
	r := NewRegistry()
	s, a := NewServer(r), NewAgent(r)
	s.CallBegan()
	s.CallBegan()
	s.CallEnded("/m", "OK", false, 0)
	s.CallEnded("/m", "Internal", true, 0)
	s.Requested("api", 404)
	s.Proposed("accepted", 0)
	s.Synced(0)
	s.Snapshotted(0)
	s.Scheduled(3, 1, 0)
	a.SessionOpened()
	a.Drove("container", "prepare", os.ErrNotExist, 0)
	a.Restarted()
	a.Exited("oom")
	a.Measured(0)
	r.Collect(ReplicaUsage(), func(emit Emit) {
		EmitReplicas(emit, []*v1.ReplicaUsage{{Namespace: "default", Workload: "web", Replica: "web-1", Node: "n1", CpuNanos: 2_500_000_000, MemoryBytes: 7}})
	})
	err := testutil.GatherAndCompare(r.Gatherer(), strings.NewReader(`
# HELP cloudless_api_calls_open API calls and streams that are being answered now.
# TYPE cloudless_api_calls_open gauge
cloudless_api_calls_open 0
# HELP cloudless_api_calls_total API calls that have ended, by gRPC method and code.
# TYPE cloudless_api_calls_total counter
cloudless_api_calls_total{code="Internal",method="/m"} 1
cloudless_api_calls_total{code="OK",method="/m"} 1
# HELP cloudless_api_errors_total API calls that failed because of the server, not of the caller.
# TYPE cloudless_api_errors_total counter
cloudless_api_errors_total{method="/m"} 1
# HELP cloudless_scheduling_decisions_total Scheduled replicas, by result: placed or unplaced.
# TYPE cloudless_scheduling_decisions_total counter
cloudless_scheduling_decisions_total{result="placed"} 3
cloudless_scheduling_decisions_total{result="unplaced"} 1
# HELP cloudless_agent_pulls_total Images requested from a driver, whether cached or not, by result: done or failed.
# TYPE cloudless_agent_pulls_total counter
cloudless_agent_pulls_total{result="failed"} 1
# HELP cloudless_replica_cpu_seconds_total CPU time used since the start.
# TYPE cloudless_replica_cpu_seconds_total counter
cloudless_replica_cpu_seconds_total{namespace="default",node="n1",replica="web-1",workload="web"} 2.5
`), APIOpen.Name, APICalls.Name, APIErrors.Name, SchedulingDecisions.Name, AgentPulls.Name, ReplicaCPU.Name)
	if err != nil {
		t.Error(err)
	}
	// A missing limit or network is not shown as zero.
	for _, m := range []Metric{ReplicaMemoryLimit, ReplicaReceived} {
		if n, err := testutil.GatherAndCount(r.Gatherer(), m.Name); err != nil || n != 0 {
			t.Errorf("%s is shown %d times (%v)", m.Name, n, err)
		}
	}
	if problems, err := testutil.GatherAndLint(r.Gatherer()); err != nil || len(problems) != 0 {
		t.Errorf("a linter of metrics says %v (%v)", problems, err)
	}
}

// However many replicas run, a scrape stays bounded and says what it leaves out.
func TestScrapeShowsABoundedNumberOfReplicas(t *testing.T) {
	r := NewRegistry()
	many := slices.Repeat([]*v1.ReplicaUsage{nil}, MaxReplicas+5)
	for i := range many {
		many[i] = &v1.ReplicaUsage{Namespace: "default", Replica: fmt.Sprint("web-", i)}
	}
	r.Collect(ReplicaUsage(), func(emit Emit) { EmitReplicas(emit, many) })
	if n, err := testutil.GatherAndCount(r.Gatherer(), ReplicaCPU.Name); err != nil || n != MaxReplicas {
		t.Errorf("%d replicas are shown (%v)", n, err)
	}
	err := testutil.GatherAndCompare(r.Gatherer(), strings.NewReader(`
# HELP cloudless_replica_usage_omitted Running replicas whose usage is omitted because there are too many.
# TYPE cloudless_replica_usage_omitted gauge
cloudless_replica_usage_omitted 5
`), ReplicasOmitted.Name)
	if err != nil {
		t.Error(err)
	}
}

// A nil receiver counts nothing, so that callers need no condition.
func TestNothingIsCountedWithoutARegistry(t *testing.T) {
	var s *Server
	s.CallBegan()
	s.CallEnded("/m", "OK", true, 0)
	s.Requested("api", 200)
	s.Proposed("accepted", 0)
	s.Synced(0)
	s.Snapshotted(0)
	s.Scheduled(1, 1, 0)
	var a *Agent
	a.SessionOpened()
	a.SessionEnded()
	a.Drove("d", "start", nil, 0)
	a.Restarted()
	a.Exited("oom")
	a.Measured(0)
}
