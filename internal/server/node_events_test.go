package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// nodeEvents returns the events that nodes have reported, newest first.
func nodeEvents(snap *state.Snapshot) (list []*v1.Event) {
	for e := range snap.Events("") {
		if strings.HasPrefix(e.GetSpec().GetActor(), "node/") && e.GetSpec().GetReason() != "Started" {
			list = append(list, e)
		}
	}
	return list
}

func reportEvents(t *testing.T, stream sessionClient, events ...*v1.EventReport) {
	t.Helper()
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Report{Report: &v1.Report{Events: events}}}))
}

// The server shortens long messages and ignores events about replicas of other nodes.
func TestNodeReportsEventsAboutItselfAndItsReplicas(t *testing.T) {
	c := newCluster(t)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		for uid, node := range map[string]string{"mine": m.uid(), "foreign": "another"} {
			b.Create(&v1.Replica{
				Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid, Namespace: "default"},
				Spec:     &v1.ReplicaSpec{NodeUid: node}, Status: &v1.ReplicaStatus{Phase: "running"},
			})
		}
	})
	reportEvents(t, stream,
		&v1.EventReport{Severity: "warning", Reason: "Lies", Message: "x", ReplicaUid: "foreign"},
		&v1.EventReport{Severity: "warning", Reason: "Lies", Message: "x", ReplicaUid: "nobody"},
		&v1.EventReport{Severity: "warning", Reason: "Obstructed", Message: strings.Repeat("x", 4000)},
		&v1.EventReport{Severity: "info", Reason: "Mended", Message: "over", ReplicaUid: "mine"})
	var list []*v1.Event
	c.until(func(snap *state.Snapshot) bool { list = nodeEvents(snap); return len(list) >= 2 })
	if len(list) != 2 {
		t.Fatalf("the events are %v", list)
	}
	about, node := list[0].GetSpec(), list[1].GetSpec()
	if about.GetReason() != "Mended" {
		about, node = node, about
	}
	if about.GetObjectName() != "web-mine" || about.GetSeverity() != "info" || about.GetActor() != "node/n1" {
		t.Errorf("about the replica: %v", about)
	}
	if node.GetObjectName() != "n1" || node.GetSeverity() != "warning" || len(node.GetMessage()) > 1100 {
		t.Errorf("about the node: %v", node)
	}
}

func TestEventsOfANodeAreLimited(t *testing.T) {
	const burst = 32
	c := newCluster(t)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	for range 10 {
		var many []*v1.EventReport
		for range 50 {
			many = append(many, &v1.EventReport{Severity: "info", Reason: "Noise", Message: "again"})
		}
		reportEvents(t, stream, many...)
	}
	reportEvents(t, stream, &v1.EventReport{Severity: "loud", Reason: "Noise"})
	wantCode(t, ending(stream), codes.InvalidArgument)
	var count int
	c.until(func(snap *state.Snapshot) bool { count = len(nodeEvents(snap)); return count >= burst })
	if count > burst+5 {
		t.Errorf("%d of 500 events were written", count)
	}
}
