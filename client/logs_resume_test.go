package client_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// logOfServers is the output of replicas, which any server sends from the requested position. Its servers stop after a
// number of entries.
type logOfServers struct {
	lines map[string]int // of each replica
	stops []int          // after how many entries each server stops; the last one stays
}

// serve sends the entries of all replicas in turn, with meaningless times.
func (l *logOfServers) serve(asked *cloudlessv1.LogsRequest, s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
	left := -1
	if len(l.stops) > 0 {
		left, l.stops = l.stops[0], l.stops[1:]
	}
	gone := status.Error(codes.Unavailable, "the server stops")
	send := func(e *cloudlessv1.LogEntry) error {
		if left == 0 {
			return gone
		}
		left--
		return s.Send(e)
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	next := map[string]int{}
	for replica := range l.lines {
		next[replica], _ = strconv.Atoi(asked.GetResume().GetReplicas()[replica])
		if !asked.GetMarks() {
			return status.Error(codes.InvalidArgument, "without marks nothing can be resumed")
		}
		if err := send(&cloudlessv1.LogEntry{Replica: replica, Mark: true, Position: strconv.Itoa(next[replica])}); err != nil {
			return err
		}
	}
	for more := true; more; {
		more = false
		for replica, lines := range l.lines {
			if i := next[replica]; i < lines {
				more, next[replica] = true, i+1
				err := send(&cloudlessv1.LogEntry{
					Time: timestamppb.New(time.Unix(int64(1000-i*7%5), 0)), Replica: replica, Text: strconv.Itoa(i), Position: strconv.Itoa(i + 1),
				})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Wherever servers stop, and whatever the times of lines: each line of each replica comes once, in order.
func TestFollowedLogResumesByPosition(t *testing.T) {
	srv := &workloads{}
	c := srv.dial(t)
	want := []string{"a 0", "a 1", "a 2", "b 0", "b 1", "b 2", "b 3"}
	for stop := range len(want) + 2 { // with two marks
		log := &logOfServers{lines: map[string]int{"a": 3, "b": 4}, stops: []int{stop, stop / 2}}
		srv.logs = func(s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error { return log.serve(srv.asked, s) }
		var got []string
		for entry, err := range c.LogEntries(t.Context(), &cloudlessv1.LogsRequest{Workload: "web", Follow: true, Tail: new(int32)}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, entry.GetReplica()+" "+entry.GetText())
		}
		slices.SortStableFunc(got, func(a, b string) int { return int(a[0]) - int(b[0]) }) // replicas come in any order
		if !slices.Equal(got, want) {
			t.Errorf("servers go away after %d and %d entries: got %q, want %q", stop, stop/2, got, want)
		}
	}
}
