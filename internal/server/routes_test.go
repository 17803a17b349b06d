package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The bcrypt hashes of two passwords.
const (
	hashA = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
	hashB = "$2a$10$zzqo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
)

func (u *user) routes() v1.RouteServiceClient { return v1.NewRouteServiceClient(u.conn) }

// to is a route of a host to service api.
func to(name, host string, change ...func(*v1.Route)) *v1.Route {
	r := &v1.Route{Metadata: &v1.Metadata{Name: name}, Spec: &v1.RouteSpec{Host: host, Backends: []*v1.RouteBackend{{Service: "api", Port: 80}}}}
	for _, f := range change {
		f(r)
	}
	return r
}

func under(namespace string) func(*v1.Route) {
	return func(r *v1.Route) { r.Metadata.Namespace = namespace }
}
func below(path string) func(*v1.Route) { return func(r *v1.Route) { r.Spec.Path = path } }
func securedBy(mode string) func(*v1.Route) {
	return func(r *v1.Route) { r.Spec.Tls = &v1.RouteTls{Mode: mode} }
}

func onTCP(port int32) func(*v1.Route) {
	return func(r *v1.Route) { r.Spec.Host, r.Spec.Tcp = "", port }
}

func withUsers(hashes ...string) func(*v1.Route) {
	return func(r *v1.Route) {
		r.Spec.Http = &v1.RouteHttp{}
		for i, hash := range hashes {
			r.Spec.Http.Users = append(r.Spec.Http.Users, &v1.RouteUser{Name: fmt.Sprintf("user%d", i), PasswordHash: hash})
		}
	}
}

func (c *cluster) leads(u *user, r *v1.Route) *v1.Route {
	c.t.Helper()
	made, err := u.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: r})
	must(c.t, err)
	return made
}

func (c *cluster) refusesRoute(u *user, r *v1.Route, words ...string) {
	c.t.Helper()
	_, err := u.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: r})
	wantCode(c.t, err, codes.InvalidArgument, words...)
}

func TestRoutesAreCreatedChangedAndDeleted(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	made := c.leads(op, to("shop", "shop.example.org", below("/v2/")))
	if made.GetSpec().GetPath() != "/v2" || made.GetSpec().GetHttp().GetTimeout() != "1m" || made.GetMetadata().GetUid() == "" {
		t.Errorf("it is %v", made)
	}
	if st := made.GetStatus(); st.GetUrl() != "http://shop.example.org/v2" || st.GetReady() != 0 || !strings.HasPrefix(st.GetReason(), "service api does not exist") {
		t.Errorf("its status is %v", st)
	}
	_, err := op.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("shop", "other.example.org")})
	wantCode(t, err, codes.AlreadyExists, "route shop exists already in namespace default")
	answer, err := op.routes().ApplyRoute(c.ctx, &v1.ApplyRouteRequest{Route: to("shop", "shop.example.org", below("/v2"))})
	must(t, err)
	if answer.GetResult() != "unchanged" {
		t.Errorf("the same again is %s", answer.GetResult())
	}
	answer, err = op.routes().ApplyRoute(c.ctx, &v1.ApplyRouteRequest{Route: to("shop", "shop.example.org", below("/v3"))})
	must(t, err)
	if answer.GetResult() != "updated" || answer.GetRoute().GetStatus().GetUrl() != "http://shop.example.org/v3" {
		t.Errorf("after a change: %v", answer)
	}
	stale := to("shop", "shop.example.org")
	stale.Metadata.Version = made.GetMetadata().GetVersion()
	_, err = op.routes().UpdateRoute(c.ctx, &v1.UpdateRouteRequest{Route: stale})
	wantCode(t, err, codes.Aborted)
	_, err = viewer.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("mine", "mine.example.org")})
	wantCode(t, err, codes.PermissionDenied)
	list, err := viewer.routes().ListRoutes(c.ctx, &v1.ListRoutesRequest{})
	must(t, err)
	if len(list.GetItems()) != 1 {
		t.Errorf("the list is %v", list)
	}
	_, err = op.routes().DeleteRoute(c.ctx, &v1.DeleteRouteRequest{Name: "shop"})
	must(t, err)
	_, err = viewer.routes().GetRoute(c.ctx, &v1.GetRouteRequest{Name: "shop"})
	wantCode(t, err, codes.NotFound, "route shop does not exist in namespace default")

	var said []string
	events, err := viewer.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	for _, e := range events.GetItems() {
		if strings.EqualFold(e.GetSpec().GetObjectKind(), spec.KindRoute) {
			said = append(said, e.GetSpec().GetReason()+" "+e.GetSpec().GetMessage())
		}
	}
	if got := strings.Join(said, "; "); !strings.Contains(got, "Created shop.example.org/v2 to api:80") || !strings.Contains(got, "Updated shop.example.org/v3 to api:80") || !strings.Contains(got, "Deleted") {
		t.Errorf("the events are %s", got)
	}
}

// A host belongs to the namespace of its first route, also for wildcards, and others learn only which namespace that is.
func TestHostsBelongToOneNamespace(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleAdmin)
	c.leads(op, to("secret-name", "a.example.org", below("/secret"), under("shop")))
	for _, host := range []string{"a.example.org", "*.example.org"} {
		_, err := op.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("x", host, under("blog"))})
		wantCode(t, err, codes.InvalidArgument, "spec.host: "+host+" belongs to namespace shop")
		if words := status.Convert(err).Message(); strings.Contains(words, "secret") {
			t.Errorf("the refusal says too much: %s", words)
		}
	}
	c.leads(op, to("b", "b.example.org", under("blog")))
	c.leads(op, to("own", "*.a.example.org", under("blog"))) // exactly one more label
	c.leads(op, to("all", "*.example.net", under("shop")))
	c.refusesRoute(op, to("x", "c.example.net", under("blog")), "spec.host: c.example.net belongs to namespace shop")
	c.leads(op, to("c", "c.example.net", under("shop")))

	// In one plan, too; and a host is free again after its last route.
	plan := &v1.PlanRequest{Objects: []*v1.Manifest{spec.ManifestOf(to("x", "new.org", under("shop"))), spec.ManifestOf(to("x", "new.org", under("blog")))}}
	_, err := op.MakePlan(c.ctx, plan)
	wantCode(t, err, codes.InvalidArgument, "new.org belongs to namespace")
	_, err = op.routes().DeleteRoute(c.ctx, &v1.DeleteRouteRequest{Namespace: "shop", Name: "secret-name"})
	must(t, err)
	c.leads(op, to("x", "a.example.org", under("blog")))
}

// Of many namespaces that claim a host at the same time, one gets it.
func TestOneOfManyClaimsSucceeds(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleAdmin)
	var all sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		all.Go(func() {
			_, results[i] = op.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("x", "a.example.org", under(fmt.Sprintf("n%d", i)))})
		})
	}
	all.Wait()
	won := 0
	for _, err := range results {
		if err == nil {
			won++
			continue
		}
		wantCode(t, err, codes.InvalidArgument, "belongs to namespace n")
	}
	if won != 1 {
		t.Errorf("%d namespaces got the host", won)
	}
}

func TestTwoRoutesNeverAnswerForTheSame(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleAdmin)
	c.leads(op, to("shop", "a.org", securedBy(spec.TLSCluster)))
	c.leads(op, to("v2", "a.org", below("/v2"), securedBy(spec.TLSCluster)))
	c.leads(op, to("db", "", onTCP(5432)))
	c.leads(op, to("dns", "", func(r *v1.Route) { r.Spec.Host, r.Spec.Udp = "", 5432 }))
	c.refusesRoute(op, to("x", "a.org", securedBy(spec.TLSCluster)), "spec.host: a.org leads to route shop already; change that one with: cloudless route edit shop")
	c.refusesRoute(op, to("x", "a.org", below("/v2/"), securedBy(spec.TLSCluster)), "spec.path: a.org/v2 leads to route v2 already")
	c.refusesRoute(op, to("x", "a.org", below("/v3"), securedBy(spec.TLSAuto)), "spec.tls.mode: must be cluster, as that of route shop")
	c.refusesRoute(op, to("x", "", onTCP(5432)), "spec.tcp: 5432 is the port of route db already")
	c.refusesRoute(op, to("x", "", onTCP(5432), under("blog")), "spec.tcp: 5432 is the port of a route in namespace default already")
	c.refusesRoute(op, to("x", "", func(r *v1.Route) { r.Spec.Host, r.Spec.Udp = "", 5432 }), "spec.udp: 5432 is the port of route dns already")

	// All routes of a host change their certificate together.
	plan := &v1.PlanRequest{}
	for _, r := range []*v1.Route{to("shop", "a.org", securedBy(spec.TLSAuto)), to("v2", "a.org", below("/v2"), securedBy(spec.TLSAuto))} {
		plan.Objects = append(plan.Objects, spec.ManifestOf(r))
	}
	if _, err := op.routes().ApplyRoute(c.ctx, &v1.ApplyRouteRequest{Route: to("shop", "a.org", securedBy(spec.TLSAuto))}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("one of two was changed alone: %v", err)
	}
	c.applyPlan(op, plan)
	// Two routes swap their paths in one plan.
	c.applyPlan(op, &v1.PlanRequest{Objects: []*v1.Manifest{
		spec.ManifestOf(to("shop", "a.org", below("/v2"), securedBy(spec.TLSAuto))), spec.ManifestOf(to("v2", "a.org", securedBy(spec.TLSAuto))),
	}})
}

// A route gets no port that the cluster or a workload has, and a workload none that a route has.
func TestPortsOfRoutesAndWorkloads(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	_, api, _ := strings.Cut(c.Address(), ":")
	var number int32
	_, err := fmt.Sscan(api, &number)
	must(t, err)
	c.refusesRoute(op, to("x", "", onTCP(22)), "spec.tcp: 22 is the port of SSH")
	c.refusesRoute(op, to("x", "", onTCP(443)), "spec.tcp: 443 is the port at which nodes answer for routes with a host")
	server := &v1.Server{Metadata: &v1.Metadata{Uid: "s-9", Name: "far"}, Spec: &v1.ServerSpec{Address: "192.0.2.9:7443"}}
	_, err = c.Propose(c.ctx, func(_ *state.Snapshot, b *state.Batch) error { b.Put(server); return nil })
	must(t, err)
	c.refusesRoute(op, to("x", "", onTCP(7443)), "spec.tcp: 7443 is the port of the cluster's API")

	publishes := func(port int32) func(*v1.Workload) {
		return func(w *v1.Workload) {
			w.Spec.Network, w.Spec.Ports = "node", []*v1.Port{{Name: "x", Port: 80, Publish: port}}
		}
	}
	c.made(op, "web", publishes(8080), replicasOf(0))
	c.refusesRoute(op, to("x", "", onTCP(8080)), "spec.tcp: needs port 8080/tcp of the nodes, which workload web in namespace default publishes")
	c.leads(op, to("dns", "", func(r *v1.Route) { r.Spec.Host, r.Spec.Udp = "", 8080 })) // another protocol
	c.leads(op, to("db", "", onTCP(5432)))
	refused := func(port int32, words string) {
		t.Helper()
		_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("late", publishes(port), replicasOf(0))})
		wantCode(t, err, codes.InvalidArgument, words)
	}
	refused(5432, "spec.ports[0].publish: 5432/tcp is the port of a route in namespace default")
	c.made(c.as(core.RoleAdmin), "plain", publishes(80), replicasOf(0)) // no route has a host yet
	c.refusesRoute(op, to("x", "a.org"), "spec.host: needs port 80/tcp of the nodes, which workload plain in namespace default publishes")
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "plain"})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool { return snap.WorkloadByName("default", "plain") == nil })
	c.leads(op, to("x", "a.org"))
	refused(80, "80/tcp is the port at which nodes answer for routes with a host")
	c.made(c.as(core.RoleAdmin), "late", publishes(443), replicasOf(0)) // no route has TLS

	admin := c.as(core.RoleAdmin)
	for words, ingress := range map[string]*v1.Ingress{
		"spec.cluster.ingress.httpPort: 5432 is the port of route default/db":   {HttpPort: 5432},
		"spec.cluster.ingress.httpsPort: 7443 is the port of the cluster's API": {HttpsPort: 7443},
	} {
		changed := proto.CloneOf(c.Store.Snapshot().Cluster().GetSpec())
		changed.Ingress = ingress
		_, err := admin.SetConfiguration(c.ctx, &v1.SetConfigurationRequest{Configuration: &v1.Configuration{Spec: &v1.ConfigurationSpec{Number: 1, Cluster: changed}}})
		wantCode(t, err, codes.InvalidArgument, words)
	}
}

// No answer has the hash of a password: not of a call, a list, a watch, a plan, an event or a refusal.
func TestPasswordsAreInNoAnswer(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	var seen strings.Builder
	see := func(m proto.Message, err error) {
		t.Helper()
		must(t, err)
		seen.WriteString(protojson.Format(m))
	}
	watch, err := op.routes().WatchRoutes(c.ctx, &v1.WatchRoutesRequest{})
	must(t, err)
	synced, err := watch.Recv()
	see(synced, err)
	c.refusesRoute(op, to("a", "a.org", withUsers("")), "spec.http.users[0].passwordHash: is missing, and the route has no user user0")
	made, err := op.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("a", "a.org", withUsers(hashA)), IdempotencyKey: "k"})
	see(made, err)
	again, err := op.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("a", "a.org", withUsers(hashA)), IdempotencyKey: "k"})
	see(again, err)
	if users := made.GetSpec().GetHttp().GetUsers(); len(users) != 1 || users[0].GetName() != "user0" {
		t.Errorf("the users are shown as %v", users)
	}
	added, err := watch.Recv()
	see(added, err)
	list, err := op.routes().ListRoutes(c.ctx, &v1.ListRoutesRequest{})
	see(list, err)

	// An update without a password keeps it; another user needs one.
	answer, err := op.routes().ApplyRoute(c.ctx, &v1.ApplyRouteRequest{Route: to("a", "a.org", withUsers(""))})
	see(answer, err)
	if answer.GetResult() != "unchanged" {
		t.Errorf("the same without a password is %s", answer.GetResult())
	}
	edited := proto.CloneOf(made) // as an editor shows it
	edited.Spec.Http.Compress = true
	updated, err := op.routes().UpdateRoute(c.ctx, &v1.UpdateRouteRequest{Route: edited})
	see(updated, err)
	if kept := c.Store.Snapshot().RouteByName("default", "a").GetSpec().GetHttp().GetUsers()[0].GetPasswordHash(); kept != hashA {
		t.Errorf("the password is now %q", kept)
	}
	_, err = op.routes().ApplyRoute(c.ctx, &v1.ApplyRouteRequest{Route: to("a", "a.org", withUsers("", ""))})
	wantCode(t, err, codes.InvalidArgument, "spec.http.users[1].passwordHash: is missing")

	request := &v1.PlanRequest{Objects: []*v1.Manifest{spec.ManifestOf(to("a", "a.org", withUsers(hashB)))}}
	plan := c.plan(op, request)
	see(plan, nil)
	wantPlan(t, plan, "update a", "spec.http.compress: true > ", "spec.http.users[0].passwordHash:  > (new)")
	applied := c.applyPlan(op, request)
	see(applied, nil)
	_, err = op.routes().UpdateRoute(c.ctx, &v1.UpdateRouteRequest{Route: edited})
	wantCode(t, err, codes.Aborted)
	for _, detail := range status.Convert(err).Details() {
		see(detail.(proto.Message), nil)
	}
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{})
	see(events, err)
	gone, err := op.routes().DeleteRoute(c.ctx, &v1.DeleteRouteRequest{Name: "a"})
	see(gone, err)
	all := seen.String() + c.log.String()
	for _, hash := range []string{hashA, hashB} {
		if strings.Contains(all, hash) {
			t.Errorf("%s was shown in %s", hash, all)
		}
	}
}

// Routes are planned, applied and pruned as all objects, and a plan warns of services that are not there.
func TestPlansHoldRoutes(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	shop := func(r *v1.Route) { r.Metadata.Labels = map[string]string{"app": "shop"} }
	request := asking(workload("api", withPort(8080), labelled("app", "shop"), replicasOf(0)))
	request.Objects = append(request.Objects, spec.ManifestOf(to("shop", "a.org", shop, func(r *v1.Route) { r.Spec.Backends[0].Port = 8080 })),
		spec.ManifestOf(to("old", "b.org", shop, func(r *v1.Route) { r.Spec.Backends[0].Service = "old" })))
	plan := c.plan(op, request)
	for _, change := range plan.GetChanges() {
		got := strings.Join(change.GetWarnings(), "; ")
		if want := change.GetName() == "old"; strings.Contains(got, "service old does not exist") != want || !want && got != "" {
			t.Errorf("the plan warns of %s: %q", change.GetName(), got)
		}
	}
	c.applyPlan(op, request)
	request.Objects, request.Prune = request.GetObjects()[:2], "app=shop"
	pruned := c.plan(op, request)
	wantPlan(t, pruned, "unchanged api", "unchanged shop", "delete old")
	c.applyPlan(op, request)
	snap := c.Store.Snapshot()
	if snap.RouteByName("default", "old") != nil || snap.RouteByName("default", "shop") == nil {
		t.Error("the wrong route was pruned")
	}
	// The pruned route's host goes to another one in the same plan.
	request.Objects[1] = spec.ManifestOf(to("new", "a.org", shop))
	wantPlan(t, c.plan(op, request), append([]string{"unchanged api", "create new"}, append(createdFields(c.plan(op, request)), "delete shop")...)...)
	c.applyPlan(op, request)

	// A namespace with a route is not empty.
	_, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("w", replicasOf(0))})
	must(t, err)
	_, err = c.as(core.RoleAdmin).namespaces().ApplyNamespace(c.ctx, &v1.ApplyNamespaceRequest{Namespace: &v1.Namespace{Metadata: &v1.Metadata{Name: "blog"}}})
	must(t, err)
	c.leads(op, to("x", "blog.org", under("blog")))
	_, err = c.as(core.RoleAdmin).namespaces().DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "blog"})
	wantCode(t, err, codes.FailedPrecondition, "namespace blog has 1 route; delete them first (cloudless get routes -n blog)")
}

// createdFields are the lines about the fields of what a plan creates.
func createdFields(p *v1.Plan) (lines []string) {
	for _, change := range p.GetChanges() {
		if change.GetAction() == spec.ActionCreate {
			return planLines(&v1.Plan{Changes: []*v1.PlanChange{change}})[1:]
		}
	}
	return nil
}

// A route with a certificate of one's own needs one that is there and for its host.
func TestOwnCertificates(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	own := func(r *v1.Route) { r.Spec.Tls = &v1.RouteTls{Mode: spec.TLSOwn, Certificate: "mine"} }
	c.refusesRoute(op, to("x", "a.org", own), "spec.tls.certificate: names certificate mine, which namespace default does not have; add it first with: cloudless certificate add mine --cert FILE --key FILE")
	_, err := c.Propose(c.ctx, func(_ *state.Snapshot, b *state.Batch) error {
		b.Create(&v1.Certificate{Metadata: &v1.Metadata{Uid: "c-1", Namespace: "default", Name: "mine"}, Spec: &v1.CertificateSpec{Source: "own", Hosts: []string{"*.b.org"}}})
		return nil
	})
	must(t, err)
	c.refusesRoute(op, to("x", "a.org", own), "names certificate mine, which is for *.b.org and not for a.org")
	made := c.leads(op, to("x", "a.b.org", own))
	if made.GetStatus().GetCertificate() != "mine" || made.GetStatus().GetUrl() != "https://a.b.org" {
		t.Errorf("its status is %v", made.GetStatus())
	}
	c.refusesRoute(op, to("y", "*.c.org", securedBy(spec.TLSAuto)), "spec.tls.mode: auto for *.c.org needs a check by DNS", "cloudless cluster config set acme.dns.provider=NAME")
}

// reported is what nodes have reported in a test.
type reported struct {
	mu    sync.Mutex
	ports map[string]string // problems by node, protocol and port
}

func (r *reported) Route(string) *v1.RouteTraffic { return &v1.RouteTraffic{Requests: 7} }

func (r *reported) Port(node, protocol string, port int32) (problem string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	problem, known = r.ports[fmt.Sprintf("%s %s/%d", node, protocol, port)]
	return problem, known
}

// A watch shows what a change of the state means for a route, and a read what nodes report.
func TestWatchFollowsWhatARouteLeadsTo(t *testing.T) {
	live := &reported{ports: map[string]string{}}
	c := newCluster(t, func(o *Options) { o.Traffic = live })
	op := c.as(core.RoleOperator)
	watch, err := op.routes().WatchRoutes(c.ctx, &v1.WatchRoutesRequest{})
	must(t, err)
	until := func(words string) {
		t.Helper()
		for {
			change, err := watch.Recv()
			must(t, err)
			if strings.Contains(change.GetRoute().GetStatus().GetReason(), words) {
				return
			}
		}
	}
	c.leads(op, to("x", "a.org"))
	until("service api does not exist")
	c.made(op, "api", withPort(80), replicasOf(0))
	until("no replica of workload api has an address yet")

	m := c.join("box")
	c.until(func(snap *state.Snapshot) bool {
		n := proto.CloneOf(snap.NodeByName("box"))
		if n == nil {
			return false
		}
		n.Status.State = spec.NodeReady
		_, err := c.Propose(c.ctx, func(_ *state.Snapshot, b *state.Batch) error { b.Put(n); return nil })
		return err == nil
	})
	read := func() *v1.RouteStatus {
		t.Helper()
		r, err := op.routes().GetRoute(c.ctx, &v1.GetRouteRequest{Name: "x"})
		must(t, err)
		return r.GetStatus()
	}
	if st := read(); len(st.GetNodes()) != 1 || st.GetNodes()[0].GetProblem() != "has not reported yet whether it could open its ports" || st.GetTraffic().GetRequests() != 7 {
		t.Errorf("before a report: %v", st)
	}
	live.mu.Lock()
	live.ports[m.uid()+" tcp/80"] = "nginx uses it"
	live.mu.Unlock()
	if st := read(); st.GetNodes()[0].GetProblem() != "nginx uses it" {
		t.Errorf("with a problem: %v", st)
	}
}

// A route may serve a bucket that does not exist yet, and says so. Nobody deletes a bucket that a route serves.
func TestRouteServesABucket(t *testing.T) {
	c, _ := withObjects(t)
	op := c.as(core.RoleOperator)
	www := to("www", "www.example.org", func(r *v1.Route) {
		r.Spec.Backends = []*v1.RouteBackend{{Bucket: &v1.RouteBucket{Name: "site", NotFound: "404.html"}}}
	})
	made := c.leads(op, www)
	if b := made.GetSpec().GetBackends()[0].GetBucket(); b.GetIndex() != "index.html" || !strings.HasPrefix(made.GetStatus().GetReason(), "bucket site does not exist: make it with") {
		t.Errorf("it is %v", made)
	}
	_, err := op.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("site", nil)})
	must(t, err)
	got, err := op.routes().GetRoute(c.ctx, &v1.GetRouteRequest{Name: "www"})
	if err != nil || got.GetStatus().GetReady() != 1 || strings.Contains(got.GetStatus().GetReason(), "bucket") {
		t.Errorf("with the bucket: %v, %v", got.GetStatus(), err)
	}
	for _, force := range []bool{false, true} {
		_, err = op.buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: "site", Force: force})
		wantCode(t, err, codes.FailedPrecondition, "bucket site is served by route www; remove the route first with: cloudless route rm www")
	}
	_, err = op.routes().DeleteRoute(c.ctx, &v1.DeleteRouteRequest{Name: "www"})
	must(t, err)
	_, err = op.buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: "site"})
	must(t, err)
}

// A route to a bucket shows it to everybody, so its author must be allowed to read it.
func TestRouteShowsNothingThatItsAuthorMayNotRead(t *testing.T) {
	c, _ := withObjects(t)
	must(t, c.applyRole(c.as(core.RoleAdmin), role("router", granting("get create update", "route"))))
	router := c.as("router")
	www := to("www", "www.example.org", func(r *v1.Route) {
		r.Spec.Backends = []*v1.RouteBackend{{Bucket: &v1.RouteBucket{Name: "site"}}}
	})
	_, err := router.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: www})
	wantCode(t, err, codes.PermissionDenied, "serve bucket site as a web site")
	c.leads(router, to("api", "api.example.org"))
	www.Metadata.Name, www.Spec.Host = "api", "api.example.org"
	_, err = router.routes().ApplyRoute(c.ctx, &v1.ApplyRouteRequest{Route: www})
	wantCode(t, err, codes.PermissionDenied, "serve bucket site as a web site")
}
