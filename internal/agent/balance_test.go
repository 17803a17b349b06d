package agent

import (
	"net/netip"
	"slices"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/spec"
)

func endpoint(address, state, node, zone string) *v1.NetworkEndpoint {
	return &v1.NetworkEndpoint{Name: address, Addresses: []string{address}, State: state, Weight: 1000, NodeUid: node, Zone: zone}
}

// shares are the weights and distances of backends, by their addresses.
func shares(list []nodenet.Backend) map[string][2]int {
	all := map[string][2]int{}
	for _, b := range list {
		all[b.Addresses[0].String()] = [2]int{int(b.Weight), b.Distance}
	}
	return all
}

func TestNearEndpointsComeFirst(t *testing.T) {
	here := place{node: "1", zone: "a"}
	endpoints := []*v1.NetworkEndpoint{
		endpoint("10.64.1.2", spec.EndpointReady, "1", "a"), endpoint("10.64.2.2", spec.EndpointReady, "2", "a"),
		endpoint("10.64.3.2", spec.EndpointReady, "3", "b"), endpoint("192.0.2.9", spec.EndpointReady, "", ""),
		endpoint("10.64.1.3", spec.EndpointDraining, "1", "a"), endpoint("10.64.1.4", spec.EndpointUnready, "1", "a"),
	}
	list, err := here.backends(endpoints, true)
	if err != nil {
		t.Fatal(err)
	}
	got := shares(list)
	for address, want := range map[string][2]int{
		"10.64.1.2": {1000, onThisNode}, "10.64.2.2": {1000, inThisZone}, "10.64.3.2": {1000, elsewhere}, "192.0.2.9": {1000, elsewhere},
		"10.64.1.3": {0, onThisNode}, // keeps its connections
	} {
		if got[address] != want {
			t.Errorf("%s has weight and distance %v, want %v", address, got[address], want)
		}
	}
	if len(got) != 5 {
		t.Errorf("the backends are %v", got)
	}
	if list, _ = here.backends(endpoints, false); slices.ContainsFunc(list, func(b nodenet.Backend) bool { return b.Distance != 0 }) {
		t.Errorf("without locality the backends are %v", shares(list))
	}
}

// Endpoints that leave soon are better than none.
func TestDrainingEndpointsServeIfNoOtherDoes(t *testing.T) {
	list, err := place{}.backends([]*v1.NetworkEndpoint{
		endpoint("10.64.1.2", spec.EndpointDraining, "1", ""), endpoint("10.64.1.3", spec.EndpointUnready, "1", ""),
	}, true)
	if err != nil || len(list) != 1 || list[0].Weight != 1000 || list[0].Addresses[0] != netip.MustParseAddr("10.64.1.2") {
		t.Errorf("the backends are %v, %v", list, err)
	}
}

func TestPublishedPortsLeadToEndpoints(t *testing.T) {
	one, err := place{}.balanced(&v1.NetworkService{
		Namespace: "shop", Name: "api", WorkloadUid: "w-1", Ports: []*v1.ServicePort{{Port: 80, TargetPort: 8000}},
		Published: []*v1.Port{{Port: 8000, Publish: 8080, PublishAddress: "192.0.2.7"}},
	})
	if err != nil || len(one.Ports) != 2 || one.Group != "w-1" || one.Owner != "api in namespace shop" {
		t.Fatalf("the service is %v, %v", one, err)
	}
	if want := (nodenet.ServicePort{Protocol: "tcp", Target: 8000, Publish: 8080, PublishAddress: netip.MustParseAddr("192.0.2.7")}); one.Ports[1] != want {
		t.Errorf("the port is %v", one.Ports[1])
	}
}

// A port that is published on every node at one address concerns only the machine that has it.
func TestReplicaNeedsNoAddressOfAnotherMachine(t *testing.T) {
	ports := func(p *v1.Port) int {
		w := &v1.WorkloadSpec{Ports: []*v1.Port{p}}
		return len(endpointOf(&v1.Assignment{Replica: &v1.Replica{}, Revision: &v1.Revision{Spec: &v1.RevisionSpec{Workload: w}}}).Ports)
	}
	for port, want := range map[*v1.Port]int{
		{Port: 80}: 0, {Port: 80, Publish: 80}: 1, {Port: 80, Publish: 80, PublishAddress: "127.0.0.1"}: 1,
		{Port: 80, Publish: 80, PublishAddress: "192.0.2.7"}: 0, {Port: 80, Publish: 80, PublishAddress: "192.0.2.7", PublishMode: spec.PublishHost}: 1,
	} {
		if got := ports(port); got != want {
			t.Errorf("%v needs %d ports, want %d", port, got, want)
		}
	}
}
