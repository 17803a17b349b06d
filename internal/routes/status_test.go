package routes_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/routes"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// live is what nodes have reported: the problem of each port, by node, protocol and number.
type live map[string]string

func (l live) Route(string) *v1.RouteTraffic { return nil }

func (l live) Port(node, protocol string, port int32) (problem string, known bool) {
	problem, known = l[fmt.Sprintf("%s %s/%d", node, protocol, port)]
	return problem, known
}

// setting is a state that a test builds object by object.
type setting struct {
	store *state.Store
	index uint64
}

func newSetting(objects ...state.Object) *setting {
	s := &setting{store: state.New()}
	s.put(objects...)
	return s
}

func (s *setting) put(objects ...state.Object) {
	var b state.Batch
	for _, o := range objects {
		b.Put(proto.Clone(o).(state.Object))
	}
	s.index++
	if _, err := s.store.Apply(s.index, b.Transaction(time.Unix(1e9, 0))); err != nil {
		panic(err)
	}
}

func (s *setting) status(r *v1.Route, l routes.Live) *v1.RouteStatus {
	return routes.Present(s.store.Snapshot(), r, l).GetStatus()
}

func named(prefix, name string) *v1.Metadata {
	return &v1.Metadata{Uid: prefix + "-" + name, Name: name, Namespace: "default"}
}

func ofHost(host string, change ...func(*v1.RouteSpec)) *v1.Route {
	r := &v1.Route{Metadata: named("rt", "x"), Spec: &v1.RouteSpec{Host: host, Backends: []*v1.RouteBackend{{Service: "api", Port: 80}}}}
	for _, f := range change {
		f(r.Spec)
	}
	spec.NormalizeRoute(r)
	return r
}

func tls(mode string) func(*v1.RouteSpec) {
	return func(s *v1.RouteSpec) { s.Tls = &v1.RouteTls{Mode: mode} }
}

func box(name, state string, addresses ...string) *v1.Node {
	m := named("n", name)
	m.Namespace, m.Labels = "", map[string]string{"zone": name}
	return &v1.Node{
		Metadata: m, Spec: &v1.NodeSpec{SubnetV4: "10.64.1.0/24"},
		Status: &v1.NodeStatus{State: state, Interfaces: []*v1.Interface{{Name: "eth0", Up: true, Addresses: addresses}}},
	}
}

func cluster(i *v1.Ingress) *v1.Cluster {
	return &v1.Cluster{Metadata: &v1.Metadata{Uid: "c", Name: "c"}, Spec: &v1.ClusterSpec{RangeV4: "10.64.0.0/10", RangeV6: "fd00::/48", Ingress: i}}
}

func api(ports ...int32) *v1.Service {
	s := &v1.Service{Metadata: named("s", "api"), Spec: &v1.ServiceSpec{External: []*v1.ExternalEndpoint{{Name: "e", Addresses: []string{"192.0.2.80"}}}}}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, &v1.ServicePort{Port: p, TargetPort: p, Protocol: "tcp"})
	}
	return s
}

func TestURLs(t *testing.T) {
	s := newSetting(cluster(nil), box("a", spec.NodeReady, "192.0.2.7/24"))
	odd := newSetting(cluster(&v1.Ingress{HttpPort: 8080, HttpsPort: 8443}))
	for _, test := range []struct {
		in   *setting
		of   *v1.Route
		want string
	}{
		{s, ofHost("a.org"), "http://a.org"},
		{s, ofHost("a.org", tls("auto"), func(s *v1.RouteSpec) { s.Path = "/v2" }), "https://a.org/v2"},
		{odd, ofHost("a.org"), "http://a.org:8080"},
		{odd, ofHost("a.org", tls("cluster")), "https://a.org:8443"},
		{s, ofHost("", func(s *v1.RouteSpec) { s.Tcp = 5432 }), "tcp://192.0.2.7:5432"},
		{odd, ofHost("", func(s *v1.RouteSpec) { s.Udp = 53 }), "udp://NODE:53"},
	} {
		if got := test.in.status(test.of, nil).GetUrl(); got != test.want {
			t.Errorf("the address of %v is %s, want %s", test.of.GetSpec(), got, test.want)
		}
	}
}

// The nodes of a route are online and selected by the ingress and the route; each with the addresses that clients can reach.
func TestNodesOfARoute(t *testing.T) {
	home := box("home", spec.NodeCordoned, "192.168.1.7/24", "10.64.1.1/24", "fe80::1/64")
	home.Status.Mesh = &v1.NodeMesh{Candidates: []string{"198.51.100.9:7701", "192.168.1.7:7701"}}
	s := newSetting(cluster(&v1.Ingress{Nodes: "zone!=c"}), api(80), box("a", spec.NodeReady, "2001:db8::7/64", "203.0.113.7/24", "10.0.0.7/8"),
		box("b", spec.NodeOffline, "203.0.113.8/24"), box("c", spec.NodeReady, "203.0.113.9/24"), home)
	l := live{"n-a tcp/443": "", "n-a tcp/80": "nginx uses it"}
	var got []string
	for _, n := range s.status(ofHost("a.org", tls("auto")), l).GetNodes() {
		got = append(got, n.GetNode()+" "+strings.Join(n.GetAddresses(), ",")+" "+n.GetProblem())
	}
	if want := []string{"a 203.0.113.7,2001:db8::7 ", "home 198.51.100.9,192.168.1.7 has not reported yet whether it could open its ports"}; !slices.Equal(got, want) {
		t.Errorf("the nodes are %q, want %q", got, want)
	}
	one := s.status(ofHost("a.org", func(s *v1.RouteSpec) { s.Nodes = "zone=home" }), l)
	if len(one.GetNodes()) != 1 || one.GetReason() != "no node answers for it; of node home: has not reported yet whether it could open its ports" {
		t.Errorf("with a selector: %v", one)
	}
	none := s.status(ofHost("a.org", func(s *v1.RouteSpec) { s.Nodes = "zone=c" }), l)
	if len(none.GetNodes()) != 0 || none.GetReason() != "no node answers for it: no node with zone!=c and zone=c is online; label one, or change the selector" {
		t.Errorf("without a node: %v", none)
	}
}

// The most important thing that is wrong with a route is its reason.
func TestReasonsOfRoutes(t *testing.T) {
	all := live{"n-a tcp/443": "", "n-a tcp/80": ""}
	certificate := func(source string, status *v1.CertificateStatus, hosts ...string) *v1.Certificate {
		return &v1.Certificate{Metadata: named("c", spec.CertificateName("a.org")), Spec: &v1.CertificateSpec{Source: source, Hosts: hosts}, Status: status}
	}
	for _, test := range []struct {
		want    string
		of      *v1.Route
		live    live
		objects []state.Object
	}{
		{"", ofHost("a.org"), all, []state.Object{api(80)}},
		{"service api does not exist: run a workload of that name with a port, or apply a service", ofHost("a.org"), all, nil},
		{"service api has no TCP port 80; it has 8080", ofHost("a.org"), all, []state.Object{api(8080)}},
		{"service api has the TCP ports 80, 81: say which one the route leads to", ofHost("a.org", func(s *v1.RouteSpec) { s.Backends[0].Port = 0 }), all, []state.Object{api(80, 81)}},
		{"service api has no UDP port", ofHost("", func(s *v1.RouteSpec) { s.Udp = 53 }), all, []state.Object{api(80)}},
		{"bucket site does not exist: make it with: cloudless bucket create site", ofHost("a.org", toBucket), all, nil},
		{"", ofHost("a.org", toBucket), all, []state.Object{site()}},
		{"", ofHost("a.org", func(s *v1.RouteSpec) { s.Backends = []*v1.RouteBackend{{S3: true}} }), all, nil},
		{"certificate tls-a-org is not there yet", ofHost("a.org", tls("auto")), all, []state.Object{api(80)}},
		{
			"certificate tls-a-org is not there yet: the authority does not answer", ofHost("a.org", tls("auto")), all,
			[]state.Object{api(80), certificate("auto", &v1.CertificateStatus{State: "pending", Problem: "the authority does not answer"})},
		},
		{"certificate tls-a-org has expired", ofHost("a.org", tls("auto")), all, []state.Object{api(80), certificate("auto", &v1.CertificateStatus{State: "expired"})}},
		{"", ofHost("a.org", tls("auto")), all, []state.Object{api(80), certificate("auto", &v1.CertificateStatus{State: "ready", Problem: "renewal failed"})}},
		{
			"certificate tls-a-org is for b.org and not for a.org", ofHost("a.org", func(s *v1.RouteSpec) { s.Tls = &v1.RouteTls{Mode: "own", Certificate: "tls-a-org"} }), all,
			[]state.Object{api(80), certificate("own", &v1.CertificateStatus{State: "ready"}, "b.org")},
		},
		{"node a does not answer plain HTTP: nginx uses it", ofHost("a.org", tls("auto")), live{"n-a tcp/443": "", "n-a tcp/80": "nginx uses it"}, []state.Object{api(80), certificate("auto", &v1.CertificateStatus{State: "ready"})}},
	} {
		s := newSetting(append([]state.Object{cluster(nil), box("a", spec.NodeReady, "203.0.113.7/24")}, test.objects...)...)
		if got := s.status(test.of, test.live).GetReason(); got != test.want {
			t.Errorf("the reason of %v is %q, want %q", test.of.GetSpec(), got, test.want)
		}
	}
}

// toBucket leads a route to bucket site.
func toBucket(s *v1.RouteSpec) {
	s.Backends = []*v1.RouteBackend{{Bucket: &v1.RouteBucket{Name: "site"}, Weight: proto.Int32(1)}}
}

func site() *v1.Bucket { return &v1.Bucket{Metadata: named("b", "site"), Spec: &v1.BucketSpec{}} }

// A service that sleeps is nothing wrong: the first request wakes it. One without replicas is.
func TestReadyBackends(t *testing.T) {
	all := live{"n-a tcp/80": ""}
	w := &v1.Workload{Metadata: named("w", "api"), Spec: &v1.WorkloadSpec{Network: "node", Ports: []*v1.Port{{Port: 80}}, Replicas: proto.Int32(0)}}
	service := api(80)
	service.Spec.External = nil
	s := newSetting(cluster(nil), box("a", spec.NodeReady, "203.0.113.7/24"), service, w)
	if st := s.status(ofHost("a.org"), all); st.GetReady() != 0 || !strings.Contains(st.GetReason(), "service api: no replica of workload api has an address yet") {
		t.Errorf("without a replica: %v", st)
	}
	w.Spec.Autoscale = &v1.Autoscale{Min: proto.Int32(0), Max: 3}
	if s.put(w); s.status(ofHost("a.org"), all).GetReason() != "" {
		t.Errorf("asleep: %v", s.status(ofHost("a.org"), all))
	}
	s.put(api(80))
	if st := s.status(ofHost("a.org"), all); st.GetReady() != 1 || st.GetReason() != "" {
		t.Errorf("with an endpoint: %v", st)
	}
}

// A change concerns the routes that may look different, and no others.
func TestChangesConcernRoutes(t *testing.T) {
	other := ofHost("b.org", tls("auto"))
	other.Metadata, other.Spec.Backends[0].Service = named("rt", "y"), "other"
	www := ofHost("c.org", toBucket)
	www.Metadata = named("rt", "z")
	s := newSetting(cluster(nil), box("a", spec.NodeReady), api(80), ofHost("a.org"), other, www)
	snap := s.store.Snapshot()
	moved := box("a", spec.NodeReady)
	moved.Status.Usage = &v1.NodeResources{Cpu: "1"}
	for want, change := range map[string]state.Change{
		"rt-x":           {Kind: state.KindService, Old: api(80), New: api(81)},
		"rt-y":           {Kind: state.KindCertificate, New: &v1.Certificate{Metadata: named("c", spec.CertificateName("b.org"))}},
		"rt-z":           {Kind: state.KindBucket, New: site()},
		"rt-x rt-y rt-z": {Kind: state.KindNode, Old: box("a", spec.NodeReady), New: box("a", spec.NodeOffline)},
		"":               {Kind: state.KindNode, Old: box("a", spec.NodeReady), New: moved},
		"rt-gone":        {Kind: state.KindRoute, Old: &v1.Route{Metadata: named("rt", "gone")}},
	} {
		var got []string
		for uid := range routes.StatusAffected(snap, []state.Change{change}) {
			got = append(got, uid)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("a change of a %s concerns %v, want %s", change.Kind, got, want)
		}
	}
}
