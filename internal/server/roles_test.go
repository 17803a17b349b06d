package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func (u *user) roles() v1.RoleServiceClient { return v1.NewRoleServiceClient(u.conn) }

func role(name string, rules ...*v1.RoleRule) *v1.Role {
	return &v1.Role{ApiVersion: spec.APIVersion, Kind: "Role", Metadata: &v1.Metadata{Name: name}, Spec: &v1.RoleSpec{Rules: rules}}
}

func granting(verbs, kinds string) *v1.RoleRule {
	return &v1.RoleRule{Verbs: strings.Fields(verbs), Kinds: strings.Fields(kinds)}
}

func binding(name, role, namespace string, tokens ...string) *v1.RoleBinding {
	return &v1.RoleBinding{
		ApiVersion: spec.APIVersion, Kind: "RoleBinding", Metadata: &v1.Metadata{Name: name},
		Spec: &v1.RoleBindingSpec{Role: role, Namespace: namespace, Tokens: tokens},
	}
}

func (c *cluster) applyRole(as *user, r *v1.Role) error {
	_, err := as.roles().ApplyRole(c.ctx, &v1.ApplyRoleRequest{Role: r})
	return err
}

func (c *cluster) applyBinding(as *user, b *v1.RoleBinding) error {
	_, err := as.roles().ApplyRoleBinding(c.ctx, &v1.ApplyRoleBindingRequest{RoleBinding: b})
	return err
}

// in is a caller with a role in one namespace.
func (c *cluster) in(namespace, role string) *user {
	c.t.Helper()
	return c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Role: role, Namespace: namespace}))
}

func placedIn(w *v1.Workload, namespace string) *v1.Workload {
	w.Metadata.Namespace = namespace
	return w
}

func TestRolesAreDefinedBoundAndRemoved(t *testing.T) {
	c := newCluster(t)
	c.namespaced("shop")
	admin := c.as(roles.Admin)
	must(t, c.applyRole(admin, role("scaler", granting("get update", "workload"))))
	secret := c.newTokenSecret(&v1.CreateTokenRequest{Name: "ci", Role: "scaler", Namespace: "shop", Purpose: "releases"})
	ci := c.dial(nil, secret)
	me, err := ci.WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	must(t, err)
	if got := strings.Join(me.GetRoles(), ", "); got != "scaler in shop" || me.GetNamespace() != "shop" {
		t.Errorf("the bearer is %v", me)
	}
	_, err = ci.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: placedIn(workload("web"), "shop")})
	wantCode(t, err, codes.PermissionDenied, "needs create on workload in namespace shop", `has role "scaler" in namespace shop`, "role operator in namespace shop would be sufficient")

	must(t, c.applyRole(admin, role("scaler", granting("get create update", "workload")))) // counts at once
	_, err = ci.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: placedIn(workload("web"), "shop")})
	must(t, err)
	_, err = ci.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	wantCode(t, err, codes.PermissionDenied, "in namespace default")

	_, err = admin.roles().DeleteRole(c.ctx, &v1.DeleteRoleRequest{Name: "scaler"})
	wantCode(t, err, codes.FailedPrecondition, "role scaler is in use by token ci")
	must(t, c.applyBinding(admin, binding("more", roles.Viewer, "", "ci")))
	if _, err = ci.ListNodes(c.ctx, &v1.ListNodesRequest{}); err != nil {
		t.Errorf("a bound role does not count: %v", err)
	}
	_, err = admin.roles().DeleteRoleBinding(c.ctx, &v1.DeleteRoleBindingRequest{Name: "more"})
	must(t, err)
	_, err = ci.ListNodes(c.ctx, &v1.ListNodesRequest{})
	wantCode(t, err, codes.PermissionDenied, "role viewer would be sufficient")
	_, err = admin.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "ci"})
	must(t, err)
	_, err = admin.roles().DeleteRole(c.ctx, &v1.DeleteRoleRequest{Name: "scaler"})
	must(t, err)
}

func TestBuiltinRolesAreListedAndCannotBeChanged(t *testing.T) {
	c := newCluster(t)
	admin := c.as(roles.Admin)
	must(t, c.applyRole(admin, role("deployer", granting("get", "workload"))))
	answer, err := admin.roles().ListRoles(c.ctx, &v1.ListRolesRequest{})
	must(t, err)
	var names []string
	for _, r := range answer.GetItems() {
		names = append(names, r.GetMetadata().GetName())
	}
	if got := strings.Join(names, " "); got != "admin deployer operator viewer" {
		t.Errorf("the roles are %s", got)
	}
	wantCode(t, c.applyRole(admin, role(roles.Viewer, granting("*", "*"))), codes.FailedPrecondition, "role viewer always exists and cannot be changed")
	_, err = admin.roles().DeleteRole(c.ctx, &v1.DeleteRoleRequest{Name: roles.Admin})
	wantCode(t, err, codes.FailedPrecondition, "cannot be changed")
	_, err = admin.roles().CreateRole(c.ctx, &v1.CreateRoleRequest{Role: role(roles.Operator)})
	wantCode(t, err, codes.AlreadyExists)
}

func TestBadRolesAndBindingsAreRefused(t *testing.T) {
	c := newCluster(t)
	admin := c.as(roles.Admin)
	wantCode(t, c.applyRole(admin, role("x", granting("delte", "workload"))), codes.InvalidArgument, "spec.rules[0].verbs[0]", "did you mean delete?")
	wantCode(t, c.applyRole(admin, role("x", granting("get", "wrkload"))), codes.InvalidArgument, "spec.rules[0].kinds[0]", "did you mean workload?")
	wantCode(t, c.applyRole(admin, role("node", granting("get", "workload"))), codes.InvalidArgument, "is the role of machines")
	wantCode(t, c.applyBinding(admin, binding("x", "operater", "", "t")), codes.InvalidArgument, "role operater, which does not exist", "did you mean operator?")
	wantCode(t, c.applyBinding(admin, binding("x", "operator", "")), codes.InvalidArgument, "binds the role to nobody")
	wantCode(t, c.applyBinding(admin, binding("x", "operator", "", "nothing")), codes.InvalidArgument, "token nothing, which does not exist")
	_, err := admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: "deplyer"})
	wantCode(t, err, codes.InvalidArgument, "role deplyer, which does not exist")
	_, err = admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: roles.Viewer, Namespace: "nowhere"})
	wantCode(t, err, codes.NotFound, "namespace nowhere does not exist")
	c.namespaced("shop")
	_, err = admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: roles.Viewer, Namespace: "shop", Ttl: "721h"})
	wantCode(t, err, codes.InvalidArgument, "ttl", "at most 720h")
	_, err = admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleNode, Namespace: "shop"})
	wantCode(t, err, codes.InvalidArgument, "namespace")
}

// Neither by a role, nor by a binding, nor by a token can a caller get or give more than it has.
func TestNobodyGivesAwayMoreThanTheyHave(t *testing.T) {
	c := newCluster(t)
	admin := c.as(roles.Admin)
	must(t, c.applyRole(admin, role("keeper", granting("*", "role rolebinding token"), granting("get", "workload"))))
	keeper := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "keeper", Role: "keeper"}))

	must(t, c.applyRole(keeper, role("reader", granting("get", "workload"))))
	wantCode(t, c.applyRole(keeper, role("more", granting("get update", "workload"))), codes.PermissionDenied, "would grant update on workload", "nobody can give away more than they have")
	wantCode(t, c.applyRole(keeper, role("keeper", granting("*", "*"))), codes.PermissionDenied, "every verb on every kind")
	wantCode(t, c.applyBinding(keeper, binding("up", roles.Admin, "", "keeper")), codes.PermissionDenied, "binding up of role admin would grant")
	wantCode(t, c.applyBinding(keeper, binding("up", roles.Admin, "shop", "keeper")), codes.PermissionDenied, "in namespace shop")
	must(t, c.applyBinding(keeper, binding("fine", "reader", "", "keeper")))
	_, err := keeper.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: roles.Admin})
	wantCode(t, err, codes.PermissionDenied, "would grant every verb on every kind")
	_, err = keeper.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: "reader"})
	must(t, err)

	// A binding waits for a token of its name, which has been removed.
	c.newTokenSecret(&v1.CreateTokenRequest{Name: "late", Role: roles.Viewer})
	must(t, c.applyBinding(admin, binding("late", roles.Admin, "", "late")))
	_, err = admin.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "late"})
	must(t, err)
	_, err = keeper.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "late", Role: "reader"})
	wantCode(t, err, codes.PermissionDenied, "token late would grant")

	plan := &v1.PlanRequest{Objects: []*v1.Manifest{{Object: &v1.Manifest_Role{Role: role("more", granting("*", "*"))}}}}
	_, err = keeper.MakePlan(c.ctx, plan)
	wantCode(t, err, codes.PermissionDenied, "would grant")
}

func TestLastAdminStays(t *testing.T) {
	c := newCluster(t)
	c.namespaced("shop")
	for _, token := range c.tokensOf(roles.Admin) {
		if token != "root" {
			c.dropToken(token)
		}
	}
	root := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "root", Role: roles.Admin}))
	refused := func(err error) {
		t.Helper()
		wantCode(t, err, codes.FailedPrecondition, "nobody would have the role admin in all namespaces any more", "cloudless token create --role admin")
	}
	_, err := root.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "root"})
	refused(err)
	c.newTokenSecret(&v1.CreateTokenRequest{Role: roles.Admin, Namespace: "shop"}) // is no admin of the cluster
	c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleServer})
	_, err = root.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "root"})
	refused(err)

	must(t, c.applyRole(root, role("all", granting("*", "*"))))
	c.newTokenSecret(&v1.CreateTokenRequest{Name: "second", Role: "all"})
	_, err = root.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "root"})
	must(t, err)
	second := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "third", Role: "all"}))
	refused(c.applyRole(second, role("all", granting("get", "*"))))
}

// onlyAdmin is a caller with the only token of an admin.
func (c *cluster) onlyAdmin() *user {
	c.t.Helper()
	for _, token := range c.tokensOf(roles.Admin) {
		c.dropToken(token)
	}
	return c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "root", Role: roles.Admin}))
}

func (c *cluster) logOut(as *user) error {
	_, err := v1.NewLoginServiceClient(as.conn).Logout(c.ctx, &v1.LogoutRequest{})
	return err
}

func TestLastAdminCannotLogOut(t *testing.T) {
	c := newCluster(t)
	root := c.onlyAdmin()
	wantCode(t, c.logOut(root), codes.FailedPrecondition, "nobody would have the role admin", "cloudless token create --role admin")
	viewer := c.as(roles.Viewer)
	must(t, c.logOut(viewer)) // was never an admin
	second := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "second", Role: roles.Admin}))
	must(t, c.logOut(root))
	wantCode(t, c.logOut(second), codes.FailedPrecondition, "nobody would have the role admin")
}

// A token that is about to end leaves no time to create another one, unless it can be renewed.
func TestTokensAboutToEndAreNotTheLastAdmin(t *testing.T) {
	clock := &shiftedClock{}
	c := newCluster(t, func(o *Options) { o.Clock = clock.now })
	c.onlyAdmin()
	root := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "lasting", Role: roles.Admin, Ttl: "48h"}))
	c.dropToken("root")
	c.newTokenSecret(&v1.CreateTokenRequest{Name: "ending", Role: roles.Admin, Ttl: "1h"})
	clock.move(time.Hour - 30*time.Second)
	wantCode(t, c.logOut(root), codes.FailedPrecondition, "nobody would have the role admin")
	c.newTokenSecret(&v1.CreateTokenRequest{Name: "renewed", Role: roles.Admin, Ttl: "1h", Renewable: true})
	clock.move(time.Hour - 30*time.Second)
	must(t, c.logOut(root))
}

// Users count as admins only while they can log in, so the provider at which they do cannot be removed either.
func TestBoundUsersAreAdminsWhileTheyCanLogIn(t *testing.T) {
	c := newCluster(t)
	root := c.onlyAdmin()
	bound := binding("admins", roles.Admin, "")
	bound.Spec.Users = []string{"ada@example.org"}
	must(t, c.applyBinding(root, bound))
	wantCode(t, c.logOut(root), codes.FailedPrecondition, "nobody would have the role admin")
	c.mustSet(root, func(s *v1.ClusterSpec) {
		s.Oidc = &v1.Oidc{Issuer: "https://accounts.example.org", ClientId: "cloudless"}
	})
	must(t, c.applyRole(root, role("all", granting("*", "*"))))
	// Ada has logged in, and her token is none that lasts.
	secret := c.newTokenSecret(&v1.CreateTokenRequest{Name: "ada", Role: "all"})
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		token := proto.CloneOf(snap.TokenByName("ada"))
		token.Spec.User = "ada@example.org"
		b.Update(token, token.GetMetadata().GetVersion())
	})
	ada := c.dial(nil, secret)
	must(t, c.logOut(root))
	wanted := proto.CloneOf(c.current(ada))
	wanted.Spec.Cluster.Oidc = nil
	for _, dry := range []bool{true, false} {
		_, err := ada.SetConfiguration(c.ctx, &v1.SetConfigurationRequest{Configuration: wanted, DryRun: dry})
		wantCode(t, err, codes.FailedPrecondition, "nobody would have the role admin")
	}
	_, err := ada.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 1})
	wantCode(t, err, codes.FailedPrecondition, "nobody would have the role admin")
	c.newTokenSecret(&v1.CreateTokenRequest{Name: "root", Role: roles.Admin})
	c.mustSet(ada, func(s *v1.ClusterSpec) { s.Oidc = nil })
}

// tokensOf are the names of the tokens with a role.
func (c *cluster) tokensOf(role string) (names []string) {
	for token := range c.Store.Snapshot().Tokens("") {
		if token.GetSpec().GetRole() == role {
			names = append(names, token.GetMetadata().GetName())
		}
	}
	return names
}

// dropToken removes a token from the state, bypassing the API.
func (c *cluster) dropToken(name string) {
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		b.Delete(state.KindToken, snap.TokenByName(name).GetMetadata().GetUid())
	})
}

func TestCanINamesSufficientRoles(t *testing.T) {
	c := newCluster(t)
	c.namespaced("shop")
	admin := c.as(roles.Admin)
	must(t, c.applyRole(admin, role("scaler", granting("get update", "workload"))))
	must(t, c.applyBinding(admin, &v1.RoleBinding{Metadata: &v1.Metadata{Name: "devs"}, Spec: &v1.RoleBindingSpec{Role: "scaler", Namespace: "shop", Groups: []string{"devs"}}}))
	viewer := c.in("shop", roles.Viewer)
	ask := func(as *user, request *v1.CanIRequest) *v1.CanIResponse {
		t.Helper()
		answer, err := as.roles().CanI(c.ctx, request)
		must(t, err)
		return answer
	}
	if got := ask(viewer, &v1.CanIRequest{Verb: "get", Kind: "workload", Namespace: "shop"}); !got.GetAllowed() {
		t.Errorf("a viewer may not get: %v", got)
	}
	got := ask(viewer, &v1.CanIRequest{Verb: "update", Kind: "workload", Namespace: "shop"})
	if got.GetAllowed() || strings.Join(got.GetRoles(), " ") != "scaler operator admin" || !strings.Contains(got.GetReason(), "role scaler in namespace shop would be sufficient") {
		t.Errorf("a viewer may update: %v", got)
	}
	if got := ask(viewer, &v1.CanIRequest{Verb: "get", Kind: "node", Namespace: "shop"}); got.GetAllowed() || !strings.Contains(got.GetReason(), "node is in no namespace") {
		t.Errorf("a viewer in shop may get nodes: %v", got)
	}
	if got := ask(admin, &v1.CanIRequest{Verb: "update", Kind: "workload", Namespace: "shop", User: "alice", Groups: []string{"devs"}}); !got.GetAllowed() {
		t.Errorf("alice may not update: %v", got)
	}
	_, err := viewer.roles().CanI(c.ctx, &v1.CanIRequest{Verb: "get", Kind: "workload", User: "alice"})
	wantCode(t, err, codes.PermissionDenied, "ask what others may do")
	_, err = viewer.roles().CanI(c.ctx, &v1.CanIRequest{Verb: "delet", Kind: "workload"})
	wantCode(t, err, codes.InvalidArgument, "did you mean delete?")
}

// Streams end when their caller loses the permission, and watches begin anew when the caller sees more or less.
func TestStreamsFollowThePermissionsOfTheirCallers(t *testing.T) {
	c := newCluster(t)
	c.namespaced("shop")
	admin := c.as(roles.Admin)
	must(t, c.applyRole(admin, role("watcher", granting("get", "workload"))))
	watcher := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "w", Role: "watcher", Namespace: "shop"}))
	open := func(selection *v1.Selection) v1.WorkloadService_WatchWorkloadsClient {
		t.Helper()
		stream, err := watcher.WatchWorkloads(c.ctx, &v1.WatchWorkloadsRequest{Selection: selection})
		must(t, err)
		for {
			change, err := stream.Recv()
			must(t, err)
			if change.GetChange() == changeSynced {
				return stream
			}
		}
	}
	all := open(nil)
	must(t, c.applyBinding(admin, binding("more", roles.Viewer, "", "w")))
	_, err := all.Recv()
	wantCode(t, err, codes.Unavailable, "what this caller may do has changed; begin again")

	one := open(&v1.Selection{Namespace: "default"})
	_, err = admin.roles().DeleteRoleBinding(c.ctx, &v1.DeleteRoleBindingRequest{Name: "more"})
	must(t, err)
	_, err = one.Recv()
	wantCode(t, err, codes.PermissionDenied, "needs get on workload in namespace default")

	own := open(&v1.Selection{Namespace: "shop"})
	must(t, c.applyRole(admin, role("watcher", granting("get", "event"))))
	_, err = own.Recv()
	wantCode(t, err, codes.PermissionDenied)
}

// Only callers who may create a namespace can use a new one, which has no quota.
func TestNewNamespacesAreForCallersWhoMayCreateThem(t *testing.T) {
	c := newCluster(t)
	operator := c.as(roles.Operator)
	fresh := placedIn(workload("web", replicasOf(0)), "fresh")
	_, err := operator.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: fresh})
	wantCode(t, err, codes.PermissionDenied, "namespace fresh does not exist", "cloudless namespace create fresh", "role admin would be sufficient")
	_, err = operator.MakePlan(c.ctx, asking(fresh))
	wantCode(t, err, codes.PermissionDenied, "namespace fresh does not exist")
	_, err = operator.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("x", "a.example.org", under("fresh"))})
	wantCode(t, err, codes.PermissionDenied, "namespace fresh does not exist")
	c.namespaced("fresh")
	_, err = operator.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: fresh})
	must(t, err)
	if _, err = c.as(roles.Admin).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: placedIn(workload("web", replicasOf(0)), "another")}); err != nil {
		t.Errorf("an admin may not use a new namespace: %v", err)
	}
}

// A value that is hidden from a caller cannot be stored by writing what was read.
func TestHiddenValuesCannotBeStored(t *testing.T) {
	c := newCluster(t)
	operator, viewer := c.as(roles.Operator), c.as(roles.Viewer)
	secretive := workload("web", replicasOf(0), func(w *v1.Workload) { w.Spec.Env = map[string]string{"PASSWORD": "hunter2"} })
	_, err := operator.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: secretive})
	must(t, err)
	read, err := viewer.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	must(t, err)
	if got := read.GetSpec().GetEnv()["PASSWORD"]; got != spec.HiddenValue {
		t.Errorf("a viewer sees %q", got)
	}
	plan, err := viewer.MakePlan(c.ctx, asking(workload("web", replicasOf(0), func(w *v1.Workload) { w.Spec.Env = map[string]string{"PASSWORD": "guess"} })))
	must(t, err)
	if strings.Contains(plan.String(), "hunter2") {
		t.Errorf("a plan shows a viewer %v", plan)
	}
	revisions, err := viewer.ListRevisions(c.ctx, &v1.ListRevisionsRequest{Workload: "web"})
	must(t, err)
	if strings.Contains(revisions.String(), "hunter2") {
		t.Errorf("the history shows a viewer %v", revisions)
	}
	response, body := c.request(nil, "GET", "/v1/namespaces/default/workloads/web", "", "Authorization", "Bearer "+viewer.token)
	if strings.Contains(body, "hunter2") || !strings.Contains(body, "PASSWORD") {
		t.Errorf("over HTTP a viewer sees %s %s", response.Status, body)
	}
	read.Metadata.Version = 0
	_, err = operator.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: read})
	wantCode(t, err, codes.InvalidArgument, "spec.env[PASSWORD]", "is not the value, but the mark")
}

// The refusal of an outdated object carries the stored one, as its caller may see it, whichever server is called.
func TestRefusalsHideValues(t *testing.T) {
	leader, follower := pair(t)
	operator, admin := leader.as(roles.Operator), leader.as(roles.Admin)
	password := func(w *v1.Workload) { w.Spec.Env = map[string]string{"PASSWORD": marker} }
	_, err := operator.CreateWorkload(leader.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", replicasOf(0), password)})
	must(t, err)
	stale := workload("web", replicasOf(0), func(w *v1.Workload) { w.Metadata.Version = 1 })
	must(t, leader.applyRole(admin, role("reader", granting("get create", "workload"))))
	must(t, leader.applyRole(admin, role("creator", granting("create", "workload"))))
	must(t, leader.applyRole(admin, role("writer", granting("update", "workload"))))
	for name, one := range map[string]struct {
		role       string
		call       func(*user) error
		has, shows bool
	}{
		"a viewer plans":                   {roles.Viewer, planning(leader, stale), true, false},
		"a viewer asks for an explanation": {roles.Viewer, explaining(leader, stale), true, false},
		"who may create applies":           {"reader", applying(leader, stale), true, false},
		"who may only create applies":      {"creator", applying(leader, stale), false, false},
		"who may only update applies":      {"writer", applying(leader, stale), false, false},
		"an operator applies":              {roles.Operator, applying(leader, stale), true, true},
	} {
		secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: one.role})
		for where, c := range map[string]*cluster{"leader": leader, "follower": follower} {
			err := one.call(c.dial(nil, secret))
			wantCode(t, err, codes.Aborted, "has changed")
			details := status.Convert(err).Details()
			text := fmt.Sprint(details)
			if (len(details) > 0) != one.has || strings.Contains(text, marker) != one.shows || one.has && !strings.Contains(text, "PASSWORD") {
				t.Errorf("%s at the %s: the refusal carries %s", name, where, text)
			}
		}
	}
	_, body := leader.request(nil, "POST", "/v1/plan", `{"objects":[{"workload":{"apiVersion":"cloudless/v1","kind":"Workload","metadata":{"name":"web","version":"1"},"spec":{"image":"web:1"}}}]}`,
		"Authorization", "Bearer "+leader.newTokenSecret(&v1.CreateTokenRequest{Role: roles.Viewer}))
	if strings.Contains(body, marker) {
		t.Errorf("over HTTP the refusal is %s", body)
	}
}

func planning(c *cluster, w *v1.Workload) func(*user) error {
	return func(u *user) error {
		_, err := u.MakePlan(c.ctx, asking(w))
		return err
	}
}

func explaining(c *cluster, w *v1.Workload) func(*user) error {
	return func(u *user) error {
		_, err := u.ExplainWorkload(c.ctx, &v1.ExplainWorkloadRequest{Workload: w})
		return err
	}
}

func applying(c *cluster, w *v1.Workload) func(*user) error {
	return func(u *user) error {
		_, err := u.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: w})
		return err
	}
}

// Whether a guess of a hidden value is right changes nothing that a caller sees.
func TestPlansDoNotConfirmGuesses(t *testing.T) {
	c := newCluster(t)
	operator, admin, viewer := c.as(roles.Operator), c.as(roles.Admin), c.as(roles.Viewer)
	guessing := func(value string) *v1.Workload {
		return workload("web", replicasOf(0), func(w *v1.Workload) { w.Spec.Env = map[string]string{"PASSWORD": value} })
	}
	_, err := operator.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: guessing(marker)})
	must(t, err)
	right, err := viewer.MakePlan(c.ctx, asking(guessing(marker)))
	must(t, err)
	wrong, err := viewer.MakePlan(c.ctx, asking(guessing("wrong")))
	must(t, err)
	right.Fingerprint, wrong.Fingerprint = "", "" // which identify the requests
	if !proto.Equal(right, wrong) {
		t.Errorf("a viewer is told\n%v\nof the right guess, and\n%v\nof a wrong one", right, wrong)
	}
	change := right.GetChanges()[0]
	if f := change.GetFields(); change.GetAction() != spec.ActionUpdate || len(f) != 1 || f[0].GetPath() != "spec.env[PASSWORD]" || f[0].GetBefore() != spec.HiddenValue || f[0].GetAfter() != spec.HiddenValue {
		t.Errorf("a viewer sees %v", change)
	}
	if plan, err := operator.MakePlan(c.ctx, asking(guessing(marker))); err != nil || plan.GetChanges()[0].GetAction() != spec.ActionUnchanged {
		t.Errorf("an operator sees %v, %v", plan, err)
	}
	// Nor does the right guess succeed where a wrong one is refused.
	must(t, c.applyRole(admin, role("creator", granting("create get", "workload"))))
	creator := c.as("creator")
	for _, guess := range []string{marker, "wrong"} {
		wantCode(t, applying(c, guessing(guess))(creator), codes.PermissionDenied, "needs update on workload")
	}
	if got := c.Store.Snapshot().WorkloadByName("default", "web").GetSpec().GetEnv()["PASSWORD"]; got != marker {
		t.Errorf("the value is %q now", got)
	}
}

// The fingerprint of a plan depends on no value that is stored: its caller could try all short ones.
func TestFingerprintsDependOnNoStoredValue(t *testing.T) {
	of := func(before, after string) string {
		return fingerprint(&wanted{}, &v1.Plan{Changes: []*v1.PlanChange{{Name: "web", Version: 7, Fields: []*v1.FieldChange{
			{Path: "spec.env[PASSWORD]", Before: before, After: "guess"}, {Path: "spec.image", Before: "web:1", After: after},
		}}}})
	}
	if of("one", "web:2") != of("other", "web:2") {
		t.Error("the fingerprint depends on the stored value")
	}
	if of("one", "web:2") == of("one", "web:3") {
		t.Error("the fingerprint depends on no other field either")
	}
}

// A server that lags behind asks the leader before it refuses a caller.
func TestRefusalsAreDecidedOnTheNewestState(t *testing.T) {
	c := newCluster(t)
	admin := c.as(roles.Admin)
	token := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "t", Role: roles.Viewer}))
	asked := 0
	before := c.catchUpWithLeader
	c.catchUpWithLeader = func(ctx context.Context) error {
		if asked++; asked == 1 {
			must(t, c.applyBinding(admin, binding("up", roles.Operator, "", "t")))
		}
		return before(ctx)
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	_, err := token.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: workload("web", replicasOf(0))})
	if err != nil || asked == 0 {
		t.Errorf("after %d questions: %s", asked, status.Convert(err).Message())
	}
}
