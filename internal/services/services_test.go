package services

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// world is a state that a test builds object by object.
type world struct {
	store *state.Store
	index uint64
}

func newWorld(objects ...state.Object) *world {
	w := &world{store: state.New()}
	w.put(objects...)
	return w
}

func (w *world) put(objects ...state.Object) {
	var b state.Batch
	for _, o := range objects {
		b.Put(proto.Clone(o).(state.Object))
	}
	w.apply(&b)
}

func (w *world) apply(b *state.Batch) {
	w.index++
	if _, err := w.store.Apply(w.index, b.Transaction(time.Unix(1e9, 0))); err != nil {
		panic(err)
	}
}

func service(name string, s *v1.ServiceSpec) *v1.Service {
	return &v1.Service{Metadata: &v1.Metadata{Uid: "s-" + name, Name: name, Namespace: "default"}, Spec: s}
}

func workload(name, app string) *v1.Workload {
	return &v1.Workload{Metadata: &v1.Metadata{Uid: "w-" + name, Name: name, Namespace: "default", Labels: map[string]string{"app": app}}}
}

func node(name string) *v1.Node {
	return &v1.Node{
		Metadata: &v1.Metadata{Uid: "n-" + name, Name: name, Labels: map[string]string{"zone": "z1"}},
		Spec:     &v1.NodeSpec{}, Status: &v1.NodeStatus{State: spec.NodeReady},
	}
}

func replica(of, name, on string) *v1.Replica {
	return &v1.Replica{
		Metadata: &v1.Metadata{Uid: "r-" + name, Name: name, Namespace: "default"},
		Spec:     &v1.ReplicaSpec{WorkloadUid: "w-" + of, Workload: of, NodeUid: "n-" + on, Node: on, Desired: spec.DesiredRunning},
		Status:   &v1.ReplicaStatus{Phase: spec.PhaseRunning, Addresses: []string{"10.64.0.2"}},
	}
}

// shown are the endpoints of a service with their states and weights.
func (w *world) shown(name string) string {
	var all []string
	for _, e := range Endpoints(w.store.Snapshot(), w.store.Snapshot().ServiceByName("default", name)) {
		all = append(all, fmt.Sprintf("%s %s %d", e.GetMetadata().GetName(), e.GetStatus().GetState(), e.GetStatus().GetWeight()))
	}
	return strings.Join(all, ", ")
}

func (w *world) expect(t *testing.T, name, want string) {
	t.Helper()
	if got := w.shown(name); got != want {
		t.Errorf("the endpoints of %s are %q, want %q", name, got, want)
	}
}

func TestStatesOfEndpoints(t *testing.T) {
	w := newWorld(node("a"), workload("api", "x"), service("api", nil), replica("api", "r1", "a"))
	w.expect(t, "api", "r1 ready 1000")
	for want, change := range map[string]func(*v1.Replica, *v1.Node){
		"r1 draining 1000": func(r *v1.Replica, _ *v1.Node) { r.Spec.Desired = spec.DesiredStopped },
		"r1 unready 1000":  func(r *v1.Replica, _ *v1.Node) { r.Status.Phase = spec.PhaseBackoff },
		"":                 func(r *v1.Replica, _ *v1.Node) { r.Status.Phase = spec.PhaseStopped },
	} {
		r, n := replica("api", "r1", "a"), node("a")
		change(r, n)
		w.put(r, n)
		w.expect(t, "api", want)
	}
	unready := replica("api", "r1", "a")
	unready.Status.Unready = "It does not listen on port 80 yet."
	w.put(unready)
	w.expect(t, "api", "r1 unready 1000")
	if e := Endpoints(w.store.Snapshot(), w.store.Snapshot().ServiceByName("default", "api"))[0]; e.GetStatus().GetReason() != "the replica is not ready: It does not listen on port 80 yet." {
		t.Errorf("the reason is %q", e.GetStatus().GetReason())
	}
	drained := node("a")
	drained.Spec.Availability, drained.Status.State = spec.AvailabilityDraining, spec.NodeDraining
	w.put(replica("api", "r1", "a"), drained)
	w.expect(t, "api", "r1 ready 1000") // until it is stopped, because others make up for it
	departing := node("a")
	departing.Status.State = spec.NodeDraining // the machine itself said so
	w.put(departing)
	w.expect(t, "api", "r1 draining 1000")
	snap := w.store.Snapshot()
	if usable := Usable(Endpoints(snap, snap.ServiceByName("default", "api"))); len(usable) != 1 {
		t.Error("the only endpoint is draining, and nothing is used instead")
	}
	offline := node("a")
	offline.Status.State = spec.NodeOffline
	w.put(offline)
	w.expect(t, "api", "r1 draining 1000") // it is the only one
	snap = w.store.Snapshot()
	s := snap.ServiceByName("default", "api")
	if reason := Reason(snap, s, Endpoints(snap, s)); reason != "no endpoint is ready; of r1: node a is offline, and is used because no other endpoint is ready" {
		t.Errorf("what is wrong is %q", reason)
	}
}

// A weight is the share of a workload, however many replicas it has.
func TestWeightsAreSharesOfWorkloads(t *testing.T) {
	w := newWorld(node("a"), workload("old", "x"), workload("new", "x"), workload("off", "x"), workload("other", "y"),
		replica("old", "o1", "a"), replica("old", "o2", "a"), replica("new", "n1", "a"), replica("off", "f1", "a"), replica("other", "t1", "a"),
		service("web", &v1.ServiceSpec{
			Selector: map[string]string{"app": "x"}, Balancer: &v1.Balancer{Weights: map[string]int32{"old": 9, "off": 0}},
			External: []*v1.ExternalEndpoint{{Name: "ext", Addresses: []string{"192.0.2.7"}, Weight: 2}},
		}))
	w.expect(t, "web", "n1 ready 1000, f1 ready 0, o1 ready 4500, o2 ready 4500, ext ready 2000")
}

func TestPortsThatTwoWorkloadsCannotPublish(t *testing.T) {
	publishing := func(kind, mode, address, network string) *v1.Workload {
		return &v1.Workload{Spec: &v1.WorkloadSpec{
			Kind: kind, Network: network, Ports: []*v1.Port{{Port: 80, Publish: 8080, Protocol: "tcp", PublishMode: mode, PublishAddress: address}},
		}}
	}
	everywhere := publishing("", "", "", "node")
	for name, c := range map[string]struct {
		a, b    *v1.Workload
		refused bool
	}{
		"both on every node":                 {everywhere, publishing(spec.KindDaemon, "", "", "node"), true},
		"one on nodes with a replica":        {everywhere, publishing("", spec.PublishHost, "", "node"), true},
		"one is a job":                       {everywhere, publishing(spec.KindJob, "", "", "node"), true},
		"both on nodes with a replica":       {publishing("", spec.PublishHost, "", "node"), publishing("", spec.PublishHost, "", "node"), false},
		"one at one address":                 {everywhere, publishing("", "", "127.0.0.1", "node"), true},
		"both at different addresses":        {publishing("", "", "192.0.2.1", "node"), publishing("", "", "127.0.0.1", "node"), false},
		"both on the network of the machine": {publishing("", "", "", "host"), publishing("", "", "", "host"), false},
	} {
		if got := PublishedTwice(c.a, c.b) != nil; got != c.refused {
			t.Errorf("%s: refused is %t, want %t", name, got, c.refused)
		}
		if got := PublishedTwice(c.b, c.a) != nil; got != c.refused {
			t.Errorf("%s, the other way round: refused is %t, want %t", name, got, c.refused)
		}
	}
}

// Affected names every service whose published ports or endpoints differ after a change.
func TestAffectedServicesAreThoseThatDiffer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(node("a"), node("b"), workload("api", "x"), workload("web", "x"), service("api", nil), service("all", &v1.ServiceSpec{Selector: map[string]string{"app": "x"}}))
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			before, feed := w.all(), w.store.Follow()
			feed.Newest()
			w.put(anyObject(rt))
			news := feed.Newest()
			affected := Affected(news.Snapshot, news.Changes)
			after := w.all()
			for _, uid := range slices.Sorted(maps.Keys(after)) {
				if before[uid] != after[uid] && !affected[uid] {
					rt.Fatalf("service %s was %q and is %q, and is not affected by %v", uid, before[uid], after[uid], news.Changes)
				}
			}
		}
	})
}

// all are the published ports and endpoints of every service, by its uid.
func (w *world) all() map[string]string {
	all, snap := map[string]string{}, w.store.Snapshot()
	for s := range snap.Services("", "") {
		_, published := Published(snap, s)
		all[s.GetMetadata().GetUid()] = fmt.Sprintln(published)
		for _, e := range Endpoints(snap, s) {
			all[s.GetMetadata().GetUid()] += fmt.Sprintf("%v %v %v\n", e.GetMetadata().GetName(), e.GetSpec(), e.GetStatus())
		}
	}
	return all
}

// deployment replaces revision old by new.
func deployment(workload, uid string, switched bool) *v1.Deployment {
	return &v1.Deployment{
		Metadata: &v1.Metadata{Uid: uid, Name: uid, Namespace: "default"},
		Spec:     &v1.DeploymentSpec{WorkloadUid: "w-" + workload, Workload: workload, RevisionUid: "new", PreviousUid: "old"},
		Status:   &v1.DeploymentStatus{Switched: switched},
	}
}

// One change of the deployment moves all the traffic of a blue-green workload.
func TestSwitchOfABlueGreenDeployment(t *testing.T) {
	w := newWorld(node("a"), service("api", nil))
	api := workload("api", "x")
	api.Spec = &v1.WorkloadSpec{Update: &v1.Update{Strategy: spec.StrategyBlueGreen}}
	api.Status = &v1.WorkloadStatus{DeploymentUid: "d"}
	w.put(api)
	for _, revision := range []string{"old", "new"} {
		r := replica("api", revision, "a")
		r.Spec.RevisionUid = revision
		w.put(r)
	}
	w.put(deployment("api", "d", false))
	w.expect(t, "api", "new unready 0, old ready 1000")
	w.put(deployment("api", "d", true))
	w.expect(t, "api", "new ready 1000, old draining 0")
	// Connections to the old set end by themselves. It gets no new one, even if the new set stops serving.
	broken := replica("api", "new", "a")
	broken.Spec.RevisionUid, broken.Status.Unready = "new", "It does not answer."
	w.put(broken)
	w.expect(t, "api", "new unready 1000, old draining 0")
	snap := w.store.Snapshot()
	if usable := Usable(Endpoints(snap, snap.ServiceByName("default", "api"))); len(usable) > 0 {
		t.Errorf("traffic relapses to %s", usable[0].GetMetadata().GetName())
	}
}

// While an earlier set is still kept, the next release leads no traffic back to it.
func TestNextReleaseLeadsNoTrafficToAnEarlierSet(t *testing.T) {
	w := newWorld(node("a"), service("api", nil))
	api := workload("api", "x")
	api.Spec = &v1.WorkloadSpec{Update: &v1.Update{Strategy: spec.StrategyBlueGreen}}
	api.Status = &v1.WorkloadStatus{DeploymentUid: "d"}
	w.put(api)
	for _, revision := range []string{"older", "old", "new"} {
		r := replica("api", revision, "a")
		r.Spec.RevisionUid = revision
		w.put(r)
	}
	d := deployment("api", "d", false)
	d.Spec.PreviousUid = "old"
	w.put(d)
	w.expect(t, "api", "new unready 0, old ready 1000, older draining 0")
}

// A release that ends soon after its start gets no connections as long as old replicas serve.
func TestReleaseGetsTrafficOnceAReplicaIsSteady(t *testing.T) {
	w := newWorld(node("a"), service("api", nil))
	api := workload("api", "x")
	api.Status = &v1.WorkloadStatus{DeploymentUid: "d"}
	put := func(name, revision string, settling bool) {
		r := replica("api", name, "a")
		r.Spec.RevisionUid, r.Status.Settling = revision, settling
		w.put(r)
	}
	d := deployment("api", "d", false)
	d.Status.Phase = spec.DeploymentRunning
	w.put(api, d)
	put("a-old", "old", false)
	put("b-new", "new", true)
	put("c-new", "new", true)
	w.expect(t, "api", "a-old ready 1000, b-new draining 1000, c-new draining 1000")
	put("b-new", "new", false)
	w.expect(t, "api", "a-old ready 1000, b-new ready 1000, c-new ready 1000")

	put("b-new", "new", true)
	first := deployment("api", "d", false)
	first.Spec.PreviousUid, first.Status.Phase = "", spec.DeploymentRunning
	w.put(first)
	w.expect(t, "api", "a-old ready 1000, b-new ready 1000, c-new ready 1000") // there is no better revision
}

// A deployment that ended before the workload became blue-green has no switch, and keeps nothing out of balancing. One
// that was rolled back keeps out its replicas until they are gone.
func TestStrategyThatChangesAfterADeployment(t *testing.T) {
	w := newWorld(node("a"), service("api", nil))
	api := workload("api", "x")
	api.Spec = &v1.WorkloadSpec{Update: &v1.Update{Strategy: spec.StrategyBlueGreen}}
	api.Status = &v1.WorkloadStatus{DeploymentUid: "d"}
	r := replica("api", "new", "a")
	r.Spec.RevisionUid = "new"
	w.put(api, r)
	for phase, want := range map[string]string{
		spec.DeploymentRunning: "new unready 0", spec.DeploymentSucceeded: "new ready 1000",
		spec.DeploymentFailed: "new ready 1000", spec.DeploymentRolledBack: "new unready 0",
	} {
		d := deployment("api", "d", false)
		d.Status.Phase = phase
		w.put(d)
		w.expect(t, "api", want)
	}
}

// An open deployment leads the traffic by the strategy that it began with.
func TestStrategyThatChangesDuringADeployment(t *testing.T) {
	w := newWorld(node("a"), service("api", nil))
	api := workload("api", "x")
	api.Status = &v1.WorkloadStatus{DeploymentUid: "d"}
	r := replica("api", "new", "a")
	r.Spec.RevisionUid = "new"
	for began, want := range map[string]string{spec.StrategyRolling: "new ready 1000", spec.StrategyBlueGreen: "new unready 0"} {
		api.Spec = &v1.WorkloadSpec{Update: &v1.Update{Strategy: spec.StrategyBlueGreen}}
		if began == spec.StrategyBlueGreen {
			api.Spec.Update = nil
		}
		d := deployment("api", "d", false)
		d.Spec.Strategy, d.Status.Phase = began, spec.DeploymentRunning
		w.put(api, r, d)
		w.expect(t, "api", want)
	}
}

// anyObject is some object that a change may store.
func anyObject(rt *rapid.T) state.Object {
	switch rapid.IntRange(0, 4).Draw(rt, "kind") {
	case 0:
		n := node(rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "node"))
		n.Status.State = rapid.SampledFrom([]string{spec.NodeReady, spec.NodeOffline, spec.NodeDraining}).Draw(rt, "state")
		n.Metadata.Labels["zone"] = rapid.SampledFrom([]string{"z1", "z2"}).Draw(rt, "zone")
		return n
	case 1:
		w := workload(rapid.SampledFrom([]string{"api", "web"}).Draw(rt, "workload"), rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "label"))
		w.Spec = &v1.WorkloadSpec{Network: "node", Ports: []*v1.Port{{
			Port: 80, Publish: rapid.Int32Range(0, 2).Draw(rt, "publish"), PublishMode: rapid.SampledFrom([]string{"", spec.PublishHost}).Draw(rt, "mode"),
		}}}
		w.Spec.Update = &v1.Update{Strategy: rapid.SampledFrom([]string{"", spec.StrategyBlueGreen}).Draw(rt, "strategy")}
		w.Status = &v1.WorkloadStatus{DeploymentUid: w.GetMetadata().GetName() + rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "newest")}
		return w
	case 2:
		d := deployment("api", "api"+rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "deployment"), rapid.Bool().Draw(rt, "switched"))
		d.Status.Phase = rapid.SampledFrom([]string{spec.DeploymentRunning, spec.DeploymentSucceeded, spec.DeploymentRolledBack}).Draw(rt, "phase")
		d.Spec.Strategy = rapid.SampledFrom([]string{"", spec.StrategyCanary}).Draw(rt, "began")
		d.Status.Step, d.Status.Weight = rapid.Int32Range(0, 4).Draw(rt, "step"), rapid.SampledFrom([]int32{0, 5, 50}).Draw(rt, "weight")
		return d
	case 3:
		return &v1.Endpoint{
			Metadata: &v1.Metadata{Uid: "e1", Name: "e1", Namespace: "default"}, Spec: &v1.EndpointSpec{ServiceUid: "s-api"},
			Status: &v1.EndpointStatus{State: rapid.SampledFrom([]string{spec.EndpointReady, spec.EndpointUnready}).Draw(rt, "state")},
		}
	}
	r := replica(rapid.SampledFrom([]string{"api", "web"}).Draw(rt, "workload"), "r1", rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "node"))
	r.Metadata.Uid += r.Spec.Workload
	r.Metadata.Name += r.Spec.Workload
	r.Status.Phase = rapid.SampledFrom([]string{spec.PhaseRunning, spec.PhasePreparing, spec.PhaseStopped}).Draw(rt, "phase")
	r.Status.Unready = rapid.SampledFrom([]string{"", "It does not listen yet."}).Draw(rt, "unready")
	r.Spec.RevisionUid = rapid.SampledFrom([]string{"old", "new"}).Draw(rt, "revision")
	r.Status.Pid = rapid.Int32Range(1, 3).Draw(rt, "pid")
	r.Status.Unready = rapid.SampledFrom([]string{"", "It is busy."}).Draw(rt, "unready")
	return r
}

func TestAProcessIDAffectsNoService(t *testing.T) {
	w := newWorld(node("a"), workload("api", "x"), service("api", nil), replica("api", "r1", "a"))
	feed := w.store.Follow()
	feed.Newest()
	r := replica("api", "r1", "a")
	r.Status.Pid = 7
	w.put(r)
	if news := feed.Newest(); len(Affected(news.Snapshot, news.Changes)) != 0 {
		t.Error("it affects a service")
	}
}

// BenchmarkChange measures what one change of a replica costs: finding the affected service and listing its endpoints,
// among 1,000 services with 10 endpoints each.
func BenchmarkChange(b *testing.B) {
	w := newWorld(node("a"))
	for i := range 1000 {
		name := fmt.Sprint("api", i)
		objects := []state.Object{workload(name, name), service(name, nil)}
		for j := range 10 {
			objects = append(objects, replica(name, fmt.Sprint(name, "-", j), "a"))
		}
		w.put(objects...)
	}
	snap := w.store.Snapshot()
	old := snap.ReplicaByName("default", "api500-5")
	stopped := proto.CloneOf(old)
	stopped.Spec.Desired = spec.DesiredStopped
	changes := []state.Change{{Kind: state.KindReplica, Old: old, New: stopped}}
	for b.Loop() {
		for uid := range Affected(snap, changes) {
			if len(Endpoints(snap, snap.Service(uid))) != 10 {
				b.Fatal("endpoints are missing")
			}
		}
	}
}

// Nodes that the servers do not hear are better than none.
func TestEndpointsOnOfflineNodesAreTheLastResort(t *testing.T) {
	offline := node("a")
	offline.Status.State = spec.NodeOffline
	w := newWorld(offline, node("b"), workload("api", "x"), service("api", nil), replica("api", "r1", "a"))
	use := func() int {
		snap := w.store.Snapshot()
		return len(Usable(Endpoints(snap, snap.ServiceByName("default", "api"))))
	}
	if use() != 1 {
		t.Error("the only endpoint is on an offline node, and is not used")
	}
	w.put(replica("api", "r2", "b"))
	snap := w.store.Snapshot()
	if usable := Usable(Endpoints(snap, snap.ServiceByName("default", "api"))); len(usable) != 1 || usable[0].GetMetadata().GetName() != "r2" {
		t.Errorf("used are %v", usable)
	}
	w.expect(t, "api", "r1 unready 1000, r2 ready 1000")
}

// A replica that crashed or never served is no last resort just because it is being stopped.
func TestStoppedReplicaThatDoesNotServeGetsNoTraffic(t *testing.T) {
	draining := node("a")
	draining.Status.State = spec.NodeDraining
	crashed, leaving, never := replica("api", "r2", "a"), replica("api", "r3", "a"), replica("api", "r4", "a")
	crashed.Spec.Desired, crashed.Status.Phase = spec.DesiredStopped, spec.PhaseBackoff
	leaving.Spec.Desired = spec.DesiredStopped
	never.Spec.Desired, never.Status.Phase, never.Status.Unready = spec.DesiredStopped, spec.PhaseStopping, "Its readiness probe failed."
	w := newWorld(draining, workload("api", "x"), service("api", nil), replica("api", "r1", "a"), crashed, leaving, never)
	w.expect(t, "api", "r1 draining 1000, r2 unready 1000, r3 draining 1000, r4 unready 1000")
	snap := w.store.Snapshot()
	for _, e := range Usable(Endpoints(snap, snap.ServiceByName("default", "api"))) {
		if name := e.GetMetadata().GetName(); name == "r2" || name == "r4" {
			t.Errorf("connections go to %s, which does not serve", name)
		}
	}
}
