package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

var logStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func sendLine(stream attachClient, after time.Duration, text string) {
	_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Log{Log: &v1.LogEntry{
		Time: timestamppb.New(logStart.Add(after)), Stream: "stdout", Text: text, Position: place(int(after/time.Second) + 1),
	}}})
}

// endLog ends a log after its last line.
func endLog(stream attachClient) {
	_ = stream.CloseSend()
	awaitEnd(stream)
}

// all receives until the stream ends.
func all(t *testing.T, stream grpc.ServerStreamingClient[v1.LogEntry]) []*v1.LogEntry {
	t.Helper()
	var entries []*v1.LogEntry
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return entries
		}
		must(t, err)
		entries = append(entries, e)
	}
}

func texts(entries []*v1.LogEntry) []string {
	var lines []string
	for _, e := range entries {
		lines = append(lines, e.GetText())
	}
	return lines
}

func TestLogsOfAllReplicasAreMergedByTime(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	asked := make(chan *v1.OpenLogs, 8)
	// The first machine writes the even lines, the second one the odd ones.
	machine := func(lines ...int) serveOpen {
		return func(open *v1.Open, stream attachClient) {
			asked <- open.GetLogs()
			for _, n := range lines {
				sendLine(stream, time.Duration(n)*time.Second, string(rune('a'+n)))
			}
			endLog(stream)
		}
	}
	c.work("n1", machine(0, 2, 4))
	c.work("n2", machine(1, 3, 5))
	made := c.create(op, workload("web", replicasOf(2)))
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Tail: proto.Int32(7), Since: timestamppb.New(logStart)})
	must(t, err)
	entries := all(t, logs)
	if want := []string{"a", "b", "c", "d", "e", "f"}; !slices.Equal(texts(entries), want) {
		t.Errorf("merged to %v, want %v", texts(entries), want)
	}
	from := map[string]bool{}
	for _, e := range entries {
		from[e.GetReplica()] = true
	}
	for _, r := range c.running(made.GetMetadata().GetUid(), 2) {
		if !from[r.GetMetadata().GetName()] {
			t.Errorf("no line says that it is from %s", r.GetMetadata().GetName())
		}
		if got := <-asked; got.GetTail() != 7 || !got.GetSince().AsTime().Equal(logStart) || got.GetFollow() {
			t.Errorf("the node was asked for %v", got)
		}
	}
}

func TestFollowUntilThePastShowsExistingLines(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	asked := make(chan *v1.OpenLogs, 1)
	c.work("n1", func(open *v1.Open, stream attachClient) {
		asked <- open.GetLogs()
		sendLine(stream, 0, "before")
		endLog(stream)
	})
	c.create(op, workload("web"))
	until := timestamppb.New(logStart.Add(time.Hour))
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true, Until: until})
	must(t, err)
	if got := texts(all(t, logs)); !slices.Equal(got, []string{"before"}) {
		t.Fatalf("the log has %q", got)
	}
	if got := <-asked; got.GetFollow() || !got.GetUntil().AsTime().Equal(until.AsTime()) {
		t.Errorf("the node was asked for %v", got)
	}
}

func TestUnavailableLogsAreReported(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	away := c.work("n1", idle)
	c.work("n2", func(_ *v1.Open, stream attachClient) {
		sendLine(stream, 0, "before")
		_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Error{Error: "its disk is gone"}})
		awaitEnd(stream)
	})
	c.create(op, workload("web", replicasOf(2)))
	away.leave()
	c.disconnected(away.uid())
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web"})
	must(t, err)
	var said string
	for _, e := range all(t, logs) {
		said += e.GetText() + e.GetError() + "\n"
	}
	for _, want := range []string{"before", "its disk is gone", "node n1 is not connected"} {
		if !strings.Contains(said, want) {
			t.Errorf("the log says %q, not %q", said, want)
		}
	}
	_, err = recvOne(op.Logs(c.ctx, &v1.LogsRequest{Workload: "nope"}))
	wantCode(t, err, codes.NotFound, "workload nope does not exist")
	_, err = recvOne(op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Replica: "web-nope", Follow: true}))
	wantCode(t, err, codes.NotFound, "workload web has no replica web-nope")
	_, err = recvOne(op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Since: timestamppb.New(logStart.Add(time.Minute)), Until: timestamppb.New(logStart)}))
	wantCode(t, err, codes.InvalidArgument, "until: ")
}

func recvOne[T any](stream grpc.ServerStreamingClient[T], err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

func TestFollowedLogsIncludeNewReplicasAndEndWithTheWorkload(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", func(open *v1.Open, stream attachClient) {
		sendLine(stream, 0, open.GetLogs().GetReplicaUid())
		// The log of a replica ends with the replica.
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		for snap, feed := c.Store.Subscribe(); spec.Live(snap.Replica(open.GetLogs().GetReplicaUid()).GetStatus().GetPhase()); snap = c.Store.Snapshot() {
			if _, err := feed.Next(ctx); err != nil {
				return
			}
		}
		endLog(stream)
	})
	made := c.create(op, workload("web"))
	first := c.running(made.GetMetadata().GetUid(), 1)[0].GetMetadata().GetUid()
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true, Tail: proto.Int32(0)})
	must(t, err)
	next := func() string {
		t.Helper()
		e, err := logs.Recv()
		must(t, err)
		return e.GetText()
	}
	if got := next(); got != first {
		t.Fatalf("the first line is from %s, want %s", got, first)
	}
	_, err = op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(2)})
	must(t, err)
	if got := next(); got == first || c.Store.Snapshot().Replica(got) == nil {
		t.Fatalf("the second line is from %s, want the new replica", got)
	}
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	if rest := all(t, logs); len(rest) != 0 {
		t.Errorf("the end has %v", rest)
	}
	// The logs of ended replicas are kept.
	kept, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Ended: true})
	must(t, err)
	if lines := texts(all(t, kept)); len(lines) != 2 || !slices.Contains(lines, first) {
		t.Errorf("the logs of the deleted workload are %v", lines)
	}
}

func TestFollowedLogSurvivesADeadAgent(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	dying := c.work("n1", func(_ *v1.Open, stream attachClient) {
		sendLine(stream, 0, "dying")
		awaitEnd(stream)
	})
	proceed := make(chan struct{})
	c.work("n2", func(_ *v1.Open, stream attachClient) {
		sendLine(stream, 0, "healthy")
		<-proceed
		sendLine(stream, 0, "still healthy")
		awaitEnd(stream)
	})
	c.create(op, workload("web", replicasOf(2)))
	ctx, leave := context.WithCancel(c.ctx)
	defer leave()
	logs, err := op.Logs(ctx, &v1.LogsRequest{Workload: "web", Follow: true})
	must(t, err)
	for range 2 {
		_, err := logs.Recv()
		must(t, err)
	}
	dying.leave()
	if e, err := logs.Recv(); err != nil || e.GetError() != "node n1 does not answer; its log continues when the node is back" {
		t.Fatalf("after the agent died came %v, %v", e, err)
	}
	close(proceed)
	if e, err := logs.Recv(); err != nil || e.GetText() != "still healthy" {
		t.Errorf("after the agent died came %v, %v", e, err)
	}
}

func TestStreamIsReleasedWhenTheReaderLeaves(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	released := make(chan struct{})
	c.work("n1", func(_ *v1.Open, stream attachClient) {
		sendLine(stream, 0, "x")
		awaitEnd(stream)
		close(released)
	})
	c.create(op, workload("web"))
	ctx, leave := context.WithCancel(c.ctx)
	logs, err := op.Logs(ctx, &v1.LogsRequest{Workload: "web", Follow: true})
	must(t, err)
	_, err = logs.Recv()
	must(t, err)
	leave()
	select {
	case <-released:
	case <-c.ctx.Done():
		t.Fatal("the node still serves a reader that has left")
	}
}

func TestNodeCannotTakeTheStreamOfAnother(t *testing.T) {
	c := newCluster(t)
	op, intruder := c.as(core.RoleOperator), c.join("intruder")
	owner := c.join("owner")
	stream := owner.connect(c.ctx)
	assignments(t, stream)
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	r := assignments(t, stream).GetAssign()[0].GetReplica()
	must(t, report(stream, r.GetMetadata().GetUid(), obey(r)))
	c.running(made.GetMetadata().GetUid(), 1)
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web"})
	must(t, err)
	if first := assignments(t, stream); len(first.GetAssign()) != 1 {
		t.Errorf("before it is asked for a log, the agent is told %v", first)
	}
	down, err := stream.Recv()
	must(t, err)
	id := &v1.AttachUp{Message: &v1.AttachUp_Id{Id: down.GetOpen().GetId()}}

	theirs, err := intruder.Attach(c.ctx)
	must(t, err)
	must(t, theirs.Send(id))
	_, err = theirs.Recv()
	wantCode(t, err, codes.NotFound, "nobody waits for this stream")

	// The server still waits for the node that it asked.
	ours, err := owner.Attach(c.ctx)
	must(t, err)
	must(t, ours.Send(id))
	sendLine(ours, 0, "from the owner")
	endLog(ours)
	if got := texts(all(t, logs)); !slices.Equal(got, []string{"from the owner"}) {
		t.Errorf("the log has %v", got)
	}
}

// A removed node has taken its logs along. That is an error only if the request names a replica on it.
func TestLogsOfRemovedNodesAreLeftOut(t *testing.T) {
	c := newCluster(t)
	op, admin := c.as(core.RoleOperator), c.as(core.RoleAdmin)
	line := func(text string) serveOpen {
		return func(_ *v1.Open, stream attachClient) {
			sendLine(stream, 0, text)
			endLog(stream)
		}
	}
	c.work("n1", line("from n1"))
	c.work("n2", line("from n2"))
	made := c.create(op, workload("web", replicasOf(2)))
	var removed string
	for _, r := range c.running(made.GetMetadata().GetUid(), 2) {
		if r.GetSpec().GetNode() == "n2" {
			removed = r.GetMetadata().GetName()
		}
	}
	_, err := admin.DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "n2", Force: true})
	must(t, err)
	for _, request := range []*v1.LogsRequest{{Workload: "web"}, {Workload: "web", Ended: true}} {
		logs, err := op.Logs(c.ctx, request)
		must(t, err)
		for _, e := range all(t, logs) {
			if e.GetText() != "from n1" {
				t.Errorf("%v: the log has %v", request, e)
			}
		}
	}
	_, err = recvOne(op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Replica: removed}))
	wantCode(t, err, codes.FailedPrecondition, "it was on node n2, which was removed from the cluster")
}
