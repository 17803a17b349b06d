package server

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

func TestTokenGrantsItsRoleUntilItExpires(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	before := time.Now()
	made, err := admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "ci", Role: core.RoleOperator})
	must(t, err)
	if ttl := made.GetToken().GetSpec().GetExpireTime().AsTime().Sub(before).Round(time.Hour); ttl != 24*time.Hour {
		t.Errorf("a token without a ttl holds for %s, want a day", ttl)
	}
	me, err := c.dial(nil, made.GetSecret()).WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	must(t, err)
	if me.GetRole() != core.RoleOperator || !strings.HasSuffix(me.GetId(), "/user/ci") {
		t.Errorf("the token's bearer is %v", me)
	}
	short, err := admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "short", Role: core.RoleOperator, Ttl: "1ms"})
	must(t, err)
	_, err = c.dial(nil, short.GetSecret()).WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	wantCode(t, err, codes.Unauthenticated, "API token short expired at 20", "cloudless token create --role operator", "cloudless login")
}

// The CLI authenticates a server that it knows only by its address, by the fingerprint in
// the token.
func TestAPITokenNamesTheCAOfItsCluster(t *testing.T) {
	c := newCluster(t)
	token, err := identity.ParseAPIToken(c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer}))
	must(t, err)
	if ca, ok := token.CA(); !ok || ca != c.ca.Trust().Fingerprint() {
		t.Errorf("the token names CA %s (%v), want %s", ca, ok, c.ca.Trust().Fingerprint())
	}
}

func TestInvalidTokenRequestsAreRefused(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	must1 := func(_ *v1.CreateTokenResponse, err error) error { return err }
	wantCode(t, must1(admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: "root"})), codes.InvalidArgument, "role")
	wantCode(t, must1(admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Ttl: "soon"})), codes.InvalidArgument, "ttl")
	wantCode(t, must1(admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Ttl: "0s"})), codes.InvalidArgument, "ttl", "more than 0")
	wantCode(t, must1(admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Uses: 2})), codes.InvalidArgument, "uses")
	must(t, must1(admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "ci", Role: core.RoleViewer})))
	wantCode(t, must1(admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "ci", Role: core.RoleViewer})), codes.AlreadyExists, "token ci exists already", "cloudless token rm ci")
	_, err := admin.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "nope"})
	wantCode(t, err, codes.NotFound, "token nope does not exist")
}

// A call whose answer was lost is repeated. The first secret is not stored, so a new one
// replaces it.
func TestRepeatedTokenCallReplacesTheSecret(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	request := &v1.CreateTokenRequest{Name: "ci", Role: core.RoleViewer, IdempotencyKey: "k"}
	first, err := admin.CreateToken(c.ctx, request)
	must(t, err)
	again, err := admin.CreateToken(c.ctx, request)
	must(t, err)
	if again.GetToken().GetMetadata().GetUid() != first.GetToken().GetMetadata().GetUid() || again.GetSecret() == first.GetSecret() {
		t.Errorf("the repeated call answered with token %v, and another secret: %v", again.GetToken(), again.GetSecret() != first.GetSecret())
	}
	_, err = c.dial(nil, first.GetSecret()).ListNodes(c.ctx, &v1.ListNodesRequest{})
	wantCode(t, err, codes.Unauthenticated)
	_, err = c.dial(nil, again.GetSecret()).ListNodes(c.ctx, &v1.ListNodesRequest{})
	must(t, err)
	_, err = admin.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "ci"})
	must(t, err)
	_, err = c.dial(nil, again.GetSecret()).ListNodes(c.ctx, &v1.ListNodesRequest{})
	wantCode(t, err, codes.Unauthenticated)
	_, err = admin.CreateToken(c.ctx, request)
	wantCode(t, err, codes.FailedPrecondition, "has been revoked since", "new idempotency key")
}

// A join token that a machine has used was not lost: it keeps its secret.
func TestRepeatedTokenCallKeepsAUsedSecret(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	request := &v1.CreateTokenRequest{Role: core.RoleNode, Uses: 2, IdempotencyKey: "k"}
	made, err := admin.CreateToken(c.ctx, request)
	must(t, err)
	_, err = c.enroll("n1", made.GetSecret())
	must(t, err)
	_, err = admin.CreateToken(c.ctx, request)
	wantCode(t, err, codes.FailedPrecondition, "has been used since")
	_, err = c.enroll("n2", made.GetSecret())
	must(t, err)
}

func TestRevocationEndsOpenStreamsAtOnce(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	made, err := admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "ci", Role: core.RoleOperator})
	must(t, err)
	other, err := admin.WatchWorkloads(c.ctx, &v1.WatchWorkloadsRequest{})
	must(t, err)
	_, err = other.Recv()
	must(t, err)

	ci := c.dial(nil, made.GetSecret())
	watch, err := ci.WatchWorkloads(c.ctx, &v1.WatchWorkloadsRequest{})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
	health, err := healthv1.NewHealthClient(ci.conn).Watch(c.ctx, &healthv1.HealthCheckRequest{})
	must(t, err)
	_, err = health.Recv()
	must(t, err)
	reflection, err := reflectionv1.NewServerReflectionClient(ci.conn).ServerReflectionInfo(c.ctx)
	must(t, err)
	must(t, reflection.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	_, err = reflection.Recv()
	must(t, err)

	_, err = admin.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "ci"})
	must(t, err)
	_, err = watch.Recv()
	wantCode(t, err, codes.Unauthenticated, "revoked")
	_, err = health.Recv()
	wantCode(t, err, codes.Unauthenticated, "revoked")
	_, err = reflection.Recv() // waits for the caller's next message
	wantCode(t, err, codes.Unauthenticated, "revoked")
	_, err = ci.WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	wantCode(t, err, codes.Unauthenticated, "revoked")

	// Streams of other callers go on.
	_, err = admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	if change, err := other.Recv(); err != nil || change.GetChange() != changeAdded {
		t.Errorf("the watch of another token received %v, %v", change, err)
	}
}

// secretWords returns the parts of a token that must never appear after its creation.
func secretWords(t *testing.T, c *cluster, secret string) []string {
	t.Helper()
	words := []string{secret, strings.Split(secret, "_")[2]}
	credential := c.Store.Snapshot().Credential(strings.Split(secret, "_")[1])
	if credential == nil {
		t.Fatal("the token has no credential")
	}
	for _, encode := range []func([]byte) string{hex.EncodeToString, base64.StdEncoding.EncodeToString, base64.RawURLEncoding.EncodeToString} {
		words = append(words, encode(credential.GetHash()))
	}
	return append(words, string(credential.GetHash()))
}

func TestNoAnswerEventOrLogLineHasASecret(t *testing.T) {
	c := newCluster(t)
	admin := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin})
	join := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: 2})
	used, err := c.enroll("n1", join)
	must(t, err)
	_, err = c.enroll("n2", strings.Replace(join, "cljoin", "clapi", 1))
	wantCode(t, err, codes.Unauthenticated)
	forbidden := append(secretWords(t, c, admin), secretWords(t, c, join)...)

	var said strings.Builder
	for _, path := range []string{
		"/v1/tokens", "/v1/events", "/v1/nodes", "/v1/nodes/n1", "/v1/workloads", "/v1/replicas", "/v1/images", "/v1/cluster", "/v1/whoami",
		"/metrics", "/openapi.json", "/v1/tokens?page.size=0", "/v1/nothing",
	} {
		_, body := c.request(nil, http.MethodGet, path, "", "Authorization", "Bearer "+admin)
		said.WriteString(body)
	}
	_, body := c.request(nil, http.MethodGet, "/v1/whoami", "", "Authorization", "Bearer "+admin+"x")
	said.WriteString(body)
	for _, word := range forbidden {
		if strings.Contains(said.String(), word) {
			t.Errorf("an answer contains a secret")
		}
		if strings.Contains(c.log.String(), word) {
			t.Errorf("the log contains a secret")
		}
	}
	if !strings.Contains(said.String(), used.uid()) || !strings.Contains(said.String(), "with token") {
		t.Error("the answers that were searched are not those of this cluster")
	}
}

func TestJoinTokenIsNoAPIToken(t *testing.T) {
	c := newCluster(t)
	join := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode})
	_, err := c.dial(nil, join).WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	wantCode(t, err, codes.Unauthenticated)
	parsed, err := identity.ParseJoinToken(join)
	must(t, err)
	if strings.Contains(parsed.String(), strings.Split(join, "_")[2]) {
		t.Error("a token shows its secret")
	}
}

func TestRoleOfAToken(t *testing.T) {
	c := newCluster(t)
	for _, test := range []struct {
		secret, role string
		known        bool
	}{
		{c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin}), core.RoleAdmin, true},
		{c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer}), core.RoleViewer, true},
		{c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode}), "", true},
		{identity.NewAPIToken(c.ca.Trust().Fingerprint()).Reveal(), "", false},
	} {
		if role, known := c.RoleOf(test.secret); role != test.role || known != test.known {
			t.Errorf("role %q, known %v; want %q, %v", role, known, test.role, test.known)
		}
	}
}
