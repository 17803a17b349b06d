package server

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Wherever a log is cut off, however often, and however many lines share a time
// stamp: going on at the bookmark passes on every line once and in order.
func TestBookmarkLosesAndDoublesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var log []*v1.LogEntry
		at := begin
		for i := range rapid.IntRange(0, 30).Draw(t, "lines") {
			at = at.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "later")) * time.Nanosecond)
			log = append(log, &v1.LogEntry{Time: timestamppb.New(at), Text: string(rune('a' + i))})
		}
		place := bookmark{request: &v1.LogsRequest{Follow: true, Tail: proto.Int32(1000)}}
		var got []string
		for again := true; again; {
			again = rapid.Bool().Draw(t, "breaks")
			left := len(log)
			if again {
				left = rapid.IntRange(0, len(log)).Draw(t, "after")
			}
			since := place.next().GetSince().AsTime()
			for _, e := range log {
				if e.GetTime().AsTime().Before(since) {
					continue
				}
				if left == 0 {
					break
				}
				left--
				// A note about the log is no line of it, and not there when it is read again.
				if rapid.Bool().Draw(t, "a note") && !place.isNew(&v1.LogEntry{Time: e.GetTime(), Error: "something is missing"}) {
					t.Fatal("a note is not passed on")
				}
				if place.isNew(e) {
					got = append(got, e.GetText())
				}
			}
		}
		if want := texts(log); !slices.Equal(got, want) {
			t.Fatalf("passed on %v, want %v", got, want)
		}
	})
}

// A followed log goes on where it was when the agent comes back.
func TestFollowedLogGoesOnWhenItsAgentIsBack(t *testing.T) {
	c := newCluster(t)
	op := c.as(roleOperator)
	asked := make(chan *v1.OpenLogs, 2)
	// serve sends so many lines, as an agent that has only these yet.
	serve := func(lines int) serveOpen {
		return func(open *v1.Open, stream attachClient) {
			asked <- open.GetLogs()
			for second, line := range []string{"first", "second", "third"}[:lines] {
				sendLine(stream, time.Duration(second)*time.Second, line)
			}
			awaitEnd(stream)
		}
	}
	first := c.work("n1", serve(2))
	c.create(op, workload("web"))
	logs, err := op.Logs(c.ctx, &v1.LogsRequest{Workload: "web", Follow: true, Tail: proto.Int32(5)})
	must(t, err)
	next := func() *v1.LogEntry {
		t.Helper()
		e, err := logs.Recv()
		must(t, err)
		return e
	}
	if a, b := next().GetText(), next().GetText(); a != "first" || b != "second" {
		t.Fatalf("began with %q and %q", a, b)
	}
	first.leave()
	first.work(serve(3)) // soon enough to say nothing of it
	// The played agent sends everything once more; a real one begins at the time that it is asked for.
	if e := next(); e.GetText() != "first" {
		t.Errorf("after the agent is back came %v", e)
	}
	<-asked
	if again := <-asked; again.Tail != nil || !again.GetSince().AsTime().Equal(logStart.Add(time.Second)) {
		t.Errorf("the agent was asked for %v", again)
	}
}
