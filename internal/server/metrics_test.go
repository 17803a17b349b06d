package server

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// scrape reads the metrics as Prometheus does: over TLS, with a token.
func (c *cluster) scrape(token string) string {
	c.t.Helper()
	answer, text := c.request(nil, http.MethodGet, "/metrics", "", "Authorization", "Bearer "+token)
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain") {
		c.t.Fatalf("the scrape was answered with %s and %s", answer.Status, answer.Header.Get("Content-Type"))
	}
	return text
}

// value returns the value of one line of a scrape; empty if there is none.
func value(scrape, line string) string {
	if found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(line) + ` (.*)$`).FindStringSubmatch(scrape); found != nil {
		return found[1]
	}
	return ""
}

func TestScrapeShowsTheWholeCluster(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	stream, r := c.runs(op, c.join("n1"), "web")
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("huge", func(w *v1.Workload) {
		w.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Memory: "1Ti"}}
	})})
	must(t, err)
	c.push("team/hello:1")
	c.beat(stream, "1500m", &v1.ReplicaUsage{Uid: r.GetMetadata().GetUid(), CpuNanos: 2_500_000_000, ThrottledNanos: 500_000_000, MemoryBytes: 7, ReceivedBytes: 1, SentBytes: 2})
	watch, err := viewer.WatchUsage(c.ctx, &v1.GetUsageRequest{})
	must(t, err)
	frame(t, watch.Recv, func(u *v1.Usage) bool { return len(u.GetReplicas()) == 1 })
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOn("") {
			return r.GetStatus().GetReason() != ""
		}
		return false
	})
	_, err = viewer.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "nope"})
	wantCode(t, err, codes.NotFound)

	text := c.scrape(viewer.token)
	usage := `{namespace="default",node="n1",replica="` + r.GetMetadata().GetName() + `",workload="web"}`
	for line, want := range map[string]string{
		`cloudless_api_calls_total{code="NotFound",method="/cloudless.v1.WorkloadService/GetWorkload"}`: "1",
		`cloudless_api_call_seconds_count{method="/cloudless.v1.WorkloadService/CreateWorkload"}`:       "2",
		`cloudless_raft_leader`:                                 "1",
		`cloudless_workloads{phase="running"}`:                  "1",
		`cloudless_workloads{phase="pending"}`:                  "1",
		`cloudless_replicas{phase="running"}`:                   "1",
		`cloudless_nodes{state="ready"}`:                        "1",
		`cloudless_users{role="viewer"}`:                        "1",
		`cloudless_users{role="operator"}`:                      "2", // the user that pushes is one, too
		`cloudless_images`:                                      "1",
		`cloudless_sessions`:                                    "1",
		`cloudless_pending_replicas{reason="fit"}`:              "1",
		`cloudless_state_objects{kind="workload"}`:              "2",
		`cloudless_node_cpu_used{node="n1"}`:                    "1.5",
		`cloudless_node_cpu_capacity{node="n1"}`:                "4",
		`cloudless_node_memory_used_bytes{node="n1"}`:           "2.147483648e+09",
		`cloudless_replica_cpu_seconds_total` + usage:           "2.5",
		`cloudless_replica_cpu_throttled_seconds_total` + usage: "0.5",
		`cloudless_replica_memory_bytes` + usage:                "7",
		`cloudless_replica_network_sent_bytes_total` + usage:    "2",
		`cloudless_replica_memory_limit_bytes` + usage:          "", // no limit
	} {
		if got := value(text, line); got != want {
			t.Errorf("%s is %q, want %q", line, got, want)
		}
	}
	for _, line := range []string{"cloudless_raft_term", "cloudless_raft_applied_index", "cloudless_state_index", `cloudless_http_requests_total{code="201",route="registry"}`, "go_goroutines", "process_resident_memory_bytes"} {
		if got := value(text, line); got == "" || got == "0" {
			t.Errorf("%s is %q", line, got)
		}
	}
	// Every metric is in the catalogue, and so in the docs.
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (cloudless_\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(telemetry.Catalogue(), func(m telemetry.Metric) bool { return m.Name == found[1] && string(m.Kind) == found[2] }) {
			t.Errorf("%s is not in the catalogue as a %s", found[1], found[2])
		}
	}
}

func TestMetricsRequireARole(t *testing.T) {
	c := newCluster(t)
	if answer, _ := c.request(nil, http.MethodGet, "/metrics", ""); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("a request without a token is answered with %s", answer.Status)
	}
	if answer, _ := c.request(c.join("n1").creds, http.MethodGet, "/metrics", ""); answer.StatusCode != http.StatusForbidden {
		t.Errorf("a node is answered with %s", answer.Status)
	}
}

func TestEveryAnswerHasARequestID(t *testing.T) {
	c := newCluster(t)
	viewer := c.as(core.RoleViewer)
	idOf := func(wanted string) (string, error) {
		var header metadata.MD
		ctx := c.ctx
		if wanted != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, telemetry.RequestIDHeader, wanted)
		}
		_, err := viewer.GetWorkload(ctx, &v1.GetWorkloadRequest{Name: "nope"}, grpc.Header(&header))
		return strings.Join(header.Get(telemetry.RequestIDHeader), ","), err
	}
	if id, err := idOf("my-id.1"); id != "my-id.1" || status.Code(err) != codes.NotFound {
		t.Errorf("the chosen id came back as %q with %v", id, err)
	}
	made, _ := idOf("")
	if forged, _ := idOf("a b\" level=ERROR"); made == "" || forged == "" || strings.Contains(forged, " ") {
		t.Errorf("calls have the ids %q and %q", made, forged)
	}
	stream, err := viewer.WatchNodes(metadata.AppendToOutgoingContext(c.ctx, telemetry.RequestIDHeader, "stream-1"), &v1.WatchNodesRequest{})
	must(t, err)
	if header, err := stream.Header(); err != nil || !slices.Equal(header.Get(telemetry.RequestIDHeader), []string{"stream-1"}) {
		t.Errorf("a stream has the id %v (%v)", header, err)
	}
	// The same over HTTP, even if the request is refused before it becomes a call.
	for _, authorization := range []string{"Bearer " + viewer.token, "Bearer nonsense"} {
		answer, _ := c.request(nil, http.MethodGet, "/v1/nodes", "", "Authorization", authorization, "X-Request-Id", "web-1")
		if got := answer.Header.Values("X-Request-Id"); !slices.Equal(got, []string{"web-1"}) {
			t.Errorf("%s is answered with the ids %q", authorization[:10], got)
		}
	}
	if answer, _ := c.request(nil, http.MethodGet, "/healthz", ""); answer.Header.Get("X-Request-Id") == "" {
		t.Error("a request without an id gets none")
	}
}

// A failure that only the log explains can be found there: the caller, the answer and the
// log lines have the same id, by gRPC and by HTTP.
func TestFailureIsFoundInTheLogByItsID(t *testing.T) {
	log := &logBuffer{}
	c := newCluster(t, func(o *Options) {
		o.Placement = brokenPlacement{}
		o.Logger = telemetry.NewLogger(log, -4, telemetry.LogText)
	})
	op := c.as(core.RoleOperator)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool { return snap.Count(state.KindReplica) == 1 })
	ctx := metadata.AppendToOutgoingContext(c.ctx, telemetry.RequestIDHeader, "by-grpc")
	_, err = op.GetWorkload(ctx, &v1.GetWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.Internal, "(request by-grpc)")
	answer, text := c.request(nil, http.MethodGet, "/v1/namespaces/default/workloads/web", "", "Authorization", "Bearer "+op.token, "X-Request-Id", "by-http")
	if answer.StatusCode != http.StatusInternalServerError || !strings.Contains(text, "(request by-http)") {
		t.Errorf("over HTTP the answer is %s: %s", answer.Status, text)
	}
	for _, id := range []string{"by-grpc", "by-http"} {
		for _, said := range []string{"call panicked", "call failed", "msg=call "} {
			if !regexp.MustCompile(`(?m)^.*` + said + `.*request=` + id).MatchString(log.String()) {
				t.Errorf("the log does not say %q of %s", said, id)
			}
		}
	}
}
