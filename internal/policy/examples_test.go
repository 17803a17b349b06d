package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/spec"
)

// example reads a policy of the examples.
func example(t *testing.T, name string) *v1.Policy {
	t.Helper()
	file := filepath.Join("..", "..", "examples", "policies", name+".yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	documents, err := spec.Decode(file, data)
	if err != nil {
		t.Fatal(err)
	}
	p := documents[0].Message.(*v1.Policy)
	spec.NormalizePolicy(p)
	if err := policy.Check(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// Each example refuses what it says and allows the rest. A case without a rule is allowed.
func TestExamples(t *testing.T) {
	in := func(namespace string) func(*v1.Workload) {
		return func(w *v1.Workload) { w.Metadata.Namespace = namespace }
	}
	label := func(key, value string) func(*v1.Workload) {
		return func(w *v1.Workload) { w.Metadata.Labels = map[string]string{key: value} }
	}
	image := func(name string) func(*v1.Workload) { return func(w *v1.Workload) { w.Spec.Image = name } }
	network := func(name string) func(*v1.Workload) { return func(w *v1.Workload) { w.Spec.Network = name } }
	user := func(name string) func(*v1.Workload) { return func(w *v1.Workload) { w.Spec.User = name } }
	port := func(publish int32, protocol string) func(*v1.Workload) {
		return func(w *v1.Workload) { w.Spec.Ports = []*v1.Port{{Port: 80, Publish: publish, Protocol: protocol}} }
	}
	priority := func(n int32) func(*v1.Workload) { return func(w *v1.Workload) { w.Spec.Priority = &n } }
	secured := func(s *v1.Security) func(*v1.Workload) { return func(w *v1.Workload) { w.Spec.Security = s } }
	type change = []func(*v1.Workload)
	for name, cases := range map[string][]struct {
		does  string
		with  change
		rules string
		by    *v1.PolicyCaller
	}{
		"registries": {
			{"an image of the cluster", change{image("web")}, "", nil},
			{"a trusted registry", change{image("ghcr.io/shop/web:1")}, "", nil},
			{"another registry", change{image("docker.io/library/nginx:1")}, "allowed-registries", nil},
			{"no version", change{image("ghcr.io/shop/web")}, "no-latest", nil},
			{"a digest", change{image("ghcr.io/shop/web@sha256:" + strings.Repeat("a", 64))}, "", nil},
		},
		"no-host-network": {
			{"its own network", change{network("node")}, "", nil},
			{"the network of the machine", change{network("host")}, "host-network", nil},
			{"infrastructure", change{network("host"), in("infrastructure")}, "", nil},
		},
		"no-root": {
			{"a user", change{user("1000:1000")}, "", nil},
			{"root by name", change{user("root")}, "no-root-user", nil},
			{"root by number", change{user("0:1000")}, "no-root-user", nil},
			{"the user of the image", nil, "no-root-user", nil},
			{"restricted", change{secured(&v1.Security{Profile: "restricted"})}, "", nil},
			{"escalation", change{user("1000"), secured(&v1.Security{AllowPrivilegeEscalation: new(true)})}, "no-escalation", nil},
			{"infrastructure", change{user("root"), in("infrastructure")}, "", nil},
		},
		"required-labels": {
			{"a team", change{label("team", "shop")}, "", nil},
			{"no team", change{label("app", "shop")}, "team", nil},
			{"an empty team", change{label("team", "")}, "team", nil},
		},
		"ports": {
			{"no port", nil, "", nil},
			{"a port that is not published", change{port(0, "udp")}, "", nil},
			{"a high port", change{port(8080, "tcp")}, "", nil},
			{"a low port", change{port(443, "tcp")}, "low-ports", nil},
			{"a low port of the edge", change{port(443, "tcp"), in("edge")}, "", nil},
			{"another low port of the edge", change{port(22, "tcp"), in("edge")}, "low-ports", nil},
			{"UDP", change{port(8080, "udp")}, "no-udp", nil},
		},
		"priorities": {
			{"the usual one", change{priority(100)}, "", nil},
			{"a higher one", change{priority(101)}, "no-preemption", nil},
			{"a higher one of operations", change{priority(900)}, "", &v1.PolicyCaller{Groups: []string{"operations"}}},
			{"a higher one of an admin", change{priority(900)}, "", &v1.PolicyCaller{Roles: []string{"admin"}}},
		},
		"devices": {
			{"none", nil, "", nil},
			{"a device for storage", change{label("storage", "true"), secured(&v1.Security{Devices: []string{"/dev/fuse"}})}, "", nil},
			{"a device for another app", change{secured(&v1.Security{Devices: []string{"/dev/fuse"}})}, "devices", nil},
			{"another device", change{label("storage", "true"), secured(&v1.Security{Devices: []string{"/dev/kvm"}})}, "devices", nil},
			{"privileged", change{secured(&v1.Security{Profile: "privileged"})}, "not-privileged", nil},
			{"privileged infrastructure", change{in("infrastructure"), secured(&v1.Security{Profile: "privileged"})}, "", nil},
		},
	} {
		p := policy.Compile(example(t, name))
		for _, c := range cases {
			t.Run(name+"/"+c.does, func(t *testing.T) {
				w := workload(append(change{func(w *v1.Workload) {
					w.Metadata.Labels, w.Spec = nil, &v1.WorkloadSpec{Image: "web"}
				}}, c.with...)...)
				var broken []string
				for _, f := range p.Judge(t.Context(), &policy.Request{Kind: "workload", Verb: policy.Create, Object: w, Caller: c.by}) {
					broken = append(broken, f.GetRule())
				}
				if got := strings.Join(broken, " "); got != c.rules {
					t.Errorf("breaks %q, want %q", got, c.rules)
				}
			})
		}
	}
}

func TestExampleAboutNodes(t *testing.T) {
	p := policy.Compile(example(t, "nodes"))
	w := workload(func(w *v1.Workload) { w.Metadata.Labels = map[string]string{"data": "customers"} })
	if !p.JudgesNodes(w.GetMetadata()) || p.JudgesNodes(workload().GetMetadata()) {
		t.Error("it is not about the data of customers, and nothing else")
	}
	for region, refused := range map[string]bool{"eu-west": false, "us": true, "": true} {
		node := &v1.Node{Metadata: &v1.Metadata{Name: "a", Labels: map[string]string{"region": region}}}
		if got := p.RefusesNode(w, node); (got != "") != refused {
			t.Errorf("a node in %q: %q", region, got)
		}
	}
}

// Every example has a test above.
func TestEveryExampleIsTested(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "policies", "*.yaml"))
	if err != nil || len(files) != 8 {
		t.Errorf("there are %d examples, and the tests know 8 (%v)", len(files), err)
	}
}
