package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/test/fleet/simulated"
)

// image needs no registry: its digest is in its name.
var image = "registry.example.com/app@sha256:" + strings.Repeat("a", 64)

// Simulated nodes join, are ready, acknowledge their assignments, and report the end of
// stopped replicas.
func TestFleetAcknowledgesAssignments(t *testing.T) {
	const nodes, replicas = 20, 60
	c := newCluster(t)
	f := c.fleet(simulated.Options{Nodes: nodes, Delay: 50 * time.Millisecond})
	c.untilNodes(func(states map[string]string) bool { return all(states, nodes, "ready") })

	w := &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: image, Replicas: proto.Int32(replicas)}}
	created, err := c.api.Workloads().CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: w})
	must(t, err)
	c.untilReplicas("web", func(phases map[string]int) bool { return phases["running"] == replicas })
	if s := f.Stats(); s.Running != replicas || s.Connected != nodes {
		t.Errorf("the fleet says %+v", s)
	}

	created.Spec.Replicas = proto.Int32(10)
	_, err = c.api.Workloads().UpdateWorkload(c.ctx, &v1.UpdateWorkloadRequest{Workload: created})
	must(t, err)
	c.untilReplicas("web", func(phases map[string]int) bool { return phases["running"] == 10 && phases["stopping"] == 0 })
	c.until(func() bool { return f.Stats().Running == 10 })

	// Running replicas are known again after the connection broke, and nothing is started
	// twice.
	reported := f.Stats().Reported
	for _, n := range f.Nodes() {
		n.Kill()
		n.Return()
	}
	c.until(func() bool { s := f.Stats(); return s.Opened >= 2*nodes && s.Connected == nodes })
	c.untilReplicas("web", func(phases map[string]int) bool { return phases["running"] == 10 })
	if s := f.Stats(); s.Running != 10 || s.Reported != reported {
		t.Errorf("%d replicas run, and %d were reported again", s.Running, s.Reported-reported)
	}
}

// Killed and silent nodes are offline after a while, and ready again when they are back.
func TestDeadNodesAreOfflineUntilTheyReturn(t *testing.T) {
	const nodes = 20
	c := newCluster(t)
	f := c.fleet(simulated.Options{Nodes: nodes})
	c.untilNodes(func(states map[string]string) bool { return all(states, nodes, "ready") })
	gone := map[string]bool{}
	for i, n := range f.Pick(6) {
		gone[n.Name()] = true
		if i%2 == 0 {
			n.Kill()
		} else {
			n.Pause()
		}
	}
	if picked := f.Pick(nodes); len(picked) != nodes-6 {
		t.Errorf("%d nodes are well", len(picked))
	}
	c.untilNodes(func(states map[string]string) bool {
		for name, state := range states {
			if gone[name] != (state == "offline") {
				return false
			}
		}
		return true
	})
	for _, n := range f.Nodes() {
		n.Return()
	}
	c.untilNodes(func(states map[string]string) bool { return all(states, nodes, "ready") })
}

// When the leader is stopped, nodes switch to another server that the session has
// announced.
func TestNodesFindTheNextLeader(t *testing.T) {
	const nodes = 12
	c := newCluster(t)
	for _, name := range []string{"s2", "s3"} {
		c.start(name, c.token("server", 1))
	}
	c.until(func() bool {
		about, err := c.api.Cluster().GetCluster(c.ctx, &v1.GetClusterRequest{})
		voters := 0
		for _, s := range about.GetStatus().GetServers() {
			if s.GetVoter() && s.GetHealthy() {
				voters++
			}
		}
		return err == nil && voters == 3
	})
	f := c.fleet(simulated.Options{Nodes: nodes})
	c.untilNodes(func(states map[string]string) bool { return all(states, nodes, "ready") })
	c.servers["s1"].stop()
	c.until(func() bool { s := f.Stats(); return s.Opened > nodes && s.Connected == nodes })
	c.untilNodes(func(states map[string]string) bool { return all(states, nodes, "ready") })
}
