package network

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// between is a check from a replica on node one to a replica on node two.
func between(to *target) *trace {
	to.replica = replicaOn("two", "api")
	return &trace{request: &v1.CheckNetworkRequest{}, check: &v1.NetworkCheck{Ok: true}, from: replicaOn("one", "web"), targets: []*target{to}}
}

func replicaOn(node, workload string) *v1.Replica {
	return &v1.Replica{Metadata: &v1.Metadata{Name: workload + "-1"}, Spec: &v1.ReplicaSpec{Node: node, NodeUid: node, Workload: workload, WorkloadUid: workload}}
}

func (t *trace) said() string {
	var lines []string
	for _, h := range t.check.GetHops() {
		lines = append(lines, fmt.Sprintf("%s %s: %s", h.GetHop(), h.GetState(), h.GetMessage()))
	}
	return strings.Join(lines, "\n")
}

// The node of the target may drop what the node of the caller lets through.
func TestCheckShowsDropsOfBothNodes(t *testing.T) {
	to := &target{
		before: []*v1.DroppedPackets{{WorkloadUid: "api", Rule: "namespace", Packets: 3}, {Rule: "transit", Packets: 1}},
		after:  []*v1.DroppedPackets{{WorkloadUid: "api", Rule: "namespace", Packets: 5, Reason: "why"}, {Rule: "transit", Packets: 1}},
	}
	c := between(to)
	c.checkFilter(&v1.NetworkProbe{
		Connects:   []*v1.ConnectResult{{Address: "10.0.0.1:80", Error: "no answer"}},
		DroppedNow: []*v1.DroppedPackets{{Rule: "transit", Packets: 2}},
	})
	want := `filter ok: node one has dropped no packets of web; packets of no workload that it dropped meanwhile: 2 by rule transit
filter failed: rule namespace of node two has dropped 2 packets of api: why`
	if got := c.said(); got != want || c.check.GetOk() {
		t.Errorf("the check says\n%s", got)
	}
	c = between(to)
	c.checkFilter(&v1.NetworkProbe{Connects: []*v1.ConnectResult{{Address: "10.0.0.1:80", Latency: "1ms"}}})
	if got := c.said(); !c.check.GetOk() || !strings.Contains(got, "filter ok: node two lets these connections through; other packets of api that it has dropped: 5 by rule namespace") {
		t.Errorf("the check says\n%s", got)
	}
}

func TestCheckOfUDPSaysWhatWasTried(t *testing.T) {
	ports := []portOption{{53, "udp"}, {80, ""}, {81, "tcp"}}
	c := between(&target{})
	if i := c.choose(ports); i != 1 || c.udp || notTried(ports, i) != "; not tried: 53/udp, 81/tcp" {
		t.Errorf("tries %d, udp %v%s", i, c.udp, notTried(ports, i))
	}
	c.request.Port = 53
	if i := c.choose(ports); i != 0 || !c.udp {
		t.Errorf("tries %d, udp %v", i, c.udp)
	}
	for result, want := range map[*v1.ConnectResult]string{
		{}:                            "connect ok: web-1 sent an empty datagram to api (10.0.0.1:53: no answer, which is usual for UDP)",
		{Latency: "1ms"}:              "connect ok: web-1 sent an empty datagram to api (10.0.0.1:53 in 1ms)",
		{Error: "connection refused"}: "connect failed: web-1 does not connect to api (10.0.0.1:53: connection refused)",
	} {
		c.check = &v1.NetworkCheck{Ok: true}
		result.Address = "10.0.0.1:53"
		c.checkConnect("api", []string{result.GetAddress()}, &v1.NetworkProbe{Connects: []*v1.ConnectResult{result}})
		if got := c.said(); got != want {
			t.Errorf("the check says\n%s\nand not\n%s", got, want)
		}
	}
}

func TestCheckNamesThePortsOfTheService(t *testing.T) {
	c := between(&target{})
	c.service = &v1.Service{Metadata: &v1.Metadata{Name: "db"}, Spec: &v1.ServiceSpec{Ports: []*v1.ServicePort{{Port: 5432}, {Port: 53, Protocol: "udp"}}}}
	c.request.Port = 81
	c.findEndpoints()
	if got := c.said(); got != "to failed: service db does not have port 81" {
		t.Errorf("the check says %q", got)
	}
	if fix := c.check.GetHops()[0].GetFix(); fix != "name one that it has with --port: 5432/tcp, 53/udp" {
		t.Errorf("the check advises %q", fix)
	}
}
