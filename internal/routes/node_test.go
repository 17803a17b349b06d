package routes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// world is a state that a test builds object by object, and the ingress that follows its changes.
type world struct {
	store   *state.Store
	index   uint64
	feed    *state.Follower
	ingress *Ingress
}

func newWorld(objects ...state.Object) *world {
	w := &world{store: state.New()}
	w.put(append([]state.Object{cluster("")}, objects...)...)
	w.feed = w.store.Follow()
	w.ingress = NewIngress(w.feed.Newest().Snapshot)
	return w
}

func (w *world) put(objects ...state.Object) {
	var b state.Batch
	for _, o := range objects {
		b.Put(proto.Clone(o).(state.Object))
	}
	w.apply(&b)
}

func (w *world) remove(kind state.Kind, uid string) {
	var b state.Batch
	b.Delete(kind, uid)
	w.apply(&b)
}

func (w *world) apply(b *state.Batch) {
	w.index++
	_, err := w.store.Apply(w.index, b.Transaction(time.Unix(1e9, 0)))
	if err != nil {
		panic(err)
	}
	if w.feed != nil {
		news := w.feed.Newest()
		w.ingress.Update(news.Snapshot, news.Changes)
	}
}

func metadata(prefix, name string) *v1.Metadata {
	return &v1.Metadata{Uid: prefix + "-" + name, Name: name, Namespace: "default"}
}

func cluster(nodes string) *v1.Cluster {
	return &v1.Cluster{Metadata: &v1.Metadata{Uid: "c", Name: "c"}, Spec: &v1.ClusterSpec{Ingress: &v1.Ingress{Nodes: nodes}}}
}

func newRouteTo(name, host string, backends ...string) *v1.Route {
	r := &v1.Route{Metadata: metadata("rt", name), Spec: &v1.RouteSpec{Host: host}}
	for _, b := range backends {
		r.Spec.Backends = append(r.Spec.Backends, &v1.RouteBackend{Service: b})
	}
	return r
}

func service(name string) *v1.Service {
	return &v1.Service{Metadata: metadata("s", name), Spec: &v1.ServiceSpec{Ports: []*v1.ServicePort{{Port: 80}}}}
}

func workload(name string) *v1.Workload {
	return &v1.Workload{Metadata: metadata("w", name), Spec: &v1.WorkloadSpec{}}
}

func node(name, zone string) *v1.Node {
	return &v1.Node{
		Metadata: &v1.Metadata{Uid: "n-" + name, Name: name, Labels: map[string]string{"zone": zone}},
		Spec:     &v1.NodeSpec{}, Status: &v1.NodeStatus{State: spec.NodeReady},
	}
}

func replica(of, name, on string) *v1.Replica {
	return &v1.Replica{
		Metadata: metadata("r", name),
		Spec:     &v1.ReplicaSpec{WorkloadUid: "w-" + of, Workload: of, NodeUid: "n-" + on, Node: on, Desired: spec.DesiredRunning, RevisionUid: "v1"},
		Status:   &v1.ReplicaStatus{Phase: spec.PhaseRunning, Addresses: []string{"10.64.0.2"}},
	}
}

func certificate(name, chain string) *v1.Certificate {
	return &v1.Certificate{Metadata: metadata("cert", name), Spec: &v1.CertificateSpec{Chain: chain}}
}

func key(name, sealed string) *statev1.CertificateKey {
	return &statev1.CertificateKey{Metadata: &v1.Metadata{Uid: "cert-" + name}, Sealed: []byte(sealed)}
}

// opened stands for keys that were opened.
func opened(uid string, _ bool, sealed []byte) []byte {
	return []byte("opened " + uid + " " + string(sealed))
}

// full is all that a node of a zone must know.
func (w *world) full(zone string) *v1.IngressDown {
	return w.ingress.Between(nil, w.ingress.For(spec.NodeLabels(node("a", zone))), opened)
}

// A change of a replica is one service to the node, and nothing else.
func TestOneReplicaIsOneService(t *testing.T) {
	w := newWorld(node("a", "eu"), workload("api"), service("api"), workload("web"), service("web"),
		newRouteTo("shop", "shop.example.org", "api"), newRouteTo("blog", "blog.example.org", "web"))
	labels := spec.NodeLabels(node("a", "eu"))
	before := w.ingress.For(labels)
	w.put(replica("api", "r1", "a"))
	delta := w.ingress.Between(before, w.ingress.For(labels), opened)
	if len(delta.GetServices()) != 1 || len(delta.GetRoutes()) != 0 || delta.GetFull() || delta.GetSettings() != nil {
		t.Fatalf("the node hears %v", delta)
	}
	want := &v1.IngressEndpoint{
		Id: "r-r1", Addresses: []string{"10.64.0.2"}, State: spec.EndpointReady, Weight: 1000, NodeUid: "n-a", RevisionUid: "v1",
	}
	if got := delta.GetServices()[0].GetEndpoints(); len(got) != 1 || !proto.Equal(got[0], want) {
		t.Errorf("the endpoints are %v", got)
	}
	if again := w.ingress.Between(w.ingress.For(labels), w.ingress.For(labels), opened); again != nil {
		t.Errorf("a node that knows everything hears %v", again)
	}
}

// A replica that leaves is draining to the node before it gets its stop signal.
func TestReplicaThatLeavesIsDraining(t *testing.T) {
	w := newWorld(node("a", "eu"), workload("api"), service("api"), newRouteTo("shop", "shop.example.org", "api"), replica("api", "r1", "a"))
	leaving := replica("api", "r1", "a")
	leaving.Spec.Desired = spec.DesiredStopped
	w.put(leaving)
	if e := w.full("eu").GetServices()[0].GetEndpoints()[0]; e.GetState() != spec.EndpointDraining {
		t.Errorf("the endpoint is %s", e.GetState())
	}
}

// A node hears of a key only for routes that it answers for.
func TestNodesGetOnlyWhatTheyAnswerFor(t *testing.T) {
	shop := newRouteTo("shop", "shop.example.org", "api")
	shop.Spec.Nodes, shop.Spec.Tls = "zone=eu", &v1.RouteTls{Mode: "own", Certificate: "mine"}
	w := newWorld(service("api"), shop, certificate("mine", "CHAIN"), key("mine", "k1"),
		&statev1.CertificateChallenge{Metadata: &v1.Metadata{Uid: "ch"}, Host: "shop.example.org", Token: "t"})
	eu := w.full("eu")
	if len(eu.GetRoutes()) != 1 || eu.GetRoutes()[0].GetCertificateUid() != "cert-mine" || string(eu.GetCertificates()[0].GetKey()) != "opened cert-mine k1" || len(eu.GetChallenges()) != 1 {
		t.Errorf("a node that answers hears %v", eu)
	}
	if us := w.full("us"); !proto.Equal(us, &v1.IngressDown{Full: true}) {
		t.Errorf("a node that does not answer hears %v", us)
	}
	w.put(cluster("zone=us"))
	if eu := w.full("eu"); !proto.Equal(eu, &v1.IngressDown{Full: true}) {
		t.Errorf("a node that is not of the ingress hears %v", eu)
	}
}

// A route is served without TLS certificates until there is one with a key.
func TestCertificateIsUsedWhenItHasItsKey(t *testing.T) {
	shop := newRouteTo("shop", "shop.example.org", "api")
	shop.Spec.Tls = &v1.RouteTls{Mode: "auto"}
	w := newWorld(service("api"), shop)
	name := spec.CertificateName("shop.example.org")
	uid := func() string { return w.full("eu").GetRoutes()[0].GetCertificateUid() }
	w.put(certificate(name, ""))
	if uid() != "" {
		t.Error("a pending certificate is used")
	}
	w.put(certificate(name, "CHAIN"))
	if uid() != "" {
		t.Error("a certificate without a key is used")
	}
	w.put(key(name, "k1"))
	if uid() != "cert-"+name {
		t.Errorf("the certificate is %q", uid())
	}
}

func TestCertificateWhoseKeyCannotBeOpenedStaysAway(t *testing.T) {
	shop := newRouteTo("shop", "shop.example.org", "api")
	shop.Spec.Tls = &v1.RouteTls{Mode: "own", Certificate: "mine"}
	w := newWorld(service("api"), shop, certificate("mine", "CHAIN"), key("mine", "k1"))
	got := w.ingress.Between(nil, w.ingress.For(nil), func(string, bool, []byte) []byte { return nil })
	if len(got.GetCertificates()) != 0 || len(got.GetRoutes()) != 1 {
		t.Errorf("the node hears %v", got)
	}
}

// A request waits for a workload that was scaled to zero, until the first replica of it serves.
func TestServiceThatSleepsWakes(t *testing.T) {
	api := workload("api")
	api.Spec = &v1.WorkloadSpec{Replicas: proto.Int32(1), Autoscale: &v1.Autoscale{Min: proto.Int32(0), Max: 3}}
	api.Status = &v1.WorkloadStatus{Scale: &v1.ScaleStatus{Replicas: 0}}
	w := newWorld(node("a", "eu"), api, service("api"), newRouteTo("shop", "shop.example.org", "api"))
	wakes := func() bool { return w.full("eu").GetServices()[0].GetWakes() }
	if !wakes() {
		t.Error("a service that sleeps does not wake")
	}
	api.Status.Scale.Replicas = 1
	w.put(api)
	if !wakes() {
		t.Error("the request does not wait for the replica")
	}
	starting := replica("api", "r1", "a")
	starting.Status.Unready = "It does not listen yet."
	w.put(starting)
	if !wakes() {
		t.Error("the request does not wait until the replica serves")
	}
	w.put(replica("api", "r1", "a"))
	if wakes() {
		t.Error("a service that serves still wakes")
	}
	api.Status.Scale.Replicas = 0
	w.put(api)
	if !wakes() {
		t.Error("a service that goes to sleep does not wake for the next request")
	}
}

// merged is what a node knows that applies all messages.
type merged struct {
	settings *v1.Ingress
	all      map[string]proto.Message
}

func (m *merged) apply(d *v1.IngressDown) {
	if d == nil {
		return
	}
	if d.GetFull() {
		*m = merged{all: map[string]proto.Message{}}
	}
	if d.GetSettings() != nil {
		m.settings = d.GetSettings()
	}
	for _, uids := range [][]string{d.GetRemovedRoutes(), d.GetRemovedServices(), d.GetRemovedCertificates(), d.GetRemovedChallenges()} {
		for _, uid := range uids {
			if m.all[uid] == nil {
				panic("removed what the node does not have: " + uid)
			}
			delete(m.all, uid)
		}
	}
	for _, r := range d.GetRoutes() {
		m.all[r.GetUid()] = r
	}
	for _, s := range d.GetServices() {
		m.all[s.GetUid()] = s
	}
	for _, c := range d.GetCertificates() {
		m.all[c.GetUid()] = c
	}
	for _, c := range d.GetChallenges() {
		m.all[c.GetUid()] = c
	}
}

func (m *merged) String() string {
	var b strings.Builder
	for _, uid := range slices.Sorted(maps.Keys(m.all)) {
		fmt.Fprintf(&b, "%s: %v\n", uid, m.all[uid])
	}
	if len(m.all) > 0 {
		fmt.Fprintln(&b, m.settings)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// Whatever happens, a node that has applied all deltas knows what the full set of the newest state says, even if it heard of
// some states late. The full set itself is the one that a server computes that has just begun.
func TestDeltasLeadToTheFullSet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(node("a", "eu"), node("b", "us"), workload("api"), workload("web"), service("api"))
		type one struct {
			labels map[string]string
			known  *Set
			has    merged
		}
		nodes := []*one{{labels: map[string]string{"zone": "eu"}}, {labels: map[string]string{"zone": "us"}}, {}}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			if rapid.IntRange(0, 3).Draw(rt, "what") == 0 {
				w.removeAny(rt)
			} else {
				w.put(anyObject(rt))
			}
			fresh := NewIngress(w.store.Snapshot())
			for i, n := range nodes {
				if rapid.IntRange(0, 3).Draw(rt, "hears") == 0 {
					continue // it is slow
				}
				to := w.ingress.For(n.labels)
				n.has.apply(w.ingress.Between(n.known, to, opened))
				n.known = to
				var want merged
				want.apply(fresh.Between(nil, fresh.For(n.labels), opened))
				if n.has.String() != want.String() {
					rt.Fatalf("node %d knows\n%s\nwant\n%s", i, n.has.String(), want.String())
				}
			}
		}
	})
}

func (w *world) removeAny(rt *rapid.T) {
	kind := rapid.SampledFrom([]state.Kind{
		state.KindRoute, state.KindService, state.KindCertificate, state.KindCertificateKey, state.KindReplica, state.KindWorkload, state.KindCertificateChallenge,
	}).Draw(rt, "kind")
	name := rapid.SampledFrom([]string{"rt-shop", "rt-blog", "s-api", "s-web", "cert-mine", "r-api", "r-web", "w-api", "ch-1"}).Draw(rt, "uid")
	if w.store.Snapshot().Get(kind, name) != nil {
		w.remove(kind, name)
	}
}

func anyObject(rt *rapid.T) state.Object {
	name := rapid.SampledFrom([]string{"api", "web"}).Draw(rt, "name")
	switch rapid.IntRange(0, 8).Draw(rt, "kind") {
	case 0:
		return cluster(rapid.SampledFrom([]string{"", "zone=eu", "zone"}).Draw(rt, "nodes"))
	case 1:
		return service(name)
	case 2:
		w := workload(name)
		w.Spec.Autoscale = &v1.Autoscale{Min: proto.Int32(rapid.Int32Range(0, 1).Draw(rt, "min")), Max: 3}
		w.Status = &v1.WorkloadStatus{Scale: &v1.ScaleStatus{Replicas: rapid.Int32Range(0, 1).Draw(rt, "scale")}}
		return w
	case 3:
		return certificate("mine", rapid.SampledFrom([]string{"", "CHAIN", "OTHER"}).Draw(rt, "chain"))
	case 4:
		return key("mine", rapid.SampledFrom([]string{"k1", "k2"}).Draw(rt, "key"))
	case 5:
		c := &statev1.CertificateChallenge{Metadata: &v1.Metadata{Uid: "ch-1"}, Host: "x", Token: rapid.SampledFrom([]string{"t1", "t2"}).Draw(rt, "token")}
		if rapid.Bool().Draw(rt, "alpn") {
			c.Chain, c.SealedKey = "ALPN", []byte("k")
		}
		return c
	case 6:
		r := replica(name, name, "a")
		r.Status.Phase = rapid.SampledFrom([]string{spec.PhaseRunning, spec.PhasePreparing, spec.PhaseStopped}).Draw(rt, "phase")
		return r
	}
	r := newRouteTo(rapid.SampledFrom([]string{"shop", "blog"}).Draw(rt, "route"), "shop.example.org", rapid.SampledFrom([][]string{{"api"}, {"web"}, {"api", "web"}}).Draw(rt, "backends")...)
	r.Spec.Nodes = rapid.SampledFrom([]string{"", "zone=eu", "zone=us", "!zone"}).Draw(rt, "selector")
	if rapid.Bool().Draw(rt, "tls") {
		r.Spec.Tls = &v1.RouteTls{Mode: "own", Certificate: "mine"}
	}
	return r
}

// BenchmarkChangeOfAnEndpoint is one change of a replica with 1,000 routes to 1,000 services.
func BenchmarkChangeOfAnEndpoint(b *testing.B) {
	objects := []state.Object{node("a", "eu")}
	for i := range 1000 {
		name := fmt.Sprint("api", i)
		objects = append(objects, workload(name), service(name), newRouteTo(name, name+".example.org", name), replica(name, name+"-1", "a"))
	}
	w := newWorld(objects...)
	labels := map[string]string{"zone": "eu"}
	known := w.ingress.For(labels)
	states := []string{"", "It is busy."}
	for i := 0; b.Loop(); i++ {
		r := replica("api500", "api500-1", "a")
		r.Status.Unready = states[(i+1)%2]
		w.put(r)
		now := w.ingress.For(labels)
		if d := w.ingress.Between(known, now, opened); len(d.GetServices()) != 1 || len(d.GetRoutes()) != 0 {
			b.Fatalf("a node hears %v", d)
		}
		known = now
	}
}

// A node hears of a bucket that a route serves when it is made and when it is gone, and nothing of its content.
func TestBucketOfARoute(t *testing.T) {
	r := newRouteTo("www", "www.example.org")
	r.Spec.Backends = []*v1.RouteBackend{{Bucket: &v1.RouteBucket{Name: "site"}}, {S3: true}}
	w := newWorld(node("a", "eu"), r)
	uids := func() []string { return w.full("eu").GetRoutes()[0].GetServiceUids() }
	if got := uids(); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("without the bucket: %q", got)
	}
	bucket := &v1.Bucket{Metadata: metadata("b", "site"), Spec: &v1.BucketSpec{}}
	w.put(bucket)
	if got := uids(); !slices.Equal(got, []string{"b-site", ""}) {
		t.Errorf("with the bucket: %q", got)
	}
	before := w.ingress.For(spec.NodeLabels(node("a", "eu")))
	bucket.Spec.Quota = "1Gi"
	w.put(bucket)
	if w.ingress.For(spec.NodeLabels(node("a", "eu"))) != before {
		t.Error("the node hears of a quota")
	}
	w.remove(state.KindBucket, "b-site")
	if got := uids(); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("without the bucket again: %q", got)
	}
}
