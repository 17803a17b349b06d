package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
)

// The roles that may read, write and administer, and all roles.
var (
	mayRead  = []string{core.RoleViewer, core.RoleOperator, core.RoleAdmin}
	mayWrite = []string{core.RoleOperator, core.RoleAdmin}
	mayAdmin = []string{core.RoleAdmin}
	mayAll   = []string{core.RoleViewer, core.RoleOperator, core.RoleAdmin, core.RoleNode, core.RoleServer}
)

// methods returns all registered methods, and whether they stream.
func (c *cluster) methods() map[string]bool {
	all := map[string]bool{}
	for service, info := range c.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			all[fmt.Sprintf("/%s/%s", service, m.Name)] = m.IsClientStream || m.IsServerStream
		}
	}
	return all
}

// knock calls a method without an effect: with an empty request, or on a stream with a
// message that cannot be decoded.
func knock(ctx context.Context, conn *grpc.ClientConn, method string, streams bool) error {
	if !streams {
		return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	_ = stream.SendMsg([]byte{0xff}) // the answer says more than this error
	return stream.RecvMsg(new([]byte))
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "proto" }

// callers returns one caller for every role.
func (c *cluster) callers() map[string]*user {
	if c.Store.Snapshot().Server("s-2") == nil {
		c.addServers("s-2")
	}
	return map[string]*user{
		core.RoleAdmin: c.as(core.RoleAdmin), core.RoleOperator: c.as(core.RoleOperator), core.RoleViewer: c.as(core.RoleViewer),
		core.RoleNode: c.join("machine").user, core.RoleServer: c.dial(c.certificateOf(identity.KindServer, "s-2"), ""),
	}
}

func (c *cluster) certificateOf(kind identity.Kind, parts ...string) *identity.Credentials {
	c.t.Helper()
	id, err := identity.NewID(c.ca.Trust().Cluster(), kind, parts...)
	must(c.t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must(c.t, err)
	chain, err := c.ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Client: true}, time.Now())
	must(c.t, err)
	creds, err := identity.NewCredentials(key, chain)
	must(c.t, err)
	return creds
}

func TestServerRegistersEveryMethodOfTheContractAndNoOther(t *testing.T) {
	methods := newCluster(t, withNames(t)).methods()
	for method := range methods {
		if _, ok := api.MethodOf(method); !ok {
			t.Errorf("%s is registered, and the contract declares no caller for it", method)
		}
	}
	for m := range api.Methods() {
		if _, ok := methods[m.Name]; !ok && !strings.HasPrefix(m.Name, "/cloudless.v1.ChunkService/") { // nodes answer that one
			t.Errorf("%s is in the contract and not registered", m.Name)
		}
	}
}

func TestEveryMethodIsForItsDeclaredCallers(t *testing.T) {
	c := newCluster(t, withNames(t))
	for role, as := range c.callers() {
		for method, streams := range c.methods() {
			if isOpen(method) {
				continue
			}
			if method == v1.LoginService_Logout_FullMethodName {
				continue // it would end the caller
			}
			err := knock(c.ctx, as.conn, method, streams)
			allowed := slices.Contains(auth.Permitted(method), role)
			if denied := status.Code(err) == codes.PermissionDenied; denied == allowed || status.Code(err) == codes.Unauthenticated {
				t.Errorf("%s as %s: %v, want allowed %t", method, role, err, allowed)
			}
		}
	}
}

func TestRefusalNamesTheRoleAndThePermittedOnes(t *testing.T) {
	c := newCluster(t)
	_, err := c.as(core.RoleViewer).ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.PermissionDenied, `has role "viewer"`, "ScaleWorkload", "needs update on workload in namespace default", "role operator in namespace default would be sufficient", "cloudless token create --role operator")
}

// strangers returns callers without an identity of this cluster.
func (c *cluster) strangers() map[string]*user {
	other := newCluster(c.t)
	expired := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Ttl: "1ms"})
	join := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode})
	return map[string]*user{
		"nobody":                     c.dial(nil, ""),
		"garbage":                    c.dial(nil, "garbage"),
		"token of another cluster":   c.dial(nil, other.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin})),
		"expired token":              c.dial(nil, expired),
		"join token":                 c.dial(nil, join),
		"certificate of a workload":  c.dial(c.certificateOf(identity.KindWorkload, "default", "web"), ""),
		"certificate of a user":      c.dial(c.certificateOf(identity.KindUser, "admin"), ""),
		"node that is not a member":  c.dial(c.certificateOf(identity.KindNode, "0190aaaa-0000-7000-8000-000000000000"), ""),
		"certificate of a lost node": c.dial(c.certificateOf(identity.KindNode, "gone"), ""),
	}
}

func TestUnauthenticatedCallersAreRefused(t *testing.T) {
	c := newCluster(t, func(o *Options) {
		o.Strangers = oneport.DefaultLimits()
		o.Strangers.Refusals = 1000 // more than the test makes on one connection
	})
	for who, as := range c.strangers() {
		for method, streams := range c.methods() {
			if isOpen(method) {
				continue
			}
			if err := knock(c.ctx, as.conn, method, streams); status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s as %s: %v", method, who, err)
			}
		}
	}
}

// The refusal does not reveal whether a method exists.
func TestMethodsAreHiddenFromUnauthenticatedCallers(t *testing.T) {
	c := newCluster(t)
	for about, method := range map[string]string{
		"of a service that there is":     "/cloudless.v1.WorkloadService/Nothing",
		"of a service that there is not": "/cloudless.v1.NothingService/Nothing",
	} {
		for who, as := range c.strangers() {
			if err := knock(c.ctx, as.conn, method, false); status.Code(err) != codes.Unauthenticated {
				t.Errorf("a method %s as %s: %v", about, who, err)
			}
		}
		for role, as := range c.callers() {
			if err := knock(c.ctx, as.conn, method, false); status.Code(err) != codes.Unimplemented {
				t.Errorf("a method %s as %s: %v", about, role, err)
			}
		}
	}
}

func TestUnauthenticatedCallersAreRefusedOverHTTP(t *testing.T) {
	c := newCluster(t)
	join := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode})
	for _, path := range []string{
		"/", "/metrics", "/openapi.json", "/v2/", "/v2/app/manifests/1", "/v1/workloads", "/v1/whoami", "/v1/tokens", "/nothing",
		"/v1/namespaces/default/workloads/web:exec",
	} {
		for _, header := range [][]string{
			nil,
			{"Authorization", "Bearer garbage"},
			{"Authorization", "Bearer " + join},
			{"Authorization", "Basic dXNlcjpwYXNz"},
			{"X-Cloudless-Id", "spiffe://x/user/root", "X-Cloudless-Role", "admin"},
			{"Grpc-Metadata-X-Cloudless-Id", "spiffe://x/user/root", "Grpc-Metadata-X-Cloudless-Role", "admin"},
		} {
			response, body := c.request(nil, http.MethodGet, path, "", header...)
			if response.StatusCode != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %q: %s %s", path, header, response.Status, body)
			}
		}
	}
	response, body := c.request(nil, http.MethodGet, "/healthz", "")
	if response.StatusCode != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %s %q", response.Status, body)
	}
}

func TestHTTPRequiresTheRolesOfTheTable(t *testing.T) {
	c := newCluster(t)
	machine := c.join("machine")
	tokens := map[string]string{}
	for _, role := range mayRead {
		tokens[role] = c.newTokenSecret(&v1.CreateTokenRequest{Role: role})
	}
	for _, ask := range []struct {
		method, path string
		roles        []string
	}{
		{http.MethodGet, "/metrics", mayRead},
		{http.MethodGet, "/openapi.json", mayRead},
		{http.MethodGet, "/v2/", mayAll},
		{http.MethodPost, "/v2/app/blobs/uploads/", mayWrite},
		{http.MethodDelete, "/v2/app/manifests/1", mayWrite},
		{http.MethodGet, "/v1/workloads", mayRead},
		{http.MethodGet, "/v1/tokens", mayAdmin},
		{http.MethodPost, "/v1/namespaces/default/workloads/web:scale", mayWrite},
	} {
		for _, role := range []string{core.RoleAdmin, core.RoleOperator, core.RoleViewer, core.RoleNode} {
			var creds *identity.Credentials
			header := []string{"Authorization", "Bearer " + tokens[role]}
			if role == core.RoleNode {
				creds, header = machine.creds, nil
			}
			response, body := c.request(creds, ask.method, ask.path, "{}", header...)
			allowed := slices.Contains(ask.roles, role)
			if denied := response.StatusCode == http.StatusForbidden; denied == allowed || response.StatusCode == http.StatusUnauthorized {
				t.Errorf("%s %s as %s: %s %s, want allowed %t", ask.method, ask.path, role, response.Status, body, allowed)
			}
		}
	}
}

func TestForgedIdentityIsIgnored(t *testing.T) {
	c := newCluster(t)
	forged := c.ca.Trust().Cluster()
	viewer := c.newTokenSecret(&v1.CreateTokenRequest{Name: "eve", Role: core.RoleViewer})
	ctx := metadata.AppendToOutgoingContext(c.ctx,
		"x-cloudless-id", "spiffe://"+forged+"/user/root", "x-cloudless-role", core.RoleAdmin, "x-cloudless-token-uid", "", "x-cloudless-expires", "2999-01-01T00:00:00Z")

	_, err := c.dial(nil, "").WhoAmI(ctx, &v1.WhoAmIRequest{})
	wantCode(t, err, codes.Unauthenticated, "needs an identity")
	me, err := c.dial(nil, viewer).WhoAmI(ctx, &v1.WhoAmIRequest{})
	must(t, err)
	if me.GetRole() != core.RoleViewer || !strings.HasSuffix(me.GetId(), "/user/eve") {
		t.Errorf("a forged identity made the caller %v", me)
	}
	for _, prefix := range []string{"", "Grpc-Metadata-", "grpcgateway-"} {
		response, body := c.request(nil, http.MethodGet, "/v1/whoami", "", "Authorization", "Bearer "+viewer,
			prefix+"x-cloudless-id", "spiffe://"+forged+"/user/root", prefix+"x-cloudless-role", core.RoleAdmin)
		if response.StatusCode != http.StatusOK || !strings.Contains(body, "/user/eve") || !strings.Contains(body, core.RoleViewer) {
			t.Errorf("forged headers %q: %s %s", prefix, response.Status, body)
		}
	}
}

func TestCertificateTakesPrecedenceOverToken(t *testing.T) {
	c := newCluster(t)
	m := c.join("machine")
	both := c.dial(m.creds, c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin}))
	me, err := both.WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	must(t, err)
	if me.GetRole() != core.RoleNode {
		t.Errorf("a machine with a token acts as %v", me)
	}
}

// isOpen reports whether a method needs no identity.
func isOpen(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsOpen()
}
