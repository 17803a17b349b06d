package network

import (
	"fmt"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// stateWith is a state that has some objects.
func stateWith(t *testing.T, objects ...state.Object) *state.Snapshot {
	t.Helper()
	var b state.Batch
	for _, o := range objects {
		b.Create(o)
	}
	store := state.New()
	if _, err := store.Apply(1, b.Transaction(time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	return store.Snapshot()
}

func onNode(name, node, phase string, addresses ...string) *v1.Replica {
	return &v1.Replica{
		Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"},
		Spec:     &v1.ReplicaSpec{Workload: "web", WorkloadUid: "web", NodeUid: node},
		Status:   &v1.ReplicaStatus{Phase: phase, Addresses: addresses},
	}
}

func TestUsageCountsAddresses(t *testing.T) {
	snap := stateWith(t,
		&v1.Cluster{Metadata: &v1.Metadata{Uid: "c", Name: "cluster"}, Spec: &v1.ClusterSpec{
			RangeV4: "10.64.0.0/16", RangeV6: "fd00::/48", ServiceRangeV4: "10.64.255.0/25", ServiceRangeV6: "fd00:0:0:ffff::/112",
		}},
		&v1.Node{Metadata: &v1.Metadata{Uid: "n1", Name: "one"}, Spec: &v1.NodeSpec{SubnetV4: "10.64.0.0/24", SubnetV6: "fd00::/64"}},
		&v1.Node{Metadata: &v1.Metadata{Uid: "n2", Name: "two"}, Spec: &v1.NodeSpec{SubnetV4: "192.0.2.0/24"}}, // from an earlier range
		onNode("web-1", "n1", spec.PhaseRunning, "10.64.0.2", "fd00::2"),
		onNode("web-2", "n1", spec.PhaseStopped, "10.64.0.3"),
		onNode("web-3", "n1", spec.PhasePlaced),
		&v1.Service{Metadata: &v1.Metadata{Uid: "s1", Name: "web", Namespace: "default"}, Status: &v1.ServiceStatus{AddressV4: "10.64.255.7", AddressV6: "fd00:0:0:ffff::7"}},
		&v1.Service{Metadata: &v1.Metadata{Uid: "s2", Name: "api", Namespace: "shop"}, Status: &v1.ServiceStatus{AddressV4: "10.64.255.8"}},
	)
	got := usageOf(snap)
	for i, want := range []string{
		"rangeV4 10.64.0.0/16 nodes: 1 used, 254 free subnets", // one is that of the services
		"rangeV6 fd00::/48 nodes: 1 used, 65534 free subnets",
		"serviceRangeV4 10.64.255.0/25 services: 2 used, 124 free addresses",
		"serviceRangeV6 fd00:0:0:ffff::/112 services: 1 used, 65533 free addresses",
	} {
		r := got.GetRanges()[i]
		if have := fmt.Sprintf("%s %s %s: %d used, %d free %s", r.GetSetting(), r.GetRange(), r.GetUse(), r.GetUsed(), r.GetFree(), r.GetUnit()); have != want {
			t.Errorf("%s\nwant %s", have, want)
		}
	}
	one, two := got.GetNodes()[0], got.GetNodes()[1]
	if one.GetUsed() != 1 || one.GetFree() != 252 || two.GetUsed() != 0 || two.GetFree() != 253 {
		t.Errorf("the nodes use %v and %v", one, two)
	}
}
