package server

import (
	"fmt"
	"net/http"
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

// current returns the configuration in force.
func (c *cluster) current(u *user) *v1.Configuration {
	c.t.Helper()
	current, err := u.GetConfiguration(c.ctx, &v1.GetConfigurationRequest{})
	must(c.t, err)
	return current
}

// set changes the configuration in force.
func (c *cluster) set(u *user, change func(*v1.ClusterSpec)) (*v1.Configuration, error) {
	c.t.Helper()
	wanted := proto.CloneOf(c.current(u))
	change(wanted.GetSpec().GetCluster())
	wanted.Spec.Comment = "because"
	return u.SetConfiguration(c.ctx, &v1.SetConfigurationRequest{Configuration: wanted})
}

func (c *cluster) mustSet(u *user, change func(*v1.ClusterSpec)) *v1.Configuration {
	c.t.Helper()
	made, err := c.set(u, change)
	must(c.t, err)
	return made
}

func voters(n int32) func(*v1.ClusterSpec) {
	return func(s *v1.ClusterSpec) { s.DesiredVoters = &n }
}

func TestEveryChangeOfTheConfigurationMakesAVersion(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	first := c.current(admin)
	if first.GetSpec().GetNumber() != 1 || first.GetSpec().GetCluster().GetRangeV4() != "10.64.0.0/10" || !strings.HasSuffix(first.GetSpec().GetAuthor(), "/server/s-1") {
		t.Errorf("a new cluster has configuration %v", first)
	}
	second := c.mustSet(admin, voters(5))
	who, err := admin.WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	must(t, err)
	s := second.GetSpec()
	if s.GetNumber() != 2 || s.GetAuthor() != who.GetId() || s.GetComment() != "because" || second.GetMetadata().GetCreateTime() == nil {
		t.Errorf("the second version is %v", second)
	}
	if got := fmt.Sprint(s.GetChanges()); !strings.Contains(got, `path:"desiredVoters"`) || !strings.Contains(got, `after:"5"`) || len(s.GetChanges()) != 1 {
		t.Errorf("it says that it has changed %v", got)
	}
	cluster, err := admin.GetCluster(c.ctx, &v1.GetClusterRequest{})
	must(t, err)
	if cluster.GetStatus().GetConfiguration() != 2 || cluster.GetStatus().GetDesiredVoters() != 5 || cluster.GetSpec().GetDesiredVoters() != 5 {
		t.Errorf("the cluster says %v %v", cluster.GetSpec(), cluster.GetStatus())
	}
	events, err := admin.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "cloudless"})
	must(t, err)
	if len(events.GetItems()) != 1 || events.GetItems()[0].GetSpec().GetMessage() != "configuration 2: desiredVoters is 5, was 3" {
		t.Errorf("the events say %v", events.GetItems())
	}

	// A change without an effect makes no version, and neither does a dry run.
	if same := c.mustSet(admin, func(s *v1.ClusterSpec) { s.Liveness = &v1.Liveness{} }); same.GetSpec().GetNumber() != 2 {
		t.Errorf("the same again is version %d", same.GetSpec().GetNumber())
	}
	wanted := proto.CloneOf(second)
	wanted.Spec.Cluster.DesiredVoters = new(int32(7))
	would, err := admin.SetConfiguration(c.ctx, &v1.SetConfigurationRequest{Configuration: wanted, DryRun: true})
	must(t, err)
	if would.GetSpec().GetNumber() != 3 || len(would.GetSpec().GetChanges()) != 1 || c.current(admin).GetSpec().GetNumber() != 2 {
		t.Errorf("a dry run says %v", would)
	}

	// A change that was made from an old version is refused with the newer one.
	stale := proto.CloneOf(first)
	stale.Spec.Cluster.DesiredVoters = new(int32(1))
	_, err = admin.SetConfiguration(c.ctx, &v1.SetConfigurationRequest{Configuration: stale})
	wantCode(t, err, codes.Aborted, "you named version 1, it is at version 2 now")
	if details := status.Convert(err).Details(); len(details) != 1 || details[0].(*v1.Configuration).GetSpec().GetNumber() != 2 {
		t.Errorf("the refusal carries %v", details)
	}
	stale.Spec.Number = 0
	_, err = admin.SetConfiguration(c.ctx, &v1.SetConfigurationRequest{Configuration: stale})
	wantCode(t, err, codes.InvalidArgument, "spec.number: is missing")
}

func TestRollbackMakesANewVersionThatEqualsTheOld(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	first := c.current(admin)
	c.mustSet(admin, voters(5))
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.Liveness = &v1.Liveness{Silence: "5s"} })
	would, err := admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 1, DryRun: true})
	must(t, err)
	back, err := admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 1, From: 3, Comment: "better"})
	must(t, err)
	s := back.GetSpec()
	if s.GetNumber() != 4 || s.GetRolledBackTo() != 1 || s.GetComment() != "better" || !proto.Equal(s.GetCluster(), first.GetSpec().GetCluster()) {
		t.Errorf("back is %v", back)
	}
	if len(s.GetChanges()) != 2 || len(would.GetSpec().GetChanges()) != 2 {
		t.Errorf("it has changed %v, and would have %v", s.GetChanges(), would.GetSpec().GetChanges())
	}
	_, err = admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 2, From: 3})
	wantCode(t, err, codes.Aborted, "it is at version 4 now")
	_, err = admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 9})
	wantCode(t, err, codes.NotFound, "there is no configuration 9: the newest is 4")

	// A rollback to a version that the cluster has outgrown is refused.
	small := c.mustSet(admin, func(s *v1.ClusterSpec) { s.Limits = &v1.ClusterLimits{Nodes: new(int32(1))} })
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.Limits = nil })
	c.join("one")
	c.join("two")
	_, err = admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: small.GetSpec().GetNumber()})
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.limits.nodes: must be at least 2, because so many nodes are there")

	// The history has all versions, in pages, newest first.
	var numbers []uint64
	page := &v1.Page{Size: 4}
	for {
		answer, err := admin.ListConfigurations(c.ctx, &v1.ListConfigurationsRequest{Page: page})
		must(t, err)
		for _, one := range answer.GetItems() {
			numbers = append(numbers, one.GetSpec().GetNumber())
		}
		if page.Token = answer.GetNext(); page.GetToken() == "" {
			break
		}
	}
	if fmt.Sprint(numbers) != "[6 5 4 3 2 1]" {
		t.Errorf("the history lists %v", numbers)
	}
	old, err := c.as(core.RoleViewer).GetConfiguration(c.ctx, &v1.GetConfigurationRequest{Number: 2})
	must(t, err)
	if old.GetSpec().GetCluster().GetDesiredVoters() != 5 {
		t.Errorf("version 2 is %v", old)
	}
}

// A cluster that is older than the versions of configurations is at the first one.
func TestConfigurationOfAnOlderCluster(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		b.Delete(state.KindConfiguration, snap.Configuration(1).GetMetadata().GetUid())
		old := proto.CloneOf(snap.Cluster())
		old.Status.Configuration = 0
		b.Update(old, old.GetMetadata().GetVersion())
	})
	if n := c.current(admin).GetSpec().GetNumber(); n != 1 {
		t.Errorf("it is at version %d", n)
	}
	c.mustSet(admin, voters(5))
	all, err := admin.ListConfigurations(c.ctx, &v1.ListConfigurationsRequest{})
	must(t, err)
	if len(all.GetItems()) != 2 || all.GetItems()[1].GetSpec().GetNumber() != 1 {
		t.Errorf("its history is %v", all.GetItems())
	}
	_, err = admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 1})
	must(t, err)
}

func TestOnlyAdminsChangeTheConfiguration(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	_, err := c.set(op, voters(5))
	wantCode(t, err, codes.PermissionDenied, "role admin would be sufficient")
	_, err = op.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 1})
	wantCode(t, err, codes.PermissionDenied)
}

// Who may change the configuration does not become admin by it: not by naming a provider of its own, not by looser limits,
// and not by going back to a version that has them.
func TestOnlyAdminsChangeWhoIsTrusted(t *testing.T) {
	c := newCluster(t)
	admin := c.as(roles.Admin)
	loose := c.mustSet(admin, func(s *v1.ClusterSpec) {
		s.Oidc = &v1.Oidc{Issuer: "https://old.example.org", ClientId: "cloudless"}
		s.Security = &v1.ClusterSecurity{MaxTokenTtl: "8760h"}
	})
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.Oidc.Issuer, s.Security = "https://accounts.example.org", nil })
	must(t, c.applyRole(admin, role("tuner", granting("*", "configuration cluster"))))
	tuner := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "tuner", Role: "tuner"}))
	before := c.mustSet(tuner, voters(5)).GetSpec().GetNumber()
	for section, change := range map[string]func(*v1.ClusterSpec){
		"changing oidc in":     func(s *v1.ClusterSpec) { s.Oidc.Issuer = "https://tuner.example.org" },
		"changing oidc in the": func(s *v1.ClusterSpec) { s.Oidc.UsernameClaim = "nickname" },
		"changing oidc":        func(s *v1.ClusterSpec) { s.Oidc = nil },
		"changing security in": func(s *v1.ClusterSpec) { s.Security = &v1.ClusterSecurity{MaxTokenTtl: "87600h"} },
		"changing oidc and security in": func(s *v1.ClusterSpec) {
			s.Oidc.Session, s.Security = "99h", &v1.ClusterSecurity{Profile: "privileged"}
		},
		"changing security in the": func(s *v1.ClusterSpec) {
			s.Security = &v1.ClusterSecurity{SeccompProfiles: map[string]string{"open": `{"defaultAction": "SCMP_ACT_ALLOW"}`}}
		},
	} {
		_, err := c.set(tuner, change)
		wantCode(t, err, codes.PermissionDenied, section, "would grant every verb on every kind in all namespaces", "tuner does not have", "ask an admin")
	}
	for _, dry := range []bool{true, false} {
		_, err := tuner.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: loose.GetSpec().GetNumber(), DryRun: dry})
		wantCode(t, err, codes.PermissionDenied, "changing oidc and security in the configuration")
	}
	if now := c.current(admin).GetSpec(); now.GetNumber() != before {
		t.Errorf("after the refusals, configuration %d is in force instead of %d", now.GetNumber(), before)
	}
	c.mustSet(tuner, func(s *v1.ClusterSpec) { s.Security = &v1.ClusterSecurity{}; s.DesiredVoters = proto.Int32(3) }) // nothing of it differs
	must(t, c.applyRole(admin, role("all", granting("*", "*"))))
	c.mustSet(c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Role: "all"})), func(s *v1.ClusterSpec) { s.Oidc = nil })
}

func TestConfigurationOverHTTP(t *testing.T) {
	c := newCluster(t)
	header := []string{"Authorization", "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin})}
	response, text := c.request(nil, http.MethodGet, "/v1/cluster/configuration", "", header...)
	if response.StatusCode != http.StatusOK || !strings.Contains(text, `"number":"1"`) {
		t.Errorf("get: %s %s", response.Status, text)
	}
	response, text = c.request(nil, http.MethodPut, "/v1/cluster/configuration", `{"configuration":{"spec":{"number":1,"cluster":{"desiredVoters":5}}}}`, header...)
	if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(text, " ", ""), `"rangeV4":"10.64.0.0/10"`) {
		t.Errorf("set: %s %s", response.Status, text)
	}
	response, text = c.request(nil, http.MethodPut, "/v1/cluster/configuration", `{"configuration":{"spec":{"number":2,"cluster":{"desiredVoters":4}}}}`, header...)
	if response.StatusCode != http.StatusBadRequest || !strings.Contains(text, "spec.cluster.desiredVoters: must be 1, 3, 5 or 7") {
		t.Errorf("set badly: %s %s", response.Status, text)
	}
	response, text = c.request(nil, http.MethodPost, "/v1/cluster/configuration:rollback", `{"number":1}`, header...)
	if response.StatusCode != http.StatusOK {
		t.Errorf("rollback: %s %s", response.Status, text)
	}
	response, text = c.request(nil, http.MethodGet, "/v1/cluster/configurations?page.size=1", "", header...)
	if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(text, " ", ""), `"number":"3"`) {
		t.Errorf("list: %s %s", response.Status, text)
	}
	response, text = c.request(nil, http.MethodGet, "/v1/cluster/configuration?number=2", "", header...)
	if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(text, " ", ""), `"desiredVoters":5`) {
		t.Errorf("get an old one: %s %s", response.Status, text)
	}
}

func TestRangesApplyToNewNodes(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	before := c.join("before")
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.RangeV4, s.RangeV6 = "172.20.0.0/16", "fd12:3456:789a::/48" })
	after := c.join("after")
	if got := after.node.GetSpec(); got.GetSubnetV4() != "172.20.0.0/24" || got.GetSubnetV6() != "fd12:3456:789a::/64" {
		t.Errorf("a new node has %v", got)
	}
	if got := c.Store.Snapshot().Node(before.uid()).GetSpec(); got.GetSubnetV4() != "10.64.0.0/24" {
		t.Errorf("the old node has %v", got)
	}
	// Back to the old range, beside subnets that are still in use.
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.RangeV4 = "10.64.0.0/10" })
	if got := c.join("later").node.GetSpec().GetSubnetV4(); got != "10.64.1.0/24" {
		t.Errorf("a later node has %s", got)
	}

	_, err := c.set(admin, func(s *v1.ClusterSpec) { s.RangeV4 = "10.9.0.0/23" })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.rangeV4: has room for 2 nodes, and 3 are there")
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		n := proto.CloneOf(snap.Node(before.uid()))
		n.Status.Interfaces = []*v1.Interface{{Name: "eth0", Addresses: []string{"192.168.7.3/24"}}, {Name: "cl-1", Addresses: []string{"10.64.0.1/24"}}}
		b.Update(n, n.GetMetadata().GetVersion())
		b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: "s-1", Name: "box"}, Spec: &v1.ServerSpec{Address: "10.1.2.3:7700"}})
	})
	_, err = c.set(admin, func(s *v1.ClusterSpec) { s.RangeV4 = "192.168.0.0/16" })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.rangeV4: overlaps 192.168.7.0/24, the network of eth0 on node before")
	_, err = c.set(admin, func(s *v1.ClusterSpec) { s.RangeV4, s.ServiceRangeV4 = "10.0.0.0/8", "172.31.0.0/16" })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.rangeV4: contains 10.1.2.3, the address of server box")
	c.membership.Lookup = resolves("other.invalid", "172.16.3.4")
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: "s-2", Name: "other"}, Spec: &v1.ServerSpec{Address: "other.invalid:7700"}})
	})
	_, err = c.set(admin, func(s *v1.ClusterSpec) { s.RangeV4 = "172.16.0.0/12" })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.rangeV4: contains 172.16.3.4, the address of server other")
	c.membership.Lookup = resolves("nobody.invalid", "")                     // a name that does not resolve conflicts with nothing
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.RangeV4 = "10.64.0.0/11" }) // contains the bridge of a node
}

// The reservation for the system must leave every ready node something to promise. A node
// that has nothing of a resource is ignored.
func TestReservationsMustLeaveCapacity(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	c.join("off") // never ready
	m := c.join("box")
	m.connect(c.ctx)
	c.until(func(snap *state.Snapshot) bool { return snap.Node(m.uid()).GetStatus().GetState() == "ready" })

	reserve := func(a *v1.ResourceAmounts) func(*v1.ClusterSpec) {
		return func(s *v1.ClusterSpec) { s.Reserved = a }
	}
	_, err := c.set(admin, reserve(&v1.ResourceAmounts{Memory: "999Ti"}))
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.reserved.memory: would leave nothing to promise on node box, which has 8Gi of which the system would keep 999Ti; keep less")
	_, err = c.set(admin, reserve(&v1.ResourceAmounts{Cpu: "4"}))
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.reserved.cpu: would leave nothing to promise on node box, which has 4 of which the system would keep 4")
	c.mustSet(admin, reserve(&v1.ResourceAmounts{Cpu: "3999m", Memory: "1Gi", Disk: "1Ti"}))
	_, err = c.set(admin, func(s *v1.ClusterSpec) { s.Overcommit = &v1.Overcommit{Cpu: new(int32(99))} })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.reserved.cpu: would leave nothing to promise on node box, which has 3960m of which the system would keep 3999m")

	// A node class can override the reservation, in both directions.
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		n := proto.CloneOf(snap.Node(m.uid()))
		n.Metadata.Labels = map[string]string{"kind": "edge"}
		b.Update(n, n.GetMetadata().GetVersion())
	})
	class := &v1.NodeClass{Name: "all", Labels: "kind=edge", Reserved: &v1.ResourceAmounts{Memory: "9Gi"}}
	_, err = c.set(admin, func(s *v1.ClusterSpec) { s.NodeClasses = []*v1.NodeClass{class} })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.nodeClasses[0].reserved.memory: would leave nothing to promise on node box")
	class.Reserved.Memory = "1Gi"
	c.mustSet(admin, func(s *v1.ClusterSpec) {
		s.NodeClasses, s.Reserved = []*v1.NodeClass{class}, &v1.ResourceAmounts{Memory: "999Ti"}
	})
}

func TestLimitsApplyToNewObjectsOnly(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	made, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", replicasOf(3))})
	must(t, err)
	c.join("one")
	_, err = c.set(admin, func(s *v1.ClusterSpec) { s.Limits = &v1.ClusterLimits{ReplicasPerWorkload: new(int32(2))} })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.limits.replicasPerWorkload: must be at least 3, because workload default/web has so many replicas")
	c.mustSet(admin, func(s *v1.ClusterSpec) {
		s.Limits = &v1.ClusterLimits{Nodes: new(int32(1)), Workloads: new(int32(1)), ReplicasPerWorkload: new(int32(3))}
	})
	_, err = c.enroll("two", c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode}))
	wantCode(t, err, codes.ResourceExhausted, "the cluster has 1 nodes and allows no more", "limits.nodes=2")
	_, err = admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("more")})
	wantCode(t, err, codes.ResourceExhausted, "workload more is one too many: the cluster allows 1", "limits.workloads=2")
	_, err = admin.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(workload("more"))})
	wantCode(t, err, codes.ResourceExhausted, "workload more is one too many")
	_, err = admin.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(4)})
	wantCode(t, err, codes.ResourceExhausted, "workload web asks for 4 replicas, and the cluster allows 3")
	_, err = admin.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", replicasOf(4))})
	wantCode(t, err, codes.ResourceExhausted, "asks for 4 replicas")
	_, err = admin.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(2), Version: made.GetMetadata().GetVersion()})
	must(t, err)

	// Both workloads of one plan count.
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.Limits.Workloads = new(int32(2)) })
	_, err = admin.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(workload("a"), workload("b"))})
	wantCode(t, err, codes.ResourceExhausted, "workload b is one too many")
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.Limits = nil })
	_, err = admin.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(workload("a"), workload("b"))})
	must(t, err)
}

func TestNewDefaultsApplyToNewWorkloadsOnly(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	memory := func(text string) func(*v1.ClusterSpec) {
		return func(s *v1.ClusterSpec) { s.Defaults = &v1.WorkloadDefaults{Limits: &v1.ResourceAmounts{Memory: text}} }
	}
	apply := func(change ...func(*v1.Workload)) *v1.ApplyWorkloadResponse {
		t.Helper()
		answer, err := admin.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", change...)})
		must(t, err)
		return answer
	}
	limit := func(w *v1.Workload) string { return w.GetSpec().GetResources().GetLimits().GetMemory() }

	c.mustSet(admin, memory("64Mi"))
	made := apply()
	if limit(made.GetWorkload()) != "64Mi" || made.GetWorkload().GetStatus().GetConfiguration() != 2 {
		t.Errorf("a new workload is %v", made.GetWorkload())
	}
	c.mustSet(admin, memory("128Mi"))
	if w := c.Store.Snapshot().WorkloadByName("default", "web"); limit(w) != "64Mi" || w.GetStatus().GetRevision() != 1 {
		t.Errorf("a change of the defaults has made of it %v", w)
	}
	// Applying the same file again, or only scaling, replaces nothing.
	if again := apply(); again.GetResult() != "unchanged" {
		t.Errorf("the same again is %s", again.GetResult())
	}
	if scaled := apply(replicasOf(2)).GetWorkload(); scaled.GetStatus().GetRevision() != 1 || limit(scaled) != "64Mi" {
		t.Errorf("scaled it is %v", scaled)
	}
	plan, err := admin.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(workload("web", replicasOf(2)))})
	must(t, err)
	if plan.GetChanges()[0].GetAction() != spec.ActionUnchanged {
		t.Errorf("a plan of the same again is %v", plan)
	}
	// A change by the author takes the new defaults.
	changed := apply(replicasOf(2), func(w *v1.Workload) { w.Spec.Args = []string{"-v"} }).GetWorkload()
	if limit(changed) != "128Mi" || changed.GetStatus().GetRevision() != 2 || changed.GetStatus().GetConfiguration() != 3 {
		t.Errorf("changed it is %v", changed)
	}
	// Values of the author win, and a plan shows what the cluster adds.
	own := workload("own", func(w *v1.Workload) { w.Spec.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Memory: "1Gi"}} })
	if w, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: own}); err != nil || limit(w) != "1Gi" {
		t.Errorf("one with a limit of its own is %v, %v", w, err)
	}
	plan, err = admin.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(workload("new"))})
	must(t, err)
	if got := fmt.Sprint(plan.GetChanges()[0].GetFields()); !strings.Contains(got, "spec.resources.limits.memory") {
		t.Errorf("the plan of a new one shows %s", got)
	}
}

func TestDeletedImagesAreKeptForTheConfiguredTime(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	for _, keep := range []time.Duration{24 * time.Hour, 5 * time.Minute} {
		if keep != 24*time.Hour {
			c.mustSet(admin, func(s *v1.ClusterSpec) { s.Retention = &v1.Retention{Images: spec.FormatDuration(keep)} })
		}
		c.push("hello:1")
		gone, err := admin.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "hello:1"})
		must(t, err)
		if got := gone.GetStatus().GetExpireTime().AsTime().Sub(gone.GetMetadata().GetDeleteTime().AsTime()); got != keep {
			t.Errorf("a deleted image can be restored for %s, want %s", got, keep)
		}
	}
}
