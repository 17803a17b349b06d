package server

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func (u *user) services() v1.ServiceServiceClient   { return v1.NewServiceServiceClient(u.conn) }
func (u *user) endpoints() v1.EndpointServiceClient { return v1.NewEndpointServiceClient(u.conn) }

func offered(name string, change ...func(*v1.ServiceSpec)) *v1.Service {
	s := &v1.Service{Metadata: &v1.Metadata{Name: name}, Spec: &v1.ServiceSpec{Ports: []*v1.ServicePort{{Port: 80, TargetPort: 8080}}}}
	for _, f := range change {
		f(s.Spec)
	}
	return s
}

func withPort(port int32) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Spec.Network, w.Spec.Ports = "node", []*v1.Port{{Name: "http", Port: port}} }
}

// serviceOf waits for the service of a workload.
func (c *cluster) serviceOf(name string, want func(*v1.Service) bool) *v1.Service {
	c.t.Helper()
	snap := c.until(func(snap *state.Snapshot) bool {
		s := snap.ServiceByName("default", name)
		return s != nil && want(s)
	})
	return snap.ServiceByName("default", name)
}

func TestAppliedServicesHaveAddresses(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	made, err := op.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered("api")})
	must(t, err)
	status := made.GetStatus()
	if !strings.HasPrefix(status.GetAddressV4(), "10.128.") || !strings.Contains(status.GetAddressV6(), ":ffff::") || status.GetDnsName() != "api.default.cloudless.internal" || spec.IsImplicit(made) {
		t.Errorf("it is %v", made)
	}
	if !strings.Contains(status.GetReason(), "no workload in namespace default is named api") {
		t.Errorf("what is wrong is %q", status.GetReason())
	}
	_, err = op.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered("api")})
	wantCode(t, err, codes.AlreadyExists, "service api exists already in namespace default")
	answer, err := op.services().ApplyService(c.ctx, &v1.ApplyServiceRequest{Service: offered("api", func(s *v1.ServiceSpec) { s.Selector = map[string]string{"app": "x"} })})
	must(t, err)
	if now := answer.GetService(); answer.GetResult() != "updated" || now.GetStatus().GetAddressV4() != status.GetAddressV4() || !strings.Contains(now.GetStatus().GetReason(), "has the labels app=x") {
		t.Errorf("after a change it is %v", answer)
	}
	headless, err := op.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered("peers", func(s *v1.ServiceSpec) { s.Headless = true })})
	must(t, err)
	if headless.GetStatus().GetAddressV4()+headless.GetStatus().GetAddressV6() != "" {
		t.Errorf("a headless service is %v", headless)
	}
	list, err := viewer.services().ListServices(c.ctx, &v1.ListServicesRequest{Page: &v1.Page{Size: 1}})
	must(t, err)
	if len(list.GetItems()) != 1 || list.GetNext() == "" {
		t.Errorf("the first page is %v", list)
	}

	_, err = viewer.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered("mine")})
	wantCode(t, err, codes.PermissionDenied)
	for words, wrong := range map[string]*v1.Service{
		"spec.ports: is missing: a service needs at least one port": offered("x", func(s *v1.ServiceSpec) { s.Ports = nil }),
		"spec.ports[1].name: is missing":                            offered("x", func(s *v1.ServiceSpec) { s.Ports = append(s.Ports, &v1.ServicePort{Port: 81}) }),
		"spec.ports[1].port: 80/tcp is the port of spec.ports[0]":   offered("x", func(s *v1.ServiceSpec) { s.Ports = append(s.Ports, &v1.ServicePort{Port: 80, Name: "b"}) }),
		"spec.balancer.affinityTimeout: is only for affinity client": offered("x", func(s *v1.ServiceSpec) {
			s.Balancer = &v1.Balancer{AffinityTimeout: "1m"}
		}),
		"is not reachable from other machines": offered("x", func(s *v1.ServiceSpec) { s.External = []*v1.ExternalEndpoint{{Addresses: []string{"127.0.0.1"}}} }),
		"is an address of the services": offered("x", func(s *v1.ServiceSpec) {
			s.External = []*v1.ExternalEndpoint{{Addresses: []string{status.GetAddressV4()}}}
		}),
		"spec.external external-1: 10.64.7.7 is in the range of this cluster's replicas": offered("x", func(s *v1.ServiceSpec) {
			s.External = []*v1.ExternalEndpoint{{Addresses: []string{"10.64.7.7"}}}
		}),
		"metadata.name: must be 1 to 63": offered("Not_a_label"),
	} {
		_, err := op.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: wrong})
		wantCode(t, err, codes.InvalidArgument, words)
	}
	_, err = op.services().DeleteService(c.ctx, &v1.DeleteServiceRequest{Name: "api"})
	must(t, err)
	_, err = viewer.services().GetService(c.ctx, &v1.GetServiceRequest{Name: "api"})
	wantCode(t, err, codes.NotFound, "service api does not exist in namespace default")
}

// An applied service takes over the addresses of a workload's own, which comes back when the applied one is removed.
func TestAnAppliedServiceTakesOverAndGivesBack(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.made(op, "api", withPort(8080))
	own := c.serviceOf("api", spec.IsImplicit)
	_, err := op.services().DeleteService(c.ctx, &v1.DeleteServiceRequest{Name: "api"})
	wantCode(t, err, codes.FailedPrecondition, "is the service of workload api, which has ports", "cloudless workload rm api")
	_, err = op.services().SetBalancer(c.ctx, &v1.SetBalancerRequest{Service: "api", Balancer: &v1.Balancer{Locality: "none"}})
	wantCode(t, err, codes.FailedPrecondition, "apply a service of that name")

	applied, err := op.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered("api")})
	must(t, err)
	if spec.IsImplicit(applied) || applied.GetStatus().GetAddressV4() != own.GetStatus().GetAddressV4() || applied.GetSpec().GetPorts()[0].GetPort() != 80 {
		t.Errorf("the applied service is %v", applied)
	}
	changed, err := op.services().SetBalancer(c.ctx, &v1.SetBalancerRequest{Service: "api", Balancer: &v1.Balancer{Affinity: "client"}})
	must(t, err)
	if b := changed.GetSpec().GetBalancer(); b.GetAffinityTimeout() != "10m" || b.GetLocality() != "prefer" {
		t.Errorf("its balancer is %v", b)
	}
	balancer, err := op.services().GetBalancer(c.ctx, &v1.GetBalancerRequest{Service: "api"})
	must(t, err)
	if balancer.GetAffinity() != "client" {
		t.Errorf("its balancer is %v", balancer)
	}
	_, err = op.services().DeleteService(c.ctx, &v1.DeleteServiceRequest{Name: "api"})
	must(t, err)
	back, err := op.services().GetService(c.ctx, &v1.GetServiceRequest{Name: "api"})
	must(t, err)
	if !spec.IsImplicit(back) || back.GetStatus().GetAddressV4() != own.GetStatus().GetAddressV4() || back.GetSpec().GetPorts()[0].GetPort() != 8080 {
		t.Errorf("the service of the workload is back as %v", back)
	}
}

func TestEndpointsAreReplicasAndRegisteredOnes(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	node := c.join("box")
	made := c.made(op, "api", withPort(8080), replicasOf(2)) // one has no node, and the other is the one below
	c.serviceOf("api", spec.IsImplicit)
	stream, err := op.endpoints().WatchEndpoints(c.ctx, &v1.WatchEndpointsRequest{Service: "api"})
	must(t, err)
	expect := func(change, name, endpointState string) {
		t.Helper()
		got, err := stream.Recv()
		must(t, err)
		if got.GetChange() != change || got.GetEndpoint().GetMetadata().GetName() != name || got.GetEndpoint().GetStatus().GetState() != endpointState {
			t.Fatalf("the watch shows %v, want %s %s %s", got, change, name, endpointState)
		}
	}
	expect("synced", "", "")
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: "r1", Name: "api-r1", Namespace: "default"},
			Spec: &v1.ReplicaSpec{
				WorkloadUid: made.GetMetadata().GetUid(), Workload: "api", NodeUid: node.uid(), Node: "box", Desired: spec.DesiredRunning,
				RevisionUid: made.GetStatus().GetRevisionUid(), Revision: made.GetStatus().GetRevision(),
			},
			Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning, Addresses: []string{"10.64.0.2", "fd00::2"}},
		})
	})
	expect("added", "api-r1", spec.EndpointReady)

	register := func(name string, addresses ...string) error {
		_, err := op.endpoints().RegisterEndpoint(c.ctx, &v1.RegisterEndpointRequest{Service: "api", Name: name, Addresses: addresses})
		return err
	}
	must(t, register("old", "192.0.2.7"))
	expect("added", "old", spec.EndpointReady)
	_, err = op.endpoints().SetEndpointHealth(c.ctx, &v1.SetEndpointHealthRequest{Service: "api", Name: "old", Reason: "does not answer"})
	must(t, err)
	expect("changed", "old", spec.EndpointUnready)
	wantCode(t, register("api-r1", "192.0.2.8"), codes.AlreadyExists, "which is not a registered one (replica)")
	wantCode(t, register("x", "localhost"), codes.InvalidArgument, "is not an IP address")
	wantCode(t, register("x"), codes.InvalidArgument, "addresses: is missing")
	for _, local := range []string{"127.0.0.1", "::1", "0.0.0.0", "::", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:127.0.0.1"} {
		wantCode(t, register("x", local), codes.InvalidArgument, "is not reachable from other machines")
	}
	cluster := c.Store.Snapshot().Cluster().GetSpec()
	for _, text := range []string{cluster.GetServiceRangeV4(), cluster.GetServiceRangeV6()} {
		wantCode(t, register("x", netip.MustParsePrefix(text).Addr().Next().String()), codes.InvalidArgument, "is an address of the services of this cluster")
	}
	for _, text := range []string{cluster.GetRangeV4(), cluster.GetRangeV6(), c.Store.Snapshot().Node(node.uid()).GetSpec().GetSubnetV4()} {
		wantCode(t, register("x", netip.MustParsePrefix(text).Addr().Next().String()), codes.InvalidArgument, "is in the range of this cluster's replicas", "spec.selector")
	}
	c.mustSet(c.as(core.RoleAdmin), func(s *v1.ClusterSpec) { s.RangeV4 = "172.16.0.0/16" }) // the node keeps its subnet
	wantCode(t, register("x", "10.64.0.9"), codes.InvalidArgument, "is in the range of this cluster's replicas")
	_, err = op.endpoints().SetEndpointHealth(c.ctx, &v1.SetEndpointHealthRequest{Service: "api", Name: "api-r1"})
	wantCode(t, err, codes.FailedPrecondition, "is a replica of workload api")
	_, err = op.endpoints().DeregisterEndpoint(c.ctx, &v1.DeregisterEndpointRequest{Service: "api", Name: "odl"})
	wantCode(t, err, codes.NotFound, "endpoint odl is not registered with service api", "did you mean old?")

	resolved, err := op.services().ResolveService(c.ctx, &v1.ResolveServiceRequest{Name: "api.default.cloudless.internal"})
	must(t, err)
	if len(resolved.GetAddresses()) != 2 || len(resolved.GetEndpoints()) != 2 || resolved.GetDnsName() != "api.default.cloudless.internal" {
		t.Errorf("the name leads to %v", resolved)
	}
	_, err = op.services().ResolveService(c.ctx, &v1.ResolveServiceRequest{Namespace: "shop", Name: "api.default"})
	wantCode(t, err, codes.FailedPrecondition, "is not exported, so namespace shop cannot reach it")

	var names []string
	for token, more := "", true; more; more = token != "" {
		list, err := op.endpoints().ListEndpoints(c.ctx, &v1.ListEndpointsRequest{Page: &v1.Page{Size: 1, Token: token}})
		must(t, err)
		token = list.GetNext()
		names = append(names, list.GetItems()[0].GetMetadata().GetName())
	}
	if !slices.Equal(names, []string{"api-r1", "old"}) {
		t.Errorf("by pages there are %v", names)
	}
	_, err = op.endpoints().DeregisterEndpoint(c.ctx, &v1.DeregisterEndpointRequest{Service: "api", Name: "old"})
	must(t, err)
	expect("removed", "old", spec.EndpointUnready)
}

func TestServiceRangesAreChecked(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	for words, change := range map[string]func(*v1.ClusterSpec){
		"spec.cluster.serviceRangeV4: overlaps rangeV4 (10.64.0.0/10)": func(s *v1.ClusterSpec) { s.ServiceRangeV4 = "10.64.0.0/16" },
		"spec.cluster.serviceRangeV4: is too small":                    func(s *v1.ClusterSpec) { s.ServiceRangeV4 = "10.128.0.0/29" },
		"must be a range of private addresses":                         func(s *v1.ClusterSpec) { s.ServiceRangeV4 = "8.8.0.0/16" },
	} {
		_, err := c.set(admin, change)
		wantCode(t, err, codes.InvalidArgument, words)
	}
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.ServiceRangeV4 = "10.129.0.0/28" })
	for i := range 14 {
		_, err := admin.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered("s" + string(rune('a'+i)))})
		must(t, err)
	}
	_, err := admin.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: offered("more")})
	wantCode(t, err, codes.ResourceExhausted, "serviceRangeV4 (10.129.0.0/28)", "cloudless cluster config set serviceRangeV4=RANGE")
}

// Prune deletes the services that users applied. The service of a workload in the files has its labels and stays.
func TestPruneKeepsTheServicesOfWorkloads(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	labels := map[string]string{"app": "shop"}
	web := workload("web", withPort(8080))
	web.Metadata.Labels = labels
	_, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: web})
	must(t, err)
	c.serviceOf("web", spec.IsImplicit)
	old := offered("old")
	old.Metadata.Labels = labels
	_, err = admin.services().CreateService(c.ctx, &v1.CreateServiceRequest{Service: old})
	must(t, err)
	plan, err := v1.NewPlanServiceClient(admin.conn).MakePlan(c.ctx, &v1.PlanRequest{Objects: []*v1.Manifest{spec.ManifestOf(web)}, Prune: "app=shop"})
	must(t, err)
	var deleted []string
	for _, change := range plan.GetChanges() {
		if change.GetAction() == spec.ActionDelete {
			deleted = append(deleted, change.GetKind()+" "+change.GetName())
		}
	}
	if !slices.Equal(deleted, []string{"Service old"}) {
		t.Errorf("the plan deletes %v, want only the service that was applied", deleted)
	}
}
