package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// place is the position after a number of lines.
func place(lines int) string { return fmt.Sprintf("1.00000001.00000001.%d", lines) }

// serveLines is an agent whose log has these lines and never ends. Each line is older than the one before it, as if the
// clock was set back all the time.
func serveLines(asked chan<- *v1.OpenLogs, lines ...string) serveOpen {
	return func(open *v1.Open, stream attachClient) {
		logs := open.GetLogs()
		asked <- logs
		from := 0
		if logs.GetAfter() != "" {
			from, _ = strconv.Atoi(logs.GetAfter()[strings.LastIndexByte(logs.GetAfter(), '.')+1:])
		}
		send := func(e *v1.LogEntry) { _ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Log{Log: e}}) }
		if logs.GetMark() {
			send(&v1.LogEntry{Mark: true, Position: place(from)})
		}
		for i, line := range lines[from:] {
			send(&v1.LogEntry{
				Time: timestamppb.New(logStart.Add(-time.Duration(from+i) * time.Hour)), Stream: "stdout",
				Text: line, Position: place(from + i + 1),
			})
		}
		awaitEnd(stream)
	}
}

func nextEntry(t *testing.T, logs grpc.ServerStreamingClient[v1.LogEntry]) *v1.LogEntry {
	t.Helper()
	e, err := logs.Recv()
	must(t, err)
	return e
}

// When the agent comes back, a followed log continues after its last line, whatever the node's clock says.
func TestFollowedLogResumesByPosition(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	asked := make(chan *v1.OpenLogs, 2)
	first := c.work("n1", serveLines(asked, "first", "second"))
	c.create(op, workload("web"))
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true, Tail: proto.Int32(5)})
	must(t, err)
	if a, b := nextEntry(t, logs).GetText(), nextEntry(t, logs).GetText(); a != "first" || b != "second" {
		t.Fatalf("began with %q and %q", a, b)
	}
	first.leave()
	first.work(serveLines(asked, "first", "second", "third")) // within the quiet period
	if e := nextEntry(t, logs); e.GetText() != "third" {
		t.Errorf("after the agent is back came %v", e)
	}
	<-asked
	if again := <-asked; again.GetAfter() != place(2) {
		t.Errorf("the agent was asked for %v", again)
	}
}

// An older agent sends no positions, so its log cannot be resumed. The reader learns that, and gets no line twice.
func TestFollowedLogOfAnOlderAgentMayMissLines(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	asked := make(chan *v1.OpenLogs, 2)
	older := func(open *v1.Open, stream attachClient) {
		asked <- open.GetLogs()
		_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Log{Log: &v1.LogEntry{Stream: "stdout", Text: "line"}}})
		awaitEnd(stream)
	}
	first := c.work("n1", older)
	c.create(op, workload("web"))
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true})
	must(t, err)
	nextEntry(t, logs)
	first.leave()
	first.work(older)
	if e := nextEntry(t, logs); !strings.Contains(e.GetError(), "lines may be missing here") {
		t.Errorf("after the agent was away came %v", e)
	}
	<-asked
	if again := <-asked; again.Tail == nil || again.GetTail() != 0 {
		t.Errorf("the agent was asked for %v", again)
	}
}

// A reader that resumes sends one position for each replica. Replicas that it has not seen are read from the beginning:
// the tail or the time of the first call would leave out lines that were printed since.
func TestLogsResumeAtOnePositionForEachReplica(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	asked := make(chan *v1.OpenLogs, 3)
	c.work("n1", serveLines(asked, "first", "second"))
	made := c.create(op, workload("web", replicasOf(3)))
	replicas := c.running(made.GetMetadata().GetUid(), 3)
	resume := &v1.LogPositions{Replicas: map[string]string{
		replicas[0].GetMetadata().GetName(): place(1),
		replicas[1].GetMetadata().GetName(): "start",
	}}
	since := timestamppb.New(logStart)
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true, Tail: proto.Int32(0), Since: since, Resume: resume})
	must(t, err)
	byReplica := map[string]*v1.OpenLogs{}
	for range 3 {
		open := <-asked
		byReplica[open.GetReplicaUid()] = open
	}
	known, begun, unseen := byReplica[replicas[0].GetMetadata().GetUid()], byReplica[replicas[1].GetMetadata().GetUid()], byReplica[replicas[2].GetMetadata().GetUid()]
	if known.GetAfter() != place(1) || known.Tail != nil || known.GetSince() != nil {
		t.Errorf("for the replica that was read, the node was asked for %v", known)
	}
	if begun.GetAfter() != "" || begun.Tail == nil || !proto.Equal(begun.GetSince(), since) {
		t.Errorf("for the replica without output, the node was asked for %v", begun)
	}
	if unseen.GetAfter() != "" || unseen.Tail != nil || unseen.GetSince() != nil {
		t.Errorf("for the new replica, the node was asked for %v", unseen)
	}
	var got []string
	for range 5 {
		got = append(got, nextEntry(t, logs).GetText())
	}
	slices.Sort(got)
	if want := []string{"first", "first", "second", "second", "second"}; !slices.Equal(got, want) {
		t.Errorf("the log continues with %v", got)
	}
	_, err = recvOne(op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Resume: &v1.LogPositions{Replicas: map[string]string{"web-x": "yesterday"}}}))
	wantCode(t, err, codes.InvalidArgument, `"yesterday" is not a position in a log`)
}

// The first marks name all replicas, even those whose nodes do not answer. The next ones say where each log begins.
func TestMarksPrecedeAllLines(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", serveLines(make(chan *v1.OpenLogs, 1), "first"))
	made := c.create(op, workload("web"))
	name := c.running(made.GetMetadata().GetUid(), 1)[0].GetMetadata().GetName()
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true, Marks: true})
	must(t, err)
	for _, want := range []*v1.LogEntry{
		{Replica: name, Mark: true, Position: "start"},
		{Replica: name, Mark: true, Position: place(0)},
		{Replica: name, Time: timestamppb.New(logStart), Stream: "stdout", Text: "first", Position: place(1)},
	} {
		if got := nextEntry(t, logs); !proto.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

// A node has no log of a replica that it has not started. That is an empty log and no error. If the replica has run, a
// missing log is an error.
func TestLogOfAReplicaThatNeverRanIsEmpty(t *testing.T) {
	c := newCluster(t)
	op, node := c.as(core.RoleOperator), c.join("n1")
	stream := node.connect(c.ctx)
	assignments(t, stream)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	r := assignments(t, stream).GetAssign()[0].GetReplica()
	// read returns what a reader gets when the node answers that it has no log.
	read := func() []*v1.LogEntry {
		logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web"})
		must(t, err)
		var open *v1.Open
		for open == nil {
			down, err := stream.Recv()
			must(t, err)
			open = down.GetOpen()
		}
		attached, err := node.Attach(c.ctx)
		must(t, err)
		must(t, attached.Send(&v1.AttachUp{Message: &v1.AttachUp_Id{Id: open.GetId()}}))
		must(t, attached.Send(&v1.AttachUp{Message: &v1.AttachUp_Error{Error: "no log of it"}}))
		return all(t, logs)
	}
	if got := read(); len(got) != 0 {
		t.Errorf("before it runs, its log has %v", got)
	}
	must(t, report(stream, r.GetMetadata().GetUid(), obey(r)))
	c.running(r.GetSpec().GetWorkloadUid(), 1)
	if got := read(); len(got) != 1 || !strings.Contains(got[0].GetError(), "no log of it") {
		t.Errorf("when it runs, its log has %v", got)
	}
}
