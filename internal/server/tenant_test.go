package server

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/spec"
)

// victimName is the name of everything that another team has. A tenant must not see it anywhere.
const victimName = "vault"

// tenancy is a cluster with two teams: the tenant has a role in namespace shop, and the victim is in namespace bank.
type tenancy struct {
	*cluster
	admin, tenant *user
}

func newTenancy(t *testing.T) *tenancy {
	c := newCluster(t)
	c.namespaced("shop", "bank")
	x := &tenancy{cluster: c, admin: c.as(roles.Admin), tenant: c.in("shop", roles.Operator)}
	c.push("bank/" + victimName + ":1")
	x.admin.set(c, "bank", victimName+"-password", marker)
	_, err := x.admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload(victimName, replicasOf(1), func(w *v1.Workload) {
		w.Metadata.Namespace = "bank"
		w.Spec.Image, w.Spec.Network = "bank/"+victimName+":1", ""
		w.Spec.Env = map[string]string{"PASSWORD": marker}
		w.Spec.Ports = []*v1.Port{{Port: 8080, Publish: 18080}}
	})})
	must(t, err)
	_, err = x.admin.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to(victimName, "vault.example.org", under("bank"), onTCP(15432), func(r *v1.Route) { r.Spec.Host = "" })})
	must(t, err)
	_, err = x.admin.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to(victimName+"-web", "vault.example.org", under("bank"))})
	must(t, err)
	return x
}

// set stores a secret in a namespace.
func (u *user) set(c *cluster, namespace, name, value string) {
	c.t.Helper()
	_, err := u.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Namespace: namespace, Name: name, Value: []byte(value)})
	must(c.t, err)
}

// mine is a workload of the tenant.
func mine(change ...func(*v1.Workload)) *v1.Workload {
	return placedIn(workload("mine", append(change, replicasOf(0))...), "shop")
}

// A tenant with a role in one namespace tries everything, and gets nothing of the others.
func TestTenantGetsNothingOfOtherNamespaces(t *testing.T) {
	x := newTenancy(t)
	ctx, u := x.ctx, x.tenant
	first := func(stream interface {
		RecvMsg(any) error
		Context() context.Context
	}, err error,
	) error {
		if err != nil {
			return err
		}
		return stream.RecvMsg(&ignored{})
	}
	exec := func(start *v1.ExecStart) error {
		stream, err := u.Exec(ctx)
		must(t, err)
		_ = stream.Send(&v1.ExecRequest{Message: &v1.ExecRequest_Start{Start: start}})
		_, err = stream.Recv()
		return err
	}
	create := func(w *v1.Workload) error {
		_, err := u.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: w})
		return err
	}
	err1 := func(_ proto.Message, err error) error { return err }
	for what, refused := range map[string]error{
		"read a workload":       err1(u.GetWorkload(ctx, &v1.GetWorkloadRequest{Namespace: "bank", Name: victimName})),
		"list its workloads":    err1(u.ListWorkloads(ctx, &v1.ListWorkloadsRequest{Selection: &v1.Selection{Namespace: "bank"}})),
		"change it":             err1(u.ScaleWorkload(ctx, &v1.ScaleWorkloadRequest{Namespace: "bank", Name: victimName})),
		"delete it":             err1(u.DeleteWorkload(ctx, &v1.DeleteWorkloadRequest{Namespace: "bank", Name: victimName})),
		"read its revisions":    err1(u.ListRevisions(ctx, &v1.ListRevisionsRequest{Namespace: "bank", Workload: victimName})),
		"read its deployments":  err1(u.deployments().ListDeployments(ctx, &v1.ListDeploymentsRequest{Selection: &v1.Selection{Namespace: "bank"}})),
		"explain it":            err1(u.GetExplanation(ctx, &v1.GetExplanationRequest{Namespace: "bank", Name: victimName})),
		"read its usage":        err1(u.GetUsage(ctx, &v1.GetUsageRequest{Namespace: "bank"})),
		"read its events":       err1(u.ListEvents(ctx, &v1.ListEventsRequest{Namespace: "bank"})),
		"read its service":      err1(u.services().GetService(ctx, &v1.GetServiceRequest{Namespace: "bank", Name: victimName})),
		"read its endpoints":    err1(u.endpoints().ListEndpoints(ctx, &v1.ListEndpointsRequest{Selection: &v1.Selection{Namespace: "bank"}})),
		"take its traffic":      err1(u.endpoints().RegisterEndpoint(ctx, &v1.RegisterEndpointRequest{Namespace: "bank", Service: victimName, Name: "x", Addresses: []string{"10.0.0.1"}})),
		"set its balancer":      err1(u.services().SetBalancer(ctx, &v1.SetBalancerRequest{Namespace: "bank", Service: victimName})),
		"read its route":        err1(u.routes().GetRoute(ctx, &v1.GetRouteRequest{Namespace: "bank", Name: victimName})),
		"read its secret":       err1(u.secrets().GetSecret(ctx, &v1.GetSecretRequest{Namespace: "bank", Name: victimName + "-password"})),
		"replace its secret":    err1(u.secrets().SetSecret(ctx, &v1.SetSecretRequest{Namespace: "bank", Name: victimName + "-password", Value: []byte("x")})),
		"see its deliveries":    err1(u.secrets().ListSecretDeliveries(ctx, &v1.ListSecretDeliveriesRequest{Namespace: "bank", Name: victimName + "-password"})),
		"read its quota":        err1(u.namespaces().GetNamespace(ctx, &v1.GetNamespaceRequest{Name: "bank"})),
		"read its image":        err1(u.GetImage(ctx, &v1.GetImageRequest{Name: "bank/" + victimName + ":1"})),
		"delete its image":      err1(u.DeleteImage(ctx, &v1.DeleteImageRequest{Name: "bank/" + victimName + ":1"})),
		"prune all images":      err1(u.PruneImages(ctx, &v1.PruneImagesRequest{})),
		"run its image":         create(mine(func(w *v1.Workload) { w.Spec.Image = "bank/" + victimName + ":1" })),
		"read its logs":         first(u.Logs(ctx, &v1.LogsRequest{Namespace: "bank", Workload: victimName})),
		"watch its workloads":   first(u.WatchWorkloads(ctx, &v1.WatchWorkloadsRequest{Selection: &v1.Selection{Namespace: "bank"}})),
		"run a command there":   exec(&v1.ExecStart{Namespace: "bank", Workload: victimName, Command: []string{"env"}}),
		"plan there":            err1(u.MakePlan(ctx, asking(placedIn(workload(victimName), "bank")))),
		"prune there":           err1(u.MakePlan(ctx, &v1.PlanRequest{Prune: "app=x", PruneNamespace: "bank"})),
		"apply there":           err1(u.ApplyPlan(ctx, &v1.ApplyPlanRequest{Request: asking(placedIn(workload(victimName), "bank")), Fingerprint: "x"})),
		"raise its own quota":   err1(u.namespaces().ApplyNamespace(ctx, &v1.ApplyNamespaceRequest{Namespace: &v1.Namespace{ApiVersion: spec.APIVersion, Kind: "Namespace", Metadata: &v1.Metadata{Name: "shop"}}})),
		"use a new namespace":   create(placedIn(workload("x"), "shop-2")),
		"list nodes":            err1(u.ListNodes(ctx, &v1.ListNodesRequest{})),
		"cordon a node":         err1(u.CordonNode(ctx, &v1.CordonNodeRequest{Name: "n"})),
		"make a token":          err1(u.CreateToken(ctx, &v1.CreateTokenRequest{Role: roles.Viewer})),
		"list tokens":           err1(u.ListTokens(ctx, &v1.ListTokensRequest{})),
		"bind a role":           x.applyBinding(u, binding("x", roles.Viewer, "", "x")),
		"define a role":         x.applyRole(u, role("x", granting("get", "workload"))),
		"read the bindings":     err1(u.roles().ListRoleBindings(ctx, &v1.ListRoleBindingsRequest{})),
		"change the policies":   err1(u.policies().DeletePolicy(ctx, &v1.DeletePolicyRequest{Name: "x"})),
		"read the settings":     err1(u.GetConfiguration(ctx, &v1.GetConfigurationRequest{})),
		"look into the network": err1(v1.NewConnectivityServiceClient(u.conn).GetNetworkUsage(ctx, &v1.GetNetworkUsageRequest{})),
		"rotate the authority":  err1(v1.NewAuthorityServiceClient(u.conn).RotateAuthority(ctx, &v1.RotateAuthorityRequest{Ca: true})),
	} {
		if status.Code(refused) != codes.PermissionDenied {
			t.Errorf("a tenant may %s: %v", what, refused)
		}
	}
	for what, refused := range map[string]error{ // the field that asks for too much is what is wrong
		"the host's network": create(mine(func(w *v1.Workload) { w.Spec.Network = "host" })),
		"privileges":         create(mine(func(w *v1.Workload) { w.Spec.Security = &v1.Security{Profile: "privileged"} })),
	} {
		if words := status.Convert(refused).Message(); !strings.Contains(words, "may not ask for that") {
			t.Errorf("a tenant gets %s: %v", what, refused)
		}
	}
}

// Lists of all namespaces show a tenant only its own, and nothing says that there are others.
func TestListsHideOtherNamespacesFromATenant(t *testing.T) {
	x := newTenancy(t)
	ctx, u := x.ctx, x.tenant
	x.push("shop/mine:1")
	_, err := u.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: mine(func(w *v1.Workload) { w.Spec.Image = "shop/mine:1" })})
	must(t, err)
	must1 := func(m proto.Message, err error) proto.Message {
		t.Helper()
		must(t, err)
		return m
	}
	for what, answer := range map[string]proto.Message{
		"workloads":   must1(u.ListWorkloads(ctx, &v1.ListWorkloadsRequest{})),
		"replicas":    must1(u.ListReplicas(ctx, &v1.ListReplicasRequest{})),
		"revisions":   must1(u.ListRevisions(ctx, &v1.ListRevisionsRequest{})),
		"deployments": must1(u.deployments().ListDeployments(ctx, &v1.ListDeploymentsRequest{})),
		"services":    must1(u.services().ListServices(ctx, &v1.ListServicesRequest{})),
		"endpoints":   must1(u.endpoints().ListEndpoints(ctx, &v1.ListEndpointsRequest{})),
		"routes":      must1(u.routes().ListRoutes(ctx, &v1.ListRoutesRequest{})),
		"secrets":     must1(u.secrets().ListSecrets(ctx, &v1.ListSecretsRequest{})),
		"events":      must1(u.ListEvents(ctx, &v1.ListEventsRequest{})),
		"namespaces":  must1(u.namespaces().ListNamespaces(ctx, &v1.ListNamespacesRequest{})),
		"images":      must1(u.ListImages(ctx, &v1.ListImagesRequest{})),
		"usage":       must1(u.GetUsage(ctx, &v1.GetUsageRequest{})),
	} {
		text := answer.ProtoReflect().Interface().(interface{ String() string }).String()
		if strings.Contains(text, victimName) || strings.Contains(text, "bank") || strings.Contains(text, marker) {
			t.Errorf("the list of %s tells a tenant of others: %s", what, text)
		}
		if has := strings.Contains(text, "mine"); !has && (what == "workloads" || what == "revisions" || what == "images" || what == "events") {
			t.Errorf("the list of %s hides from a tenant what is its own: %s", what, text)
		}
	}
}

// What a tenant asks for can collide with what others have. It learns that something is taken, and not by what.
func TestRefusalsHideOtherNamespacesFromATenant(t *testing.T) {
	x := newTenancy(t)
	ctx, u := x.ctx, x.tenant
	err1 := func(_ proto.Message, err error) error { return err }
	for what, err := range map[string]error{
		"a name of others":   err1(u.GetWorkload(ctx, &v1.GetWorkloadRequest{Namespace: "shop", Name: victimName})),
		"a published port":   err1(u.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: mine(func(w *v1.Workload) { w.Spec.Network, w.Spec.Ports = "", []*v1.Port{{Port: 80, Publish: 18080}} })})),
		"a host":             err1(u.routes().CreateRoute(ctx, &v1.CreateRouteRequest{Route: to("mine", "vault.example.org", under("shop"))})),
		"the port of a":      err1(u.routes().CreateRoute(ctx, &v1.CreateRouteRequest{Route: to("mine", "", under("shop"), onTCP(15432))})),
		"a dependency":       err1(u.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: mine(func(w *v1.Workload) { w.Spec.DependsOn = map[string]string{victimName: "ready"} })})),
		"a service":          err1(u.services().ResolveService(ctx, &v1.ResolveServiceRequest{Namespace: "shop", Name: victimName + ".bank"})),
		"an image by a typo": err1(u.GetImage(ctx, &v1.GetImageRequest{Name: "shop/" + victimName + ":1"})),
	} {
		words := status.Convert(err).Message()
		if err == nil || strings.Contains(words, "in namespace bank") && what != "a service" || strings.Contains(words, "bank/") || strings.Contains(words, victimName+"-web") {
			t.Errorf("%s: a tenant is told %q", what, words)
		}
	}
	if one, other := err1(u.services().ResolveService(ctx, &v1.ResolveServiceRequest{Namespace: "shop", Name: victimName + ".bank"})),
		err1(u.services().ResolveService(ctx, &v1.ResolveServiceRequest{Namespace: "shop", Name: "nosuch.bank"})); strings.ReplaceAll(one.Error(), victimName, "nosuch") != other.Error() {
		t.Errorf("a tenant learns what exists: %v, %v", one, other)
	}
}

// Repositories of the registry belong to the namespace that their name begins with.
func TestRegistryIsDividedByNamespaces(t *testing.T) {
	x := newTenancy(t)
	web := x.web(nil)
	for _, ask := range []struct {
		method, path string
		allowed      bool
	}{
		{http.MethodGet, "/v2/", true},
		{http.MethodGet, "/v2/_catalog", false},
		{http.MethodGet, "/v2/bank/vault/manifests/1", false},
		{http.MethodHead, "/v2/bank/vault/manifests/1", false},
		{http.MethodGet, "/v2/bank/vault/tags/list", false},
		{http.MethodPost, "/v2/bank/vault/blobs/uploads/", false},
		{http.MethodDelete, "/v2/bank/vault/manifests/1", false},
		{http.MethodPost, "/v2/web/blobs/uploads/", false},
		{http.MethodGet, "/v2/web/manifests/1", false},
		{http.MethodGet, "/v2/shop/../bank/vault/manifests/1", false},
		{http.MethodGet, "/v2/shop/mine/manifests/1", true},
		{http.MethodPost, "/v2/shop/mine/blobs/uploads/", true},
		{http.MethodPost, "/v2/shop/deep/er/blobs/uploads/", true},
		{http.MethodGet, "/metrics", false},
		{http.MethodGet, "/openapi.json", true},
	} {
		r, err := http.NewRequestWithContext(x.ctx, ask.method, "https://cloudless"+ask.path, nil)
		must(t, err)
		if strings.Contains(ask.path, "..") {
			r.URL.Opaque = "//cloudless" + ask.path // as it is
		}
		r.Header.Set("Authorization", "Bearer "+x.tenant.token)
		response, err := web.Do(r)
		must(t, err)
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		switch {
		case ask.allowed && (response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusUnauthorized),
			!ask.allowed && response.StatusCode < 300,
			!ask.allowed && response.StatusCode == http.StatusNotFound && !strings.Contains(ask.path, ".."):
			t.Errorf("%s %s: %s %s, want allowed %t", ask.method, ask.path, response.Status, body, ask.allowed)
		}
	}
	node := x.join("machine")
	if response, body := x.request(node.creds, http.MethodPost, "/v2/bank/vault/blobs/uploads/", ""); response.StatusCode != http.StatusForbidden {
		t.Errorf("a node pushes: %s %s", response.Status, body)
	}
}

// A layer of another namespace's image cannot be mounted into an own one: the client has to send it.
func TestLayersOfOtherNamespacesAreNotMounted(t *testing.T) {
	x := newTenancy(t)
	img, err := random.Image(64, 1)
	must(t, err)
	to, err := image.ParseName("bank/layered:1")
	must(t, err)
	_, err = image.Push(x.ctx, img, to, image.PushOptions{Transport: pusher{x.web(nil), x.admin.token}})
	must(t, err)
	layers, err := img.Layers()
	must(t, err)
	digest, err := layers[0].Digest()
	must(t, err)
	for token, want := range map[string]int{x.admin.token: http.StatusCreated, x.tenant.token: http.StatusAccepted} {
		response, body := x.request(nil, http.MethodPost, "/v2/shop/mine/blobs/uploads/?from=bank/layered&mount="+digest.String(), "", "Authorization", "Bearer "+token)
		if response.StatusCode != want {
			t.Errorf("the mount was answered by %s %s, want %d", response.Status, body, want)
		}
	}
}
