package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// pusher sends a user's token with every request.
type pusher struct {
	client *http.Client
	token  string
}

func (p pusher) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth("token", p.token)
	return p.client.Transport.RoundTrip(r)
}

// push puts a new image under a name and returns its digest.
func (c *cluster) push(name string) string {
	c.t.Helper()
	img, err := random.Image(64, 1)
	must(c.t, err)
	to, err := image.ParseName(name)
	must(c.t, err)
	digest, err := image.Push(c.ctx, img, to, image.PushOptions{
		Transport: pusher{c.web(nil), c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})},
	})
	must(c.t, err)
	return digest
}

func replicasOf(n int32) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Spec.Replicas = proto.Int32(n) }
}

func imageOf(name string) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Spec.Image = name }
}

func TestApplyMakesARevisionOnlyIfReplicasWouldDiffer(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.push("hello:1")
	apply := func(change ...func(*v1.Workload)) *v1.ApplyWorkloadResponse {
		t.Helper()
		change = append([]func(*v1.Workload){imageOf("hello:1"), replicasOf(0)}, change...)
		answer, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", change...)})
		must(t, err)
		return answer
	}
	want := func(answer *v1.ApplyWorkloadResponse, result string, revision uint64) {
		t.Helper()
		if answer.GetResult() != result || answer.GetWorkload().GetStatus().GetRevision() != revision {
			t.Errorf("applied: %s at revision %d, want %s at %d", answer.GetResult(), answer.GetWorkload().GetStatus().GetRevision(), result, revision)
		}
	}
	want(apply(), "created", 1)
	version := apply().GetWorkload().GetMetadata().GetVersion()
	same := apply()
	want(same, "unchanged", 1)
	if same.GetWorkload().GetMetadata().GetVersion() != version {
		t.Error("an unchanged workload has a new version")
	}
	want(apply(func(w *v1.Workload) { w.Spec.Restart = &v1.Restart{Policy: "always"} }), "unchanged", 1) // the default, written out
	want(apply(func(w *v1.Workload) { w.Metadata.Labels = map[string]string{"app": "web"} }), "updated", 1)
	want(apply(replicasOf(2)), "updated", 1)
	want(apply(replicasOf(2), func(w *v1.Workload) { w.Spec.MinAvailable = 1 }), "updated", 1)
	want(apply(replicasOf(2), func(w *v1.Workload) { w.Spec.Priority = proto.Int32(300) }), "updated", 1)
	want(apply(func(w *v1.Workload) { w.Spec.Args = []string{"x"} }), "updated", 2)
	want(apply(), "updated", 3)

	// The tag moves: the same name means another image now.
	moved := c.push("hello:1")
	answer := apply()
	want(answer, "updated", 4)
	revision := c.Store.Snapshot().Revision(answer.GetWorkload().GetStatus().GetRevisionUid())
	if got := revision.GetSpec().GetImage(); got != image.ClusterRegistry+"/hello@"+moved {
		t.Errorf("the revision runs %s, want it pinned to %s", got, moved)
	}
	want(apply(), "unchanged", 4)
}

func TestMissingImageIsRefusedWithTheWayOut(t *testing.T) {
	c := newCluster(t)
	_, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", imageOf("nginx"))})
	wantCode(t, err, codes.FailedPrecondition, "image nginx is not in the cluster's registry", "docker.io/library/nginx")
	_, err = c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", imageOf("Not//An Image"))})
	wantCode(t, err, codes.InvalidArgument, "spec.image")
}

func TestPortOfTheAPICannotBePublished(t *testing.T) {
	store := state.New()
	var b state.Batch
	b.Put(&v1.Server{Metadata: &v1.Metadata{Uid: "s-1", Name: "one"}, Spec: &v1.ServerSpec{Address: "192.0.2.1:7700"}})
	_, err := store.Apply(1, b.Transaction(time.Unix(1e9, 0)))
	must(t, err)
	publish := func(port int32) error {
		return checkPublished(store.Snapshot(), &v1.WorkloadSpec{Ports: []*v1.Port{{Port: 80, Publish: port}}})
	}
	if err := publish(7700); err == nil || err.Error() != "spec.ports[0].publish: 7700 is the port of the cluster's API; choose another" {
		t.Errorf("the answer is %v", err)
	}
	must(t, publish(7701))
}

// At an address of the cluster's own network, nobody outside of it can connect.
func TestPortIsNotPublishedInsideTheCluster(t *testing.T) {
	c := newCluster(t)
	create := func(address string) error {
		_, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", func(w *v1.Workload) {
			w.Spec.Network, w.Spec.Ports = "node", []*v1.Port{{Port: 80, Publish: 8080, PublishAddress: address}}
		})})
		return err
	}
	for _, address := range []string{"10.64.0.1", "10.128.0.9"} {
		wantCode(t, create(address), codes.InvalidArgument, "spec.ports[0].publishAddress: "+address+" is in the ranges of the cluster's own network", "leave it out")
	}
	must(t, create("127.0.0.1"))
}

// An address that no node has may be a mistake, but a node may still get it.
func TestPlanWarnsOfAddressesThatNoNodeHas(t *testing.T) {
	store := state.New()
	node := func(name, state, address string) *v1.Node {
		return &v1.Node{Metadata: &v1.Metadata{Uid: name, Name: name}, Status: &v1.NodeStatus{State: state, Interfaces: []*v1.Interface{{Name: "eth0", Addresses: []string{address}}}}}
	}
	var b state.Batch
	b.Put(node("one", spec.NodeReady, "192.0.2.7/24"))
	b.Put(node("two", spec.NodeOffline, "192.0.2.8/24"))
	_, err := store.Apply(1, b.Transaction(time.Unix(1e9, 0)))
	must(t, err)
	for address, want := range map[string]int{"": 0, "127.0.0.1": 0, "192.0.2.7": 0, "192.0.2.8": 1, "192.0.2.9": 1} {
		got := publishedNowhere(store.Snapshot(), &v1.WorkloadSpec{Ports: []*v1.Port{{Port: 80, Publish: 80, PublishAddress: address}}})
		if len(got) != want || want > 0 && got[0] != "port 80 is published at "+address+", which no ready node has, so nothing answers there until one gets it" {
			t.Errorf("of %q, the plan says %q", address, got)
		}
	}
	c := newCluster(t)
	plan, err := c.as(core.RoleOperator).MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(workload("web", func(w *v1.Workload) {
		w.Spec.Network, w.Spec.Ports = "node", []*v1.Port{{Port: 80, Publish: 80, PublishAddress: "192.0.2.9"}}
	}))})
	must(t, err)
	if len(plan.GetChanges()) != 1 || len(plan.GetChanges()[0].GetWarnings()) != 1 {
		t.Errorf("the plan is %v", plan)
	}
}

// Every node answers on a published port, so it belongs to one workload of the cluster.
func TestPortIsPublishedByOneWorkload(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	publishing := func(name string, ports ...*v1.Port) *v1.Workload {
		return workload(name, replicasOf(0), func(w *v1.Workload) { w.Spec.Network, w.Spec.Ports = "node", ports })
	}
	apply := func(objects ...proto.Message) error {
		plan, err := op.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(objects...)})
		if err == nil {
			_, err = op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Fingerprint: plan.GetFingerprint(), Request: &v1.PlanRequest{Objects: manifests(objects...)}})
		}
		return err
	}
	web := func(publish int32) *v1.Workload { return publishing("web", &v1.Port{Port: 80, Publish: publish}) }
	api := func(publish int32) *v1.Workload { return publishing("api", &v1.Port{Port: 80, Publish: publish}) }
	refused := "spec.ports[0].publish: 8080/tcp is published by workload web in namespace default already"

	must(t, apply(web(8080)))
	wantCode(t, apply(api(8080)), codes.InvalidArgument, refused, "choose another for workload api")
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: api(8080)})
	wantCode(t, err, codes.InvalidArgument, refused)
	wantCode(t, apply(publishing("api", &v1.Port{Port: 80, Publish: 8080, PublishMode: spec.PublishHost})), codes.InvalidArgument, refused)
	wantCode(t, apply(publishing("api", &v1.Port{Port: 80, Publish: 8080, PublishAddress: "127.0.0.1"})), codes.InvalidArgument, refused)
	wantCode(t, apply(api(8082), publishing("new", &v1.Port{Port: 80, Publish: 8082})), codes.InvalidArgument, "8082/tcp is published by workload")

	must(t, apply(publishing("dns", &v1.Port{Port: 80, Publish: 8080, Protocol: "udp"})))
	must(t, apply(web(8080))) // again
	must(t, apply(api(8081)))
	must(t, apply(web(8081), api(8080))) // they swap
	_, err = op.RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.InvalidArgument, "8080/tcp is published by workload api")
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "api"})
	must(t, err)
	must(t, apply(web(8080)))
}

func TestScaleAndRestart(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	scaled, err := op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(3)})
	must(t, err)
	if scaled.GetSpec().GetReplicas() != 3 || scaled.GetStatus().GetRevision() != 1 {
		t.Errorf("scaled to %v", scaled)
	}
	same, err := op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(3)})
	must(t, err)
	if same.GetMetadata().GetVersion() != scaled.GetMetadata().GetVersion() {
		t.Error("scaling to the same number changed the workload")
	}
	_, err = op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(4), Version: made.GetMetadata().GetVersion()})
	wantCode(t, err, codes.Aborted)
	_, err = op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(-1)})
	wantCode(t, err, codes.InvalidArgument, "replicas")

	restarted, err := op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web"})
	must(t, err)
	snap := c.Store.Snapshot()
	before, after := snap.Revision(made.GetStatus().GetRevisionUid()), snap.Revision(restarted.GetStatus().GetRevisionUid())
	if after.GetSpec().GetNumber() != 2 || after.GetSpec().GetRestart() != 1 || after.GetSpec().GetImage() != before.GetSpec().GetImage() {
		t.Errorf("the restart made revision %v", after)
	}
	_, err = op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "nope"})
	wantCode(t, err, codes.NotFound, "workload nope does not exist in namespace default")
}

func TestIdempotencyKey(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.push("hello:1")
	request := &v1.CreateWorkloadRequest{Workload: workload("web", imageOf("hello:1"), replicasOf(0)), IdempotencyKey: "k"}
	first, err := op.CreateWorkload(c.ctx, request)
	must(t, err)
	again, err := op.CreateWorkload(c.ctx, request)
	must(t, err)
	if !proto.Equal(first, again) {
		t.Errorf("the repeated call answered %v, want %v", again, first)
	}
	other := proto.CloneOf(request)
	other.Workload.Spec.Args = []string{"x"}
	_, err = op.CreateWorkload(c.ctx, other)
	wantCode(t, err, codes.InvalidArgument, "different request")

	// The key does not apply to another caller or another method.
	_, err = c.as(core.RoleOperator).CreateWorkload(c.ctx, request)
	wantCode(t, err, codes.AlreadyExists, "workload web exists already")
	applied, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("other"), IdempotencyKey: "k"})
	must(t, err)
	if applied.GetResult() != "created" {
		t.Errorf("applied with the key of another method: %s", applied.GetResult())
	}
	repeated, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("other"), IdempotencyKey: "k"})
	must(t, err)
	if repeated.GetResult() != "created" || repeated.GetWorkload().GetMetadata().GetUid() != applied.GetWorkload().GetMetadata().GetUid() {
		t.Errorf("the repeated apply answered %v", repeated)
	}

	// Deleted since: the repeated call still does not create it again.
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool { return snap.WorkloadByName("default", "web") == nil })
	late, err := op.CreateWorkload(c.ctx, request)
	must(t, err)
	if late.GetMetadata().GetUid() != first.GetMetadata().GetUid() || c.Store.Snapshot().WorkloadByName("default", "web") != nil {
		t.Errorf("a call repeated after the deletion answered %v", late)
	}
}

func TestUpdateNamesTheVersionItWasMadeFrom(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", replicasOf(0))})
	must(t, err)
	_, err = op.UpdateWorkload(c.ctx, &v1.UpdateWorkloadRequest{Workload: workload("web")})
	wantCode(t, err, codes.InvalidArgument, "metadata.version")

	mine, theirs := proto.CloneOf(made), proto.CloneOf(made)
	theirs.Spec.Args = []string{"theirs"}
	newer, err := op.UpdateWorkload(c.ctx, &v1.UpdateWorkloadRequest{Workload: theirs})
	must(t, err)
	mine.Spec.Args = []string{"mine"}
	_, err = op.UpdateWorkload(c.ctx, &v1.UpdateWorkloadRequest{Workload: mine})
	wantCode(t, err, codes.Aborted, "has changed", "read it again")
	details := status.Convert(err).Details()
	if len(details) != 1 {
		t.Fatalf("the refusal has details %v, want the newer workload", details)
	}
	got, ok := details[0].(*v1.Workload)
	if !ok || got.GetMetadata().GetVersion() != newer.GetMetadata().GetVersion() || got.GetSpec().GetArgs()[0] != "theirs" {
		t.Errorf("the refusal has %v, want the newer workload", details[0])
	}
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: mine})
	wantCode(t, err, codes.Aborted)
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("nope", func(w *v1.Workload) { w.Metadata.Version = 7 })})
	wantCode(t, err, codes.Aborted, "no longer exists")
}

func TestWorkloadBeingDeletedRefusesChanges(t *testing.T) {
	c := newCluster(t)
	op, m := c.as(core.RoleOperator), c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	replica := assignments(t, stream).GetAssign()[0].GetReplica()
	must(t, report(stream, replica.GetMetadata().GetUid(), obey(replica)))
	c.running(made.GetMetadata().GetUid(), 1)

	deleting, err := op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	again, err := op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	if deleting.GetStatus().GetPhase() != "deleting" || again.GetMetadata().GetVersion() != deleting.GetMetadata().GetVersion() {
		t.Errorf("deleted: %v, and again: %v", deleting, again)
	}
	for what, err := range map[string]error{
		"create":  second(op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})),
		"apply":   second(op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web")})),
		"scale":   second(op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(2)})),
		"restart": second(op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web"})),
	} {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is being deleted") {
			t.Errorf("%s while deleting: %v", what, err)
		}
	}

	// The node stops it. Then the workload is gone, its ended replica stays for its logs, and the name is free.
	stop := assignments(t, stream).GetAssign()[0].GetReplica()
	must(t, report(stream, stop.GetMetadata().GetUid(), obey(stop)))
	snap := c.until(func(snap *state.Snapshot) bool { return snap.WorkloadByName("default", "web") == nil })
	if snap.Replica(stop.GetMetadata().GetUid()) == nil || snap.Count(state.KindRevision) != 0 {
		t.Error("the deletion took too much or too little")
	}
	recreated, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	if recreated.GetMetadata().GetUid() == made.GetMetadata().GetUid() {
		t.Error("the new workload has the uid of the old one")
	}
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web", Version: 1})
	wantCode(t, err, codes.Aborted)
}

func second[T any](_ T, err error) error { return err }

func TestRefusalsUseTheWordsOfTheDeclaration(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	for _, wrong := range []func(*v1.Workload){
		func(w *v1.Workload) { w.Metadata.Name = "Not A Name" },
		func(w *v1.Workload) { w.Spec.Image = "" },
		func(w *v1.Workload) { w.Spec.Network = "mesh" },
		func(w *v1.Workload) { w.Spec.Ports = []*v1.Port{{Port: 70000}} },
		func(w *v1.Workload) {
			w.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "many"}}
		},
	} {
		w := workload("web", wrong)
		want := spec.Validate(w)
		if want == nil {
			t.Fatalf("%v is valid", w)
		}
		_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: w})
		wantCode(t, err, codes.InvalidArgument, want.Error())
		_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: w})
		wantCode(t, err, codes.InvalidArgument, want.Error())
		if len(status.Convert(err).Details()) != 1 {
			t.Errorf("the refusal of %v does not name the field in its details", w)
		}
	}
}

// The cluster decides the number of replicas of an autoscaled workload, whose spec stays as its author wrote it.
func TestAutoscaledWorkloadIsNotScaledByHand(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	requests := func(w *v1.Workload) {
		w.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "100m"}}
	}
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", requests, replicasOf(2))})
	must(t, err)
	request := &v1.AutoscaleWorkloadRequest{Name: "web", Autoscale: &v1.Autoscale{Max: 5, Cpu: "50%"}}
	scaled, err := op.AutoscaleWorkload(c.ctx, request)
	must(t, err)
	if scaled.GetStatus().GetRevision() != 1 || scaled.GetSpec().GetAutoscale().GetMin() != 1 || scaled.GetStatus().GetDesired() != 2 {
		t.Errorf("it is %v", scaled)
	}
	again, err := op.AutoscaleWorkload(c.ctx, request)
	must(t, err)
	if again.GetMetadata().GetVersion() != scaled.GetMetadata().GetVersion() {
		t.Error("the same settings changed the workload")
	}
	_, err = op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(4)})
	wantCode(t, err, codes.FailedPrecondition, "web is scaled by the cluster, from 1 to 5 replicas", "cloudless workload autoscale web --off")
	_, err = op.AutoscaleWorkload(c.ctx, &v1.AutoscaleWorkloadRequest{Name: "web", Autoscale: &v1.Autoscale{Max: 5}})
	wantCode(t, err, codes.InvalidArgument, "spec.autoscale: has no target")
	_, err = op.AutoscaleWorkload(c.ctx, &v1.AutoscaleWorkloadRequest{Name: "web", Version: made.GetMetadata().GetVersion()})
	wantCode(t, err, codes.Aborted)
	_, err = c.as(core.RoleViewer).AutoscaleWorkload(c.ctx, request)
	wantCode(t, err, codes.PermissionDenied)

	c.decide("web", 4)
	applied, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", requests, replicasOf(2), func(w *v1.Workload) {
		w.Spec.Autoscale = request.GetAutoscale()
	})})
	must(t, err)
	if applied.GetResult() != "unchanged" || applied.GetWorkload().GetStatus().GetDesired() != 4 {
		t.Errorf("applied again it is %s: %v", applied.GetResult(), applied.GetWorkload().GetStatus())
	}
	off, err := op.AutoscaleWorkload(c.ctx, &v1.AutoscaleWorkloadRequest{Name: "web"})
	must(t, err)
	if off.GetSpec().GetReplicas() != 4 || off.GetStatus().GetScale() != nil || off.GetStatus().GetRevision() != 1 {
		t.Errorf("without autoscaling it is %v", off)
	}
	applied, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", requests, replicasOf(2), func(w *v1.Workload) {
		w.Spec.Autoscale = request.GetAutoscale()
	})})
	must(t, err)
	if applied.GetWorkload().GetStatus().GetDesired() != 2 {
		t.Errorf("autoscaling begins with %d replicas", applied.GetWorkload().GetStatus().GetDesired())
	}
}

// decide decides on a number of replicas as the loop of autoscaling does.
func (c *cluster) decide(name string, replicas int32) {
	c.t.Helper()
	old := c.Store.Snapshot().WorkloadByName("default", name)
	w := proto.CloneOf(old)
	w.Status.Scale = &v1.ScaleStatus{Replicas: replicas, Reason: "a test wants it"}
	_, err := c.Propose(c.ctx, func(_ *state.Snapshot, b *state.Batch) error {
		b.Update(w, old.GetMetadata().GetVersion())
		return nil
	})
	must(c.t, err)
}
