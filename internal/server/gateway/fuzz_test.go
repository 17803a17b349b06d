package gateway

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// The body of any HTTP request is decoded or refused, and what was decoded can be validated and encoded again.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"name":"web"},"spec":{"image":"nginx","replicas":3}}`, `{"spec":{"env":{"A":"b"},"ports":[{"port":80}]}}`,
		`{}{}`, `[1]`, `{"spec":{"unknown":1}}`, `{"spec":{"replicas":1e99}}`, `{"metadata":{"name":"\ud800"}}`, strings.Repeat(`{"spec":`, 100), ``,
	} {
		f.Add([]byte(seed), "/v1/namespaces/default/workloads/web")
	}
	decode := bodies{&runtime.HTTPBodyMarshaler{Marshaler: &runtime.JSONPb{}}}
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			r := &http.Request{Method: method, URL: &url.URL{Path: path}, Body: io.NopCloser(strings.NewReader(string(data)))}
			r = withBody(r)
			var w *v1.Workload
			if err := decode.NewDecoder(r.Body).Decode(&w); err != nil {
				if wrongBody(r, err) == nil {
					t.Fatal("a refusal was lost")
				}
				continue
			}
			if w == nil {
				continue // null
			}
			_ = spec.Validate(w)
			if _, err := protojson.Marshal(w); err != nil {
				t.Fatalf("%q was decoded to what cannot be encoded: %v", data, err)
			}
		}
	})
}

// The parameters of any HTTP request are understood or refused, each with its name.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		"namespace=default&page.size=3", "consistency=stale", "unknown=1", "page.size=x", "follow=true&tail=3&since=2026-01-02T15:04:05Z", "%zz=1", "page=1", "page.size.deep=1", "tail=1&tail=2",
	} {
		f.Add(seed)
	}
	filter := utilities.NewDoubleArray([][]string{{"namespace"}})
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		for _, target := range []proto.Message{&v1.LogsRequest{}, &v1.ListWorkloadsRequest{}, &v1.ListEventsRequest{}} {
			if err := (strictQuery{}).Parse(target, values, filter); err != nil && !strings.Contains(err.Error(), "parameter") {
				t.Fatalf("%q is refused with %v", query, err)
			}
		}
	})
}

// Paths of WebSockets come from anyone with a token.
func FuzzExecPath(f *testing.F) {
	f.Add("/v1/namespaces/default/workloads/web:exec")
	f.Add("/v1/namespaces//workloads/:exec")
	f.Fuzz(func(t *testing.T, path string) {
		namespace, workload, ok := execPath(path)
		if ok && (namespace == "" || workload == "" || strings.ContainsAny(namespace+workload, "/")) {
			t.Fatalf("%q leads to %q in %q", path, workload, namespace)
		}
		if route(path) == "" {
			t.Fatalf("%q is counted nowhere", path)
		}
	})
}
