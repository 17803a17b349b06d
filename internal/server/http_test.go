package server

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/gateway"
	"github.com/cloudless/cloudless/internal/server/oneport"
)

// refusedJSON is the JSON of every refusal over HTTP.
type refusedJSON struct {
	Code    codes.Code        `json:"code"`
	Message string            `json:"message"`
	Details []json.RawMessage `json:"details"`
}

func TestRefusalsOverHTTPHaveOneShape(t *testing.T) {
	c := newCluster(t)
	operator := "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})
	for _, ask := range []struct {
		method, path, body, token string
		status                    int
		code                      codes.Code
		words                     string
	}{
		{"GET", "/v1/workloads", "", "", 401, codes.Unauthenticated, "needs an identity"},
		{"GET", "/v1/tokens", "", operator, 403, codes.PermissionDenied, "has role \"operator\""},
		{"GET", "/v1/namespaces/default/workloads/nope", "", operator, 404, codes.NotFound, "workload nope does not exist"},
		{"GET", "/v1/nothing", "", operator, 404, codes.NotFound, "there is nothing at /v1/nothing: see /openapi.json"},
		{"POST", "/v1/workloads", `{"metadata":{"name":"web"},"spec":{"imagee":"x"}}`, operator, 400, codes.InvalidArgument, "imagee"},
		{"POST", "/v1/workloads", `{"metadata":{"name":"web"},"spec":{}}`, operator, 400, codes.InvalidArgument, "spec.image"},
		{"POST", "/v1/workloads", `{`, operator, 400, codes.InvalidArgument, "is not valid JSON"},
		{"POST", "/v1/workloads", `{} {}`, operator, 400, codes.InvalidArgument, "must be one JSON value, not 2"},
		{"POST", "/v1/workloads", `[]`, operator, 400, codes.InvalidArgument, "must have fields, not be a list"},
		{"PUT", "/v1/namespaces/default/workloads/web", `{"metadata":{"name":"other"},"spec":{"image":"x"}}`, operator, 400, codes.InvalidArgument, "metadata.name: is another one than in the path, where it is web"},
		{"PUT", "/v1/namespaces/default/workloads/web", `{"metadata":{"name":"web","namespace":"shop"},"spec":{"image":"x"}}`, operator, 400, codes.InvalidArgument, "metadata.namespace: is another one than in the path"},
		{"GET", "/v1/workloads?page.size=5000", "", operator, 400, codes.InvalidArgument, "page.size"},
		{"GET", "/v1/workloads?page.sizee=5", "", operator, 400, codes.InvalidArgument, `unknown parameter "page.sizee": there are selection.namespace, selection.labels, page.size, page.token, consistency`},
		{"POST", "/v1/workloads?workload.spec.replicas=3", `{}`, operator, 400, codes.InvalidArgument, "parameter workload.spec.replicas: is already set by the path or the body"},
		{"DELETE", "/v1/namespaces/default/workloads/web?name=other", "", operator, 400, codes.InvalidArgument, "parameter name: is already set by the path or the body"},
		{"POST", "/v1/namespaces/default/workloads/web:scale?replicas=3", "", operator, 400, codes.InvalidArgument, `unknown parameter "replicas": this call takes its fields from the body`},
		{"POST", "/v1/namespaces/default/workloads/web:scale", "{}", operator, 400, codes.InvalidArgument, "replicas: is missing"},
		{"GET", "/v1/namespaces/default/workloads/web?name=other", "", operator, 400, codes.InvalidArgument, `unknown parameter "name": there is consistency alone`},
		{"GET", "/v1/images/app?nam=x", "", operator, 400, codes.InvalidArgument, `unknown parameter "nam": there is`},
		{"GET", "/v1/whoami?consistency=fresh", "", operator, 400, codes.InvalidArgument, `parameter consistency: must be stale or left out, not "fresh"`},
		{"GET", "/v1/workloads?consistency=fresh", "", operator, 400, codes.InvalidArgument, `parameter consistency: must be stale or left out, not "fresh"`},
		{"GET", "/v1/namespaces/default/workloads/web:logs?tail=x", "", operator, 400, codes.InvalidArgument, `parameter tail: must be a whole number, not "x"`},
		{"GET", "/v1/namespaces/default/workloads/web:logs?since=x", "", operator, 400, codes.InvalidArgument, `parameter since: must be a time such as`},
		{"GET", "/v1/namespaces/default/workloads/nope:logs", "", operator, 404, codes.NotFound, "workload nope does not exist"},
		{"GET", "/v1/workloads:watch?selection.labels=!", "", operator, 400, codes.InvalidArgument, "labels"},
		{"PUT", "/v1/workloads", "{}", operator, 405, codes.Unimplemented, "PUT cannot be done at /v1/workloads"},
		{"GET", "/v1/namespaces/default/workloads/web:exec", "", operator, 400, codes.InvalidArgument, "exec is a WebSocket"},
		{"POST", "/v2/app/blobs/uploads/", "", "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer}), 403, codes.PermissionDenied, "push images"},
	} {
		var header []string
		if ask.token != "" {
			header = []string{"Authorization", ask.token}
		}
		response, body := c.request(nil, ask.method, ask.path, ask.body, header...)
		var got refusedJSON
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Errorf("%s %s: %q is not JSON", ask.method, ask.path, body)
			continue
		}
		if response.StatusCode != ask.status || got.Code != ask.code || !strings.Contains(got.Message, ask.words) ||
			response.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %s %s", ask.method, ask.path, response.Status, body)
		}
	}
}

// An error in a body names the field, as an error in a valid body does.
func TestWrongBodiesNameTheField(t *testing.T) {
	c := newCluster(t)
	operator := "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})
	for _, ask := range []struct{ path, body, field, why string }{
		{"/v1/workloads", `{"spec":{"replcas":1}}`, "spec.replcas", "is not a known field; did you mean replicas?"},
		{"/v1/workloads", `{"spec":{"replicas":"many"}}`, "spec.replicas", "must be a whole number"},
		{"/v1/workloads", `{"metadata":{"name":5}}`, "metadata.name", "must be a text in quotes"},
		{"/v1/workloads", `{"spec":{"ports":[{"port":true}]}}`, "spec.ports[0].port", "must be a whole number"},
		{"/v1/namespaces/default/workloads/web:scale", `{"replica":1}`, "replica", "is not a known field; did you mean replicas?"},
	} {
		response, body := c.request(nil, http.MethodPost, ask.path, ask.body, "Authorization", operator)
		var got struct {
			Message string
			Details []struct {
				FieldViolations []struct{ Field, Description string }
			}
		}
		must(t, json.Unmarshal([]byte(body), &got))
		if response.StatusCode != http.StatusBadRequest || len(got.Details) != 1 || len(got.Details[0].FieldViolations) != 1 {
			t.Errorf("%s: %s %s", ask.body, response.Status, body)
			continue
		}
		found := got.Details[0].FieldViolations[0]
		if found.Field != ask.field || !strings.HasPrefix(found.Description, ask.why) || !strings.HasPrefix(got.Message, ask.field+": "+ask.why) {
			t.Errorf("%s: %s", ask.body, body)
		}
	}
}

// A stream says why it ends, over HTTP too.
func TestStreamOverHTTPSaysThatItsTokenIsRevoked(t *testing.T) {
	c := newCluster(t)
	made, err := c.as(core.RoleAdmin).CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "ci", Role: core.RoleViewer})
	must(t, err)
	request, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "https://cloudless/v1/workloads:watch", nil)
	must(t, err)
	request.Header.Set("Authorization", "Bearer "+made.GetSecret())
	response, err := c.web(nil).Do(request)
	must(t, err)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	_, err = lines.ReadString('\n') // the watch has begun
	must(t, err)
	_, err = c.as(core.RoleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "ci"})
	must(t, err)
	rest, err := io.ReadAll(lines)
	must(t, err)
	if body := string(rest); !strings.Contains(body, `"code":16`) || !strings.Contains(body, "revoked") {
		t.Errorf("the watch ended with %s", body)
	}
}

func TestWorkloadOverHTTP(t *testing.T) {
	c := newCluster(t)
	header := []string{"Authorization", "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})}
	do := func(method, path, body string) map[string]any {
		t.Helper()
		response, text := c.request(nil, method, path, body, header...)
		if response.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s %s", method, path, response.Status, text)
		}
		var object map[string]any
		must(t, json.Unmarshal([]byte(text), &object))
		return object
	}
	const one = "/v1/namespaces/default/workloads/web"
	made := do("POST", "/v1/workloads?idempotencyKey=k", `{"metadata":{"name":"web"},"spec":{"image":"example.com/a:1","replicas":0}}`)
	if made["kind"] != "Workload" || made["apiVersion"] != "cloudless/v1" || made["metadata"].(map[string]any)["namespace"] != "default" {
		t.Errorf("created %v", made)
	}
	again := do("POST", "/v1/workloads?idempotencyKey=k", `{"metadata":{"name":"web"},"spec":{"image":"example.com/a:1","replicas":0}}`)
	if again["metadata"].(map[string]any)["uid"] != made["metadata"].(map[string]any)["uid"] {
		t.Error("the idempotency key does nothing over HTTP")
	}
	if scaled := do("POST", one+":scale", `{"replicas":2}`); scaled["spec"].(map[string]any)["replicas"] != 2.0 {
		t.Errorf("scaled to %v", scaled)
	}
	version := do("GET", one, "")["metadata"].(map[string]any)["version"].(string)
	updated := do("PUT", one, `{"metadata":{"version":"`+version+`"},"spec":{"image":"example.com/a:2"}}`)
	if updated["status"].(map[string]any)["revision"] != "2" {
		t.Errorf("updated to %v", updated)
	}
	response, body := c.request(nil, "PUT", one, `{"metadata":{"version":"`+version+`"},"spec":{"image":"example.com/a:3"}}`, header...)
	var refused refusedJSON
	must(t, json.Unmarshal([]byte(body), &refused))
	if response.StatusCode != http.StatusConflict || len(refused.Details) != 1 || !strings.Contains(string(refused.Details[0]), "example.com/a:2") {
		t.Errorf("an outdated update: %s %s", response.Status, body)
	}
	if deleted := do("DELETE", one, ""); deleted["status"].(map[string]any)["phase"] != "deleting" {
		t.Errorf("deleted %v", deleted)
	}
}

// The limit of bytes before authentication must not cut off a caller that is about to authenticate.
func TestLargeFirstRequestIsNotCutOff(t *testing.T) {
	if allowed := oneport.DefaultLimits().Bytes; httpWindow+maxHeaders >= allowed {
		t.Errorf("a client may send %d bytes of headers and %d of a body before a handler looks at it, and is cut off after %d", maxHeaders, httpWindow, allowed)
	}
}

func TestTooLongRequestIsRefused(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})
	body := `{"metadata":{"name":"web"},"spec":{"image":"` + strings.Repeat("x", gateway.MaxMessage) + `"}}`
	response, text := c.request(nil, http.MethodPost, "/v1/workloads", body, "Authorization", "Bearer "+token)
	if response.StatusCode != http.StatusBadRequest || !strings.Contains(text, "more than the maximum of 8388608") {
		t.Errorf("a request of %d bytes: %s %.200s", len(body), response.Status, text)
	}
}
