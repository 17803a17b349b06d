package cli

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cluster) CordonNode(ctx context.Context, r *cloudlessv1.CordonNodeRequest) (*cloudlessv1.Node, error) {
	found, err := c.GetNode(ctx, &cloudlessv1.GetNodeRequest{Name: r.GetName()})
	if err != nil {
		return nil, err
	}
	n := proto.CloneOf(found)
	n.Spec.Availability, n.Spec.AvailabilityReason, n.Status.State = "cordoned", r.GetReason(), "cordoned"
	return n, nil
}

func (c *cluster) UncordonNode(ctx context.Context, r *cloudlessv1.UncordonNodeRequest) (*cloudlessv1.Node, error) {
	return c.GetNode(ctx, &cloudlessv1.GetNodeRequest{Name: r.GetName()})
}

// DrainNode drains the box, on which all replicas of the cluster are.
func (c *cluster) DrainNode(_ context.Context, r *cloudlessv1.DrainNodeRequest) (*cloudlessv1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastDrain = r
	n := proto.CloneOf(box)
	n.Spec.Availability, n.Status.State = "draining", "draining"
	n.Spec.Drain = &cloudlessv1.Drain{Replicas: int32(len(c.replicas))}
	for _, replica := range c.replicas {
		n.Status.Departing = append(n.Status.Departing, &cloudlessv1.DepartingReplica{
			Namespace: "default", Workload: "web", Replica: replica.GetMetadata().GetName(), Reason: "web needs 2 serving replicas (minAvailable) and has 2; there is no other node", Blocked: true,
		})
	}
	c.drained = n
	return n, nil
}

// drainedBox is a cluster with two replicas of web on its node.
func drainedBox(t *testing.T) *cluster {
	c := newCluster(t)
	c.replicas = nil
	c.put(&cloudlessv1.Workload{Metadata: &cloudlessv1.Metadata{Name: "web", Namespace: "default"}, Spec: &cloudlessv1.WorkloadSpec{Replicas: proto.Int32(2)}})
	for _, name := range []string{"web-1", "web-2"} {
		c.replicas = append(c.replicas, &cloudlessv1.Replica{
			Metadata: &cloudlessv1.Metadata{Uid: "uid-" + name, Name: name, Namespace: "default"},
			Spec:     &cloudlessv1.ReplicaSpec{Workload: "web", Node: "box"},
			Status:   &cloudlessv1.ReplicaStatus{Phase: spec.PhaseRunning},
		})
	}
	return c
}

// drainTime is how long a drain took.
var drainTime = regexp.MustCompile(`in \d+s:`)

// leaves sends how a replica leaves its node.
func leaves(r *cloudlessv1.Replica, send func(*cloudlessv1.Replica)) {
	r = proto.CloneOf(r)
	r.Spec.Desired = spec.DesiredStopped
	send(r)
	r = proto.CloneOf(r)
	r.Status.Phase = spec.PhaseStopped
	send(r)
}

func TestDrainShowsReplicasUntilTheNodeIsEmpty(t *testing.T) {
	c := drainedBox(t)
	c.tells(func(send func(*cloudlessv1.Replica)) {
		leaves(c.replicas[0], send)
		leaves(c.replicas[1], send)
	})
	got := c.run(t.Context(), "", "node", "drain", "box", "--grace", "30s", "--reason", "new disk")
	want := `web-1: web needs 2 serving replicas (minAvailable) and has 2; there is no other node
web-2: web needs 2 serving replicas (minAvailable) and has 2; there is no other node
web-1: it leaves
web-1: it is gone
web-2: it leaves
web-2: it is gone
node box is drained in TIME: 2 replicas moved
`
	if got.code != 0 || drainTime.ReplaceAllString(got.stdout, "in TIME:") != want || got.stderr != "" {
		t.Errorf("exit code %d and\n%s%s\nwant\n%s", got.code, got.stdout, got.stderr, want)
	}
	if r := c.lastDrain; r.GetGrace() != "30s" || r.GetTimeout() != "10m" || r.GetForce() || r.GetReason() != "new disk" {
		t.Errorf("the request is %v", r)
	}
	got = c.run(t.Context(), "", "node", "drain", "box", "--force", "--timeout", "0", "-o", "json")
	if got.code != 0 || !strings.Contains(got.stdout, `"state": "draining"`) || strings.Contains(got.stdout, "it leaves") {
		t.Errorf("it prints %q and exits with %d", got.stdout, got.code)
	}
	if r := c.lastDrain; !r.GetForce() || r.GetTimeout() != "0s" {
		t.Errorf("the request is %v", r)
	}
}

// A forced drain stops replicas even if no other node takes them.
func TestDrainTellsWhatHasNoPlace(t *testing.T) {
	c := drainedBox(t)
	c.standing = func(*cloudlessv1.Workload) *cloudlessv1.WorkloadStatus {
		return &cloudlessv1.WorkloadStatus{Phase: "degraded", Desired: 2, Running: 1, Pending: 1}
	}
	c.tells(func(send func(*cloudlessv1.Replica)) {
		leaves(c.replicas[0], send)
		leaves(c.replicas[1], send)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.replicas = append(c.replicas, &cloudlessv1.Replica{
			Metadata: &cloudlessv1.Metadata{Uid: "uid-web-3", Name: "web-3", Namespace: "default"},
			Spec:     &cloudlessv1.ReplicaSpec{Workload: "web"}, Status: &cloudlessv1.ReplicaStatus{Phase: spec.PhasePending},
		})
	})
	got := c.run(t.Context(), "", "node", "drain", "box", "--force")
	if want := "node box is drained in TIME: 1 replica moved, 1 replica has no place: see: cloudless explain web\n"; got.code != 0 || !strings.HasSuffix(drainTime.ReplaceAllString(got.stdout, "in TIME:"), want) {
		t.Errorf("exit code %d and\n%s%s\nwant\n%s", got.code, got.stdout, got.stderr, want)
	}
}

func TestDrainNamesWhatIsLeftAfterTheTimeout(t *testing.T) {
	c := drainedBox(t)
	c.tells(func(send func(*cloudlessv1.Replica)) {})
	got := c.run(t.Context(), "", "node", "drain", "box", "--timeout", "50ms")
	for _, want := range []string{
		"node box is not empty after 50ms: 2 replicas left: web-1: web needs 2 serving replicas (minAvailable)",
		"; add a machine, lower minAvailable, or drain it with --force; the node keeps draining until: cloudless node uncordon box",
	} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, got.stderr)
		}
	}
	if got.code != 3 {
		t.Errorf("the exit code is %d", got.code)
	}
	got = c.run(t.Context(), "", "node", "get", "box")
	if !strings.Contains(got.stdout, "DEPARTING  BECAUSE\nweb-1      web needs 2 serving replicas") {
		t.Errorf("node get shows\n%s", got.stdout)
	}
}

func TestInterruptedDrainGoesOn(t *testing.T) {
	c := drainedBox(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.tells(func(func(*cloudlessv1.Replica)) { cancel() })
	got := c.run(ctx, "", "node", "drain", "box")
	if want := "Stopped waiting. The drain of node box goes on; end it with: cloudless node uncordon box\n"; got.code != 130 || !strings.HasSuffix(got.stderr, want) {
		t.Errorf("exit code %d and\n%s", got.code, got.stderr)
	}
	c.run(t.Context(), "", "node", "drain", "box", "--detach").expect(t, 0, "node box drained in the background; it is draining\n", "")
}

// Events of a name are those of a workload. If only another object has that name, the answer says how to ask for it.
func TestEventsNameTheObjectOfAnotherKind(t *testing.T) {
	c := newCluster(t)
	drained := event("e1", "Drained", "it is empty")
	drained.Spec.ObjectKind, drained.Spec.ObjectName = "Node", "n3"
	c.events = []*cloudlessv1.Event{drained}
	c.run(t.Context(), "", "events", "--for", "n3").expect(t, 0, "", "no events about workload n3, but there are events of node/n3: cloudless events --for node/n3\n")
	if got := c.run(t.Context(), "", "events", "--for", "node/n3"); !strings.Contains(got.stdout, "it is empty") {
		t.Errorf("%+v", got)
	}
	c.events = nil
	c.run(t.Context(), "", "events", "--for", "n3").expect(t, 0, "", "no events about n3; those of long ago are not kept\n")
}
