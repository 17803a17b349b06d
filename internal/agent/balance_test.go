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
