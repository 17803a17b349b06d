package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
)

// The matrix: every method of the contract, called by every kind of caller. What is allowed follows from the declarations
// alone, so a new method is in the matrix as soon as it exists.

// matrixCaller is one kind of caller.
type matrixCaller struct {
	name string
	// role is that of the token or the certificate; empty for a caller without an identity. namespace is the only one in
	// which it counts.
	role, namespace string
	creds           *identity.Credentials
	token           string
	user            *user
}

func (c *cluster) matrixCallers() []*matrixCaller {
	all := []*matrixCaller{
		{name: "nobody"},
		{name: "a viewer", role: roles.Viewer},
		{name: "an operator", role: roles.Operator},
		{name: "an admin", role: roles.Admin},
		{name: "a viewer in shop", role: roles.Viewer, namespace: "shop"},
		{name: "an operator in shop", role: roles.Operator, namespace: "shop"},
		{name: "an admin in shop", role: roles.Admin, namespace: "shop"},
		{name: "a node", role: core.RoleNode, creds: c.join("machine").creds},
	}
	for _, caller := range all {
		if caller.role != "" && caller.creds == nil {
			caller.token = c.newTokenSecret(&v1.CreateTokenRequest{Role: caller.role, Namespace: caller.namespace})
		}
		caller.user = c.dial(caller.creds, caller.token)
	}
	return all
}

// allowed is what the declarations say about a call in a namespace, which is empty for a list of all namespaces.
func (m *matrixCaller) allowed(method api.Method, namespace string) bool {
	switch {
	case method.IsOpen():
		return true
	case m.role == "":
		return false
	case m.namespace == "" || !method.IsForRoles():
		return slices.Contains(auth.Permitted(method.Name), m.role)
	case !slices.Contains(auth.Permitted(method.Name), m.role):
		return false
	case method.Kind == api.AnyKind:
		return namespace == m.namespace
	}
	lists := method.Reads && !strings.HasPrefix(string(method.Descriptor.Name()), "Get") || method.Name == v1.WorkloadService_GetUsage_FullMethodName
	counts := slices.ContainsFunc(method.Verbs, func(verb string) bool { return roles.Scoped(verb, method.Kind) })
	return counts && (namespace == m.namespace || namespace == "" && lists)
}

// refusedAs reports whether an answer refuses the caller rather than the request.
func refusedAs(m *matrixCaller, code codes.Code) bool {
	if m.role == "" {
		return code == codes.Unauthenticated
	}
	return code == codes.PermissionDenied
}

// request is a request about a namespace that changes nothing if it is allowed: the names in it are wrong.
func matrixRequest(t *testing.T, m api.Method, namespace string) proto.Message {
	t.Helper()
	if plan := planIn(m, namespace); plan != nil {
		return plan
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Descriptor.Input().FullName())
	must(t, err)
	request := kind.New()
	if start := request.Descriptor().Fields().ByName("start"); start != nil && start.Message() != nil {
		fillWrong(request.Mutable(start).Message(), m, namespace)
	}
	fillWrong(request, m, namespace)
	return request.Interface()
}

// wrongName is a name that no rule of the contract allows.
const wrongName = "Not A Name"

func fillWrong(r protoreflect.Message, m api.Method, namespace string) {
	for i := range r.Descriptor().Fields().Len() {
		field := r.Descriptor().Fields().Get(i)
		text := field.Kind() == protoreflect.StringKind && !field.IsList() && !field.IsMap()
		switch name := string(field.Name()); {
		case text && name == "namespace":
			r.Set(field, protoreflect.ValueOfString(namespace))
		case text && name == "name" && m.Kind == "namespace" && m.Reads && namespace != "":
			r.Set(field, protoreflect.ValueOfString(namespace))
		case text && name == "name" && m.Kind == "image" && namespace != "":
			r.Set(field, protoreflect.ValueOfString(namespace+"/"+wrongName))
		case text && (name == "name" || name == "workload" || name == "service" || name == "id_token"):
			r.Set(field, protoreflect.ValueOfString(wrongName))
		case field.IsList() && field.Kind() == protoreflect.StringKind:
			r.Mutable(field).List().Append(protoreflect.ValueOfString(strings.Repeat(wrongName, 1000)))
		case text && name == "idempotency_key":
			r.Set(field, protoreflect.ValueOfString(strings.Repeat("k", 200)))
		case name == "selection":
			fillWrong(r.Mutable(field).Message(), m, namespace)
		case field.Message() != nil && !field.IsList() && !field.IsMap() && strings.EqualFold(string(field.Message().Name()), m.Kind):
			o := r.Mutable(field).Message()
			if metadata := o.Descriptor().Fields().ByName("metadata"); metadata != nil {
				fillWrong(o.Mutable(metadata).Message(), m, namespace)
				if kind, _ := api.KindOf(m.Kind); !kind.Namespaced {
					o.Mutable(metadata).Message().Clear(metadata.Message().Fields().ByName("namespace"))
				}
			}
		}
	}
}

// planIn is a request with an object in a namespace, for methods whose requests hold objects of any kind.
func planIn(m api.Method, namespace string) proto.Message {
	plan := asking(placedIn(workload("matrix", replicasOf(0)), namespace))
	switch m.Name {
	case v1.PlanService_MakePlan_FullMethodName:
		return plan
	case v1.PlanService_ApplyPlan_FullMethodName:
		return &v1.ApplyPlanRequest{Request: plan, Fingerprint: "outdated"}
	}
	return nil
}

// namespacesOf are the namespaces in which the matrix calls a method; empty stands for none or all.
func namespacesOf(m api.Method) []string {
	if m.Kind == api.AnyKind {
		return []string{"shop", "other"}
	}
	return []string{"shop", "other", ""}
}

// namespaceOf is the namespace that a request is about: that which was asked for, where the request can say it.
func namespaceOf(m api.Method, asked string) string {
	kind, _ := api.KindOf(m.Kind)
	fields := m.Descriptor.Input().Fields()
	switch {
	case asked == "" && kind.Namespaced && !lists(m):
		return "default"
	case m.Kind == "image" && fields.ByName("name") == nil, m.Kind == "namespace" && (fields.ByName("name") == nil || !m.Reads):
		return ""
	}
	return asked
}

func lists(m api.Method) bool {
	name := string(m.Descriptor.Name())
	return strings.HasPrefix(name, "List") || strings.HasPrefix(name, "Watch") || m.Name == v1.WorkloadService_GetUsage_FullMethodName
}

// callOnce calls a method with one request, or sends it as the first message of a stream and waits for what follows.
func callOnce(ctx context.Context, conn *grpc.ClientConn, m api.Method, request proto.Message) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !m.Descriptor.IsStreamingClient() && !m.Descriptor.IsStreamingServer() {
		return conn.Invoke(ctx, m.Name, request, &ignored{}, grpc.ForceCodec(ignoring{}))
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, m.Name, grpc.ForceCodec(ignoring{}))
	if err != nil {
		return err
	}
	_ = stream.SendMsg(request) // the answer says more than this error
	if !m.Descriptor.IsStreamingClient() {
		_ = stream.CloseSend()
	}
	if header, err := stream.Header(); err == nil && core.HasBegun(header) {
		return nil
	}
	return stream.RecvMsg(&ignored{})
}

// ignored is an answer of any type.
type ignored struct{}

// ignoring encodes requests and ignores answers.
type ignoring struct{}

func (ignoring) Marshal(v any) ([]byte, error)   { return proto.Marshal(v.(proto.Message)) }
func (ignoring) Unmarshal(_ []byte, _ any) error { return nil }
func (ignoring) Name() string                    { return "proto" }

// Methods of machines wait for messages of machines; who may call them is decided before.
func endless(m api.Method) bool {
	return !m.IsForRoles() && (m.Descriptor.IsStreamingClient() || m.Descriptor.IsStreamingServer())
}

func TestMatrixOfMethodsAndCallers(t *testing.T) {
	c := newCluster(t, func(o *Options) {
		o.Strangers = oneport.DefaultLimits()
		o.Strangers.Refusals = 10_000 // more than the test makes on one connection
	})
	c.namespaced("shop", "other")
	calls, refused := 0, 0
	for _, caller := range c.matrixCallers() {
		for m := range api.Methods() {
			if _, registered := c.methods()[m.Name]; !registered || !strings.HasPrefix(m.Name, "/cloudless.") {
				continue
			}
			if m.IsOpen() && caller.role == "" {
				continue // it authenticates its caller itself, by the request
			}
			for _, asked := range namespacesOf(m) {
				as := caller.user
				if m.Name == v1.LoginService_RenewToken_FullMethodName || m.Name == v1.LoginService_Logout_FullMethodName {
					if caller.token != "" { // a token of its own, which does not outlive the call
						as = c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Role: caller.role, Namespace: caller.namespace}))
					}
				}
				var err error
				if endless(m) {
					err = knock(c.ctx, as.conn, m.Name, true)
				} else {
					err = callOnce(c.ctx, as.conn, m, matrixRequest(t, m, asked))
				}
				about := namespaceOf(m, asked)
				want := caller.allowed(m, about)
				if got := !refusedAs(caller, status.Code(err)); got != want {
					t.Errorf("%s calls %s in namespace %q: %v, want allowed: %t", caller.name, m.Name, asked, err, want)
				}
				if calls++; !want {
					refused++
				}
				if p := status.Convert(err); !want && caller.token != "" && m.IsForRoles() && !strings.Contains(p.Message(), "would be sufficient") {
					t.Errorf("%s calls %s in namespace %q, and the refusal names no sufficient role: %s", caller.name, m.Name, asked, p.Message())
				}
			}
		}
	}
	t.Logf("%d calls, %d refused", calls, refused)
	if calls < 2000 || refused < 500 {
		t.Errorf("only %d calls were made, and %d refused", calls, refused)
	}
}

func TestMatrixOverHTTP(t *testing.T) {
	c := newCluster(t, func(o *Options) {
		o.Strangers = oneport.DefaultLimits()
		o.Strangers.Refusals = 10_000 // more than the test makes on one connection
	})
	c.namespaced("shop", "other")
	calls := 0
	for _, caller := range c.matrixCallers() {
		header := []string{}
		if caller.token != "" {
			header = []string{"Authorization", "Bearer " + caller.token}
		}
		web := c.web(caller.creds)
		for m := range api.Methods() {
			rule, _ := proto.GetExtension(m.Descriptor.Options(), annotations.E_Http).(*annotations.HttpRule)
			if _, registered := c.methods()[m.Name]; rule == nil || !registered || m.IsOpen() ||
				m.Name == v1.LoginService_RenewToken_FullMethodName || m.Name == v1.LoginService_Logout_FullMethodName {
				continue
			}
			for _, asked := range namespacesOf(m) {
				verb, path, body := httpRequest(t, rule, matrixRequest(t, m, asked))
				code := c.begin(web, verb, path, body, header...)
				about := namespaceOf(m, asked)
				if about == "" && strings.Contains(path, "/namespaces/default/") {
					about = "default" // a path always names one
				}
				want := caller.allowed(m, about)
				got := code != http.StatusForbidden && code != http.StatusUnauthorized
				if calls++; got != want {
					t.Errorf("%s asks %s %s: %d, want allowed: %t", caller.name, verb, path, code, want)
				}
			}
		}
	}
	if calls < 1000 {
		t.Errorf("only %d calls were made", calls)
	}
}

// begin sends a request and does not wait for the end of the answer, which watches do not have.
func (c *cluster) begin(web *http.Client, verb, path, body string, header ...string) int {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, verb, "https://cloudless"+path, strings.NewReader(body))
	must(c.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := web.Do(r)
	must(c.t, err)
	defer response.Body.Close()
	return response.StatusCode
}

var pathVariable = regexp.MustCompile(`\{([a-z_.]+)(=[^}]*)?\}`)

// httpRequest is a request in the form of the method's HTTP rule.
func httpRequest(t *testing.T, rule *annotations.HttpRule, request proto.Message) (verb, path, body string) {
	t.Helper()
	switch pattern := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		verb, path = http.MethodGet, pattern.Get
	case *annotations.HttpRule_Put:
		verb, path = http.MethodPut, pattern.Put
	case *annotations.HttpRule_Post:
		verb, path = http.MethodPost, pattern.Post
	case *annotations.HttpRule_Delete:
		verb, path = http.MethodDelete, pattern.Delete
	case *annotations.HttpRule_Patch:
		verb, path = http.MethodPatch, pattern.Patch
	}
	inPath := map[string]bool{}
	path = pathVariable.ReplaceAllStringFunc(path, func(variable string) string {
		name := pathVariable.FindStringSubmatch(variable)[1]
		inPath[name] = true
		value := textIn(request, name)
		if value == "" {
			value = "default"
			if strings.HasSuffix(name, "name") {
				value = wrongName
			}
		}
		if strings.Contains(variable, "=") { // may hold slashes
			return strings.ReplaceAll(url.PathEscape(value), "%2F", "/")
		}
		return url.PathEscape(value)
	})
	if rule.GetBody() == "" {
		query := url.Values{}
		for _, name := range []string{"namespace", "selection.namespace"} {
			if value := textIn(request, name); value != "" && !inPath[name] {
				query.Set(name, value)
			}
		}
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		return verb, path, ""
	}
	whole, err := protojson.Marshal(request)
	must(t, err)
	if rule.GetBody() == "*" {
		return verb, path, string(whole)
	}
	var parts map[string]json.RawMessage
	must(t, json.Unmarshal(whole, &parts))
	for key, part := range parts {
		if strings.EqualFold(key, strings.ReplaceAll(rule.GetBody(), "_", "")) {
			return verb, path, string(part)
		}
	}
	return verb, path, "{}"
}

func textIn(m proto.Message, path string) string {
	at := m.ProtoReflect()
	parts := strings.Split(path, ".")
	for i, part := range parts {
		field := at.Descriptor().Fields().ByName(protoreflect.Name(part))
		if field == nil || !at.Has(field) {
			return ""
		}
		if i == len(parts)-1 {
			return at.Get(field).String()
		}
		at = at.Get(field).Message()
	}
	return ""
}

// namespaced makes namespaces.
func (c *cluster) namespaced(names ...string) {
	c.t.Helper()
	for _, name := range names {
		_, err := c.as(roles.Admin).namespaces().CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: &v1.Namespace{
			ApiVersion: "cloudless/v1", Kind: "Namespace", Metadata: &v1.Metadata{Name: name},
		}})
		must(c.t, err)
	}
}
