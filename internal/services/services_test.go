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
	drained := node("a")
	drained.Spec.Availability = spec.AvailabilityDraining
	w.put(replica("api", "r1", "a"), drained)
	w.expect(t, "api", "r1 draining 1000")
	snap := w.store.Snapshot()
	if usable := Usable(Endpoints(snap, snap.ServiceByName("default", "api"))); len(usable) != 1 {
		t.Error("the only endpoint is draining, and nothing is used instead")
	}
	offline := node("a")
	offline.Status.State = spec.NodeOffline
	w.put(offline)
	w.expect(t, "api", "r1 unready 1000")
	snap = w.store.Snapshot()
	s := snap.ServiceByName("default", "api")
	if reason := Reason(snap, s, Endpoints(snap, s)); reason != "no endpoint is ready; of r1: node a is offline" {
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

// anyObject is some object that a change may store.
func anyObject(rt *rapid.T) state.Object {
	switch rapid.IntRange(0, 3).Draw(rt, "kind") {
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
		return w
	case 2:
		return &v1.Endpoint{
			Metadata: &v1.Metadata{Uid: "e1", Name: "e1", Namespace: "default"}, Spec: &v1.EndpointSpec{ServiceUid: "s-api"},
			Status: &v1.EndpointStatus{State: rapid.SampledFrom([]string{spec.EndpointReady, spec.EndpointUnready}).Draw(rt, "state")},
		}
	}
	r := replica(rapid.SampledFrom([]string{"api", "web"}).Draw(rt, "workload"), "r1", rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "node"))
	r.Metadata.Uid += r.Spec.Workload
	r.Metadata.Name += r.Spec.Workload
	r.Status.Phase = rapid.SampledFrom([]string{spec.PhaseRunning, spec.PhasePreparing, spec.PhaseStopped}).Draw(rt, "phase")
	r.Status.Pid = rapid.Int32Range(1, 3).Draw(rt, "pid")
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
		return len(Usable(OrOffline(snap, Endpoints(snap, snap.ServiceByName("default", "api")))))
	}
	if use() != 1 {
		t.Error("the only endpoint is on an offline node, and is not used")
	}
	w.put(replica("api", "r2", "b"))
	snap := w.store.Snapshot()
	all := OrOffline(snap, Endpoints(snap, snap.ServiceByName("default", "api")))
	if usable := Usable(all); len(usable) != 1 || usable[0].GetMetadata().GetName() != "r2" {
		t.Errorf("used are %v", usable)
	}
}
