package cli

import (
	"fmt"
	"testing"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// States have a fixed order, and only the first nodes of each state are named.
func TestNodesByState(t *testing.T) {
	node := func(name, state string) *cloudlessv1.Node {
		return &cloudlessv1.Node{Metadata: &cloudlessv1.Metadata{Name: name}, Status: &cloudlessv1.NodeStatus{State: state}}
	}
	if got := nodesByState(nil); got != "none" {
		t.Errorf("without nodes: %s", got)
	}
	nodes := []*cloudlessv1.Node{
		node("f", "failed"), node("d", "draining"), node("n", "hibernating"), node("c", "cordoned"), node("e", "enrolling"), node("r1", "ready"), node("r2", "ready"),
	}
	for i := range 7 {
		nodes = append(nodes, node(fmt.Sprintf("o%d", i), "offline"))
	}
	want := "2 ready, 1 enrolling (e), 1 cordoned (c), 1 draining (d), 7 offline (o0, o1, o2, o3, o4 and 2 more), 1 failed (f), 1 hibernating (n)"
	if got := nodesByState(nodes); got != want {
		t.Errorf("the nodes are %s, want %s", got, want)
	}
}

// A follower knows neither the lag of the others nor how many may fail, and does not show 0.
func TestUnknownServerFactsAreNotShown(t *testing.T) {
	leader := &cloudlessv1.ServerStatus{Name: "a", Leader: true, Voter: true, Healthy: true, LastIndex: 9}
	well := &cloudlessv1.ServerStatus{Name: "b", Voter: true, Healthy: true, LastIndex: 7, Lag: 2}
	unknown := &cloudlessv1.ServerStatus{Name: "c", Voter: true, Unknown: true}
	dead := &cloudlessv1.ServerStatus{Name: "d", Voter: true, Lag: 9}
	for want, servers := range map[string][]*cloudlessv1.ServerStatus{
		"1 more may fail":                          {leader, well, dead},
		"how many more may fail is not known here": {leader, well, unknown},
		"none leads":                               {well, unknown},
	} {
		if got := mayFail(&cloudlessv1.ClusterStatus{Servers: servers, ToleratedFailures: 1}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for want, server := range map[string]*cloudlessv1.ServerStatus{"0": leader, "2": well, "-": unknown} {
		if got := serverLag(server); got != want || serverLag(dead) != "-" {
			t.Errorf("server %s is %s behind, want %s", server.GetName(), got, want)
		}
	}
}
