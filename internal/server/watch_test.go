package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// wantChange receives the next change of a workload.
func wantChange(t *testing.T, watch grpc.ServerStreamingClient[v1.WorkloadChange], change, name string) *v1.Workload {
	t.Helper()
	got, err := watch.Recv()
	must(t, err)
	if got.GetChange() != change || got.GetWorkload().GetMetadata().GetName() != name {
		t.Fatalf("the watch says %s %s, want %s %s", got.GetChange(), got.GetWorkload().GetMetadata().GetName(), change, name)
	}
	return got.GetWorkload()
}

func TestWatchSendsObjectsThenChanges(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	labelled := func(w *v1.Workload) { w.Metadata.Labels = map[string]string{"app": "web"} }
	add := func(w *v1.Workload) {
		t.Helper()
		_, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: w})
		must(t, err)
	}
	add(workload("a", labelled, replicasOf(0)))
	add(workload("hidden", replicasOf(0)))
	watch, err := op.WatchWorkloads(c.ctx, &v1.WatchWorkloadsRequest{Selection: &v1.Selection{Labels: "app=web"}})
	must(t, err)
	wantChange(t, watch, changeAdded, "a")
	wantChange(t, watch, changeSynced, "")

	add(workload("hidden", replicasOf(0), func(w *v1.Workload) { w.Spec.Args = []string{"x"} })) // not visible to the watch
	add(workload("b", labelled, replicasOf(0)))
	wantChange(t, watch, changeAdded, "b")
	add(workload("a", labelled, replicasOf(0), func(w *v1.Workload) { w.Spec.Args = []string{"x"} }))
	wantChange(t, watch, changeChanged, "a")
	add(workload("b", replicasOf(0))) // has lost the label
	if last := wantChange(t, watch, changeRemoved, "b"); last.GetMetadata().GetLabels()["app"] != "web" {
		t.Errorf("what left the selection is shown as %v, want as it last was", last)
	}
	wrong, err := op.WatchWorkloads(c.ctx, &v1.WatchWorkloadsRequest{Selection: &v1.Selection{Labels: "a=b=c"}})
	must(t, err)
	_, err = wrong.Recv()
	wantCode(t, err, codes.InvalidArgument)
}

func TestWatchShowsAWorkloadFromItsFirstReplicaToItsEnd(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	watch, err := op.WatchWorkloads(c.ctx, &v1.WatchWorkloadsRequest{Name: "web"})
	must(t, err)
	wantChange(t, watch, changeSynced, "")
	node := c.join("n1").connect(c.ctx)
	// The node obeys only after the watch has shown the previous phase: a slow watch may skip a phase that has passed.
	obeyUntil := func(desired string) {
		t.Helper()
		for done := false; !done; {
			for _, a := range assignments(t, node).GetAssign() {
				must(t, report(node, a.GetReplica().GetMetadata().GetUid(), obey(a.GetReplica())))
				done = done || a.GetReplica().GetSpec().GetDesired() == desired
			}
		}
	}
	phases := []string{}
	next := func() *v1.WorkloadChange {
		t.Helper()
		got, err := watch.Recv()
		must(t, err)
		if p := got.GetWorkload().GetStatus().GetPhase(); len(phases) == 0 || phases[len(phases)-1] != p {
			phases = append(phases, p)
		}
		return got
	}
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	for next().GetWorkload().GetStatus().GetPhase() != "pending" {
	}
	obeyUntil(spec.DesiredRunning)
	for next().GetWorkload().GetStatus().GetPhase() != "running" {
	}
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	for next().GetWorkload().GetStatus().GetPhase() != "deleting" {
	}
	obeyUntil(spec.DesiredStopped)
	for next().GetChange() != changeRemoved {
	}
	if got := strings.Join(phases, " "); got != "pending running deleting" {
		t.Errorf("the watch showed the phases %s", got)
	}
	if c.Store.Snapshot().Workload(made.GetMetadata().GetUid()) != nil {
		t.Error("the watch says removed before it is")
	}
}

func TestWatchesOfReplicasNodesAndEvents(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	replicas, err := op.WatchReplicas(c.ctx, &v1.WatchReplicasRequest{Workload: "web"})
	must(t, err)
	nodes, err := op.WatchNodes(c.ctx, &v1.WatchNodesRequest{})
	must(t, err)
	if first, err := replicas.Recv(); err != nil || first.GetChange() != changeSynced {
		t.Fatalf("the watch of no replicas begins with %v, %v", first, err)
	}
	if first, err := nodes.Recv(); err != nil || first.GetChange() != changeSynced {
		t.Fatalf("the watch of no nodes begins with %v, %v", first, err)
	}
	c.work("n1", idle)
	for state := ""; state != "ready"; {
		n, err := nodes.Recv()
		must(t, err)
		state = n.GetNode().GetStatus().GetState()
	}
	c.create(op, workload("db")) // not selected
	c.create(op, workload("web"))
	var seen []string
	for phase := ""; phase != spec.PhaseRunning; {
		r, err := replicas.Recv()
		must(t, err)
		phase = r.GetReplica().GetStatus().GetPhase()
		seen = append(seen, r.GetReplica().GetSpec().GetWorkload()+" "+r.GetChange()+" "+phase)
	}
	if got := strings.Join(seen, ", "); got != "web added placed, web changed running" {
		t.Errorf("the watch of replicas says %s", got)
	}
}

// lines returns the JSON lines of a stream over HTTP.
func (c *cluster) lines(ctx context.Context, token, path string) func() map[string]any {
	c.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://cloudless"+path, nil)
	must(c.t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := c.web(nil).Do(r)
	must(c.t, err)
	c.t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s", path, response.Status)
	}
	scanner := bufio.NewScanner(response.Body)
	return func() map[string]any {
		c.t.Helper()
		if !scanner.Scan() {
			c.t.Fatalf("the stream of %s ended: %v", path, scanner.Err())
		}
		var line map[string]any
		must(c.t, json.Unmarshal(scanner.Bytes(), &line))
		return line
	}
}

func TestWatchOverHTTPIsJSONLinesAndEndsWithItsToken(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	next := c.lines(c.ctx, c.newTokenSecret(&v1.CreateTokenRequest{Name: "ci", Role: core.RoleViewer}), "/v1/workloads:watch")
	if line := next(); line["result"].(map[string]any)["change"] != changeSynced {
		t.Fatalf("the first line is %v", line)
	}
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	line := next()["result"].(map[string]any)
	if line["change"] != changeAdded || line["workload"].(map[string]any)["metadata"].(map[string]any)["name"] != "web" {
		t.Errorf("a new workload is the line %v", line)
	}
	_, err = c.as(core.RoleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "ci"})
	must(t, err)
	for {
		if line := next(); line["error"] != nil {
			break
		}
	}
}

// The headers arrive before there is anything to send, and the reason for the end arrives as a line.
func TestStreamOverHTTPIsAnsweredBeforeItsFirstLine(t *testing.T) {
	c := newCluster(t)
	_, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	for _, path := range []string{"/v1/events:watch", "/v1/namespaces/default/workloads/web:logs?follow=true"} {
		next := c.lines(c.ctx, c.newTokenSecret(&v1.CreateTokenRequest{Name: "ci", Role: core.RoleOperator}), path)
		_, err := c.as(core.RoleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "ci"})
		must(t, err)
		line := next()
		for line["error"] == nil {
			line = next() // an event of its own
		}
		if why, _ := line["error"].(map[string]any); !strings.Contains(fmt.Sprint(why["message"]), "revoked") {
			t.Errorf("%s ends with %v", path, line)
		}
	}
}

func TestSlowWatchHasToBeginAgain(t *testing.T) {
	c := newCluster(t)
	started := make(chan struct{})
	lagged := make(chan error, 1)
	go func() {
		lagged <- c.watch(c.ctx, func(*state.Snapshot) error {
			close(started)
			return nil
		}, func(*state.Snapshot, []state.Change) error { return nil })
	}()
	<-started
	// To a watcher, replacing the whole state is the same as falling too far behind.
	saved := &strings.Builder{}
	must(t, c.Store.Snapshot().Save(saved))
	must(t, c.Store.Restore(strings.NewReader(saved.String())))
	wantCode(t, core.StatusOf(<-lagged), codes.Unavailable, "fell too far behind; begin again")
}

func TestPhaseOfAWorkload(t *testing.T) {
	c := newCluster(t)
	current, older := "rev-2", "rev-1"
	replica := func(revision, phase string) *v1.Replica {
		uid := state.NewUID()
		return &v1.Replica{
			Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid, Namespace: "default"},
			Spec:     &v1.ReplicaSpec{WorkloadUid: "w", RevisionUid: revision, NodeUid: "n"},
			Status:   &v1.ReplicaStatus{Phase: phase, Reason: "because"},
		}
	}
	unready := replica(current, spec.PhaseRunning)
	unready.Status.Unready = "It does not listen on port 80 yet."
	for _, one := range []struct {
		want     string
		desired  int32
		deleting bool
		replicas []*v1.Replica
		reason   bool
	}{
		{want: "pending", desired: 1, replicas: []*v1.Replica{unready}, reason: true},
		{want: "degraded", desired: 2, replicas: []*v1.Replica{unready, replica(current, spec.PhaseRunning)}, reason: true},
		{want: "stopped"},
		{want: "pending", desired: 1},
		{want: "pending", desired: 1, replicas: []*v1.Replica{replica(current, spec.PhasePreparing)}},
		{want: "running", desired: 1, replicas: []*v1.Replica{replica(current, spec.PhaseRunning)}},
		{want: "degraded", desired: 2, replicas: []*v1.Replica{replica(current, spec.PhaseRunning)}},
		{want: "running", desired: 1, replicas: []*v1.Replica{replica(older, spec.PhaseRunning)}},
		{want: "degraded", desired: 2, replicas: []*v1.Replica{replica(older, spec.PhaseRunning)}},
		{want: "failed", desired: 1, replicas: []*v1.Replica{replica(current, spec.PhaseBackoff)}, reason: true},
		{want: "failed", desired: 1, replicas: []*v1.Replica{replica(current, spec.PhaseFailed)}, reason: true},
		{want: "completed", desired: 1, replicas: []*v1.Replica{replica(current, spec.PhaseCompleted)}},
		{want: "deleting", deleting: true, desired: 1, replicas: []*v1.Replica{replica(current, spec.PhaseRunning)}},
		// The end of replicas of an older revision does not count.
		{want: "pending", desired: 1, replicas: []*v1.Replica{replica(older, spec.PhaseCompleted)}},
		{want: "running", desired: 1, replicas: []*v1.Replica{replica(older, spec.PhaseFailed), replica(current, spec.PhaseRunning)}},
	} {
		store := state.New()
		var b state.Batch
		b.Create(readyNode())
		for _, r := range one.replicas {
			b.Create(proto.CloneOf(r))
		}
		_, err := store.Apply(1, b.Transaction(c.Now()))
		must(t, err)
		w := &v1.Workload{
			Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"},
			Spec:     &v1.WorkloadSpec{Replicas: proto.Int32(one.desired)}, Status: &v1.WorkloadStatus{RevisionUid: current},
		}
		if one.deleting {
			w.Metadata.DeleteTime = timestamppb.New(c.Now())
		}
		got := c.presentWorkload(store.Snapshot(), w, false).GetStatus()
		if got.GetPhase() != one.want || (got.GetReason() != "") != one.reason {
			t.Errorf("%v is %q (%s), want %q", one.replicas, got.GetPhase(), got.GetReason(), one.want)
		}
	}
}

// readyNode is the node of the replicas in these tests.
func readyNode() *v1.Node {
	return &v1.Node{Metadata: &v1.Metadata{Uid: "n", Name: "box"}, Status: &v1.NodeStatus{State: spec.NodeReady}}
}

// A service that exits with code 0 has not failed, but it does not run either.
func TestServiceThatKeepsExitingReportsItsExit(t *testing.T) {
	c := newCluster(t)
	var b state.Batch
	b.Create(readyNode())
	b.Create(&v1.Replica{
		Metadata: &v1.Metadata{Uid: "r", Name: "web-1", Namespace: "default"},
		Spec:     &v1.ReplicaSpec{WorkloadUid: "w", RevisionUid: "rev-1", NodeUid: "n"},
		Status:   &v1.ReplicaStatus{Phase: spec.PhaseBackoff, LastExit: &v1.Exit{}},
	})
	store := state.New()
	_, err := store.Apply(1, b.Transaction(c.Now()))
	must(t, err)
	w := &v1.Workload{
		Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"},
		Spec:     &v1.WorkloadSpec{Replicas: proto.Int32(1)}, Status: &v1.WorkloadStatus{RevisionUid: "rev-1"},
	}
	if got := c.presentWorkload(store.Snapshot(), w, false).GetStatus().GetReason(); got != "replica web-1: It exited with code 0." {
		t.Errorf("the reason is %q", got)
	}
}

func TestPendingWorkloadSaysWhyForEveryNode(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", idle)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("big", func(w *v1.Workload) {
		w.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "64"}}
		w.Spec.Placement = &v1.Placement{Labels: map[string]string{"disk": "ssd"}}
	})})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOn("") {
			return r.GetStatus().GetReason() != ""
		}
		return false
	})
	w, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "big"})
	must(t, err)
	why := w.GetStatus().GetUnplaced()
	if len(why) != 1 || why[0].GetNode() != "n1" || !strings.Contains(why[0].GetReason(), "64") || !strings.Contains(why[0].GetReason(), "disk=ssd") {
		t.Errorf("the workload is pending because of %v", why)
	}

	// The stored reason is from another moment. The API shows the command that explains the present one.
	list, err := op.ListReplicas(c.ctx, &v1.ListReplicasRequest{Workload: "big"})
	must(t, err)
	shown := list.GetItems()[0]
	stored := c.Store.Snapshot().Replica(shown.GetMetadata().GetUid()).GetStatus().GetReason()
	if !strings.HasPrefix(stored, "1 replica of big cannot be placed: n1: ") {
		t.Errorf("the stored reason is %q", stored)
	}
	if want := "cannot be placed (details: cloudless explain big)"; shown.GetStatus().GetReason() != want {
		t.Errorf("the replica is pending because of %q, want %q", shown.GetStatus().GetReason(), want)
	}
}
