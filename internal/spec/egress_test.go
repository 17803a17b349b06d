package spec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func withEgress(e *v1.Egress) *v1.Workload {
	return &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "web:1", Egress: e}}
}

func TestEgressThatCannotBeMeantIsRefused(t *testing.T) {
	rule := func(r *v1.EgressRule) *v1.Workload { return withEgress(&v1.Egress{Allow: []*v1.EgressRule{r}}) }
	host := withEgress(&v1.Egress{})
	host.Spec.Network = "host"
	none := withEgress(&v1.Egress{})
	none.Spec.Network = "none"
	many := withEgress(&v1.Egress{})
	for range 17 {
		many.Spec.Egress.Allow = append(many.Spec.Egress.Allow, &v1.EgressRule{Cidr: "10.0.0.0/8"})
		for port := range int32(64) {
			many.Spec.Egress.Allow[len(many.Spec.Egress.Allow)-1].Ports = append(many.Spec.Egress.Allow[len(many.Spec.Egress.Allow)-1].Ports, port+1)
		}
	}
	for want, w := range map[string]*v1.Workload{
		"spec.egress: cannot be enforced with network host":                                   host,
		"spec.egress: has no effect with network none":                                        none,
		"spec.egress.allow: has 1088 ports in all rules together and may have 1024":           many,
		"spec.egress.allow[0]: needs a cidr such as 10.0.0.0/8 or a name":                     rule(&v1.EgressRule{Ports: []int32{443}}),
		"spec.egress.allow[0]: must have either cidr or name":                                 rule(&v1.EgressRule{Cidr: "10.0.0.0/8", Name: "a.example"}),
		`spec.egress.allow[0].cidr: "10.0.0/8" is not a range of addresses`:                   rule(&v1.EgressRule{Cidr: "10.0.0/8"}),
		"spec.egress.allow[0].cidr: 10.1.2.3/8 has bits behind its first 8; write 10.0.0.0/8": rule(&v1.EgressRule{Cidr: "10.1.2.3/8"}),
		`spec.egress.allow[0].cidr: "::ffff:10.0.0.1" is not a range`:                         rule(&v1.EgressRule{Cidr: "::ffff:10.0.0.1"}),
		"spec.egress.allow[0].name: 192.0.2.1 is an address; write cidr: 192.0.2.1":           rule(&v1.EgressRule{Name: "192.0.2.1"}),
		`spec.egress.allow[0].name: "*" allows every name; write cidr 0.0.0.0/0`:              rule(&v1.EgressRule{Name: "*"}),
		"spec.egress.allow[0].name: api.*.example may have a * only as its first label":       rule(&v1.EgressRule{Name: "api.*.example"}),
		"spec.egress.allow[0].name: 10.0.0.0/8 is no DNS name; write a range":                 rule(&v1.EgressRule{Name: "10.0.0.0/8"}),
		"spec.egress.allow[0].name: a.example:443 is no DNS name; write ports as ports":       rule(&v1.EgressRule{Name: "a.example:443"}),
		`spec.egress.allow[0].name: "bücher.example" must be a DNS name`:                      rule(&v1.EgressRule{Name: "bücher.example"}),
		"spec.egress.allow[0].ports[0]":                                                       rule(&v1.EgressRule{Name: "a.example", Ports: []int32{65536}}),
		"spec.egress.allow[0].protocol":                                                       rule(&v1.EgressRule{Name: "a.example", Protocol: "icmp"}),
	} {
		if err := Validate(w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for _, good := range []*v1.Egress{
		{},
		{Services: proto.Bool(false), Allow: []*v1.EgressRule{{Name: "db.shop.cloudless.internal", Ports: []int32{5432}, Protocol: "tcp"}}},
		{Allow: []*v1.EgressRule{{Cidr: "2001:db8::/32"}, {Cidr: "192.0.2.7"}, {Name: "*.Example.com."}, {Name: "_srv.example"}}},
	} {
		if err := Validate(withEgress(good)); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
}

// An empty block allows nothing, so it is something else than none.
func TestEgressInItsCanonicalForm(t *testing.T) {
	w := withEgress(&v1.Egress{Services: proto.Bool(true), Allow: []*v1.EgressRule{{Cidr: "192.0.2.7", Ports: []int32{443, 80, 443}}, {Name: "API.Example.com."}}})
	Normalize(w)
	want := &v1.Egress{Allow: []*v1.EgressRule{{Cidr: "192.0.2.7/32", Ports: []int32{80, 443}}, {Name: "api.example.com"}}}
	if !proto.Equal(w.GetSpec().GetEgress(), want) {
		t.Errorf("got %v", w.GetSpec().GetEgress())
	}
	if changes := DiffWorkload(withEgress(nil), withEgress(&v1.Egress{})); len(changes) != 1 || changes[0].Field != "spec.egress" || changes[0].New != "{}" {
		t.Errorf("a block without rules changes %v", changes)
	}
}

// Other egress rules and another limit of the bandwidth replace no replica, and a rollback keeps them.
func TestLimitsOfTheNetworkMakeNoRevision(t *testing.T) {
	before := withEgress(nil).GetSpec()
	after := withEgress(&v1.Egress{}).GetSpec()
	after.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Bandwidth: "10M"}}
	if !ReplacesNone(before, after) {
		t.Error("other limits of the network replace replicas")
	}
	back := RolledBack(after, before)
	if back.GetEgress() == nil || back.GetResources().GetLimits().GetBandwidth() != "10M" {
		t.Errorf("after a rollback: %v", back)
	}
	if job := ForJob(after, &v1.WorkloadSpec{}); job.GetEgress() == nil || job.GetResources().GetLimits().GetBandwidth() != "10M" {
		t.Errorf("a job is freer than the workload that it belongs to: %v", job)
	}
}

func TestLimitOfTheBandwidth(t *testing.T) {
	limited := func(request, limit string) *v1.Workload {
		w := withEgress(nil)
		w.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Bandwidth: request}, Limits: &v1.ResourceAmounts{Bandwidth: limit}}
		return w
	}
	if err := Validate(limited("10M", "100M")); err != nil {
		t.Error(err)
	}
	for want, w := range map[string]*v1.Workload{
		"spec.resources.limits.bandwidth: a bandwidth limit of 1k is too small: give at least 100k": limited("", "1k"),
		"spec.resources.requests.bandwidth: must be at most the limit: 100M is more than 10M":       limited("100M", "10M"),
	} {
		if err := Validate(w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// The cluster's default limit holds for workloads without one of their own, and lowers a default request to it.
func TestDefaultLimitOfTheBandwidth(t *testing.T) {
	defaults := &v1.WorkloadDefaults{Limits: &v1.ResourceAmounts{Bandwidth: "50M"}, Requests: &v1.ResourceAmounts{Bandwidth: "10M"}}
	own := withEgress(nil).GetSpec()
	own.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Bandwidth: "1M"}}
	for want, w := range map[string]*v1.WorkloadSpec{"10M 50M": withEgress(nil).GetSpec(), "1M 1M": own} {
		r := WithDefaults(w, defaults).GetResources()
		if got := r.GetRequests().GetBandwidth() + " " + r.GetLimits().GetBandwidth(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if changes := Diff(withEgress(nil).GetSpec(), own); len(changes) != 1 || changes[0].Field != "spec.resources.limits.bandwidth" {
		t.Errorf("a limit changes %v", changes)
	}
}

func FuzzParseRange(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8", "::/0", "192.0.2.1", "fe80::1%eth0/64"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseRange(text)
		if err != nil {
			return
		}
		again, err := ParseRange(p.String())
		if err != nil || again != p || p != p.Masked() || p.Addr().Zone() != "" || p.Addr().Is4In6() {
			t.Errorf("%q is %v, and that is %v, %v", text, p, again, err)
		}
	})
}
