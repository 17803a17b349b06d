package client

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// TestFollowedLogGoesOnWithoutLossOrDouble plays a log to a follower that is interrupted after every entry and given
// everything again from the time it asks for on.
func TestFollowedLogGoesOnWithoutLossOrDouble(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	var log []*cloudlessv1.LogEntry
	for i, step := range []int{0, 1, 1, 1, 2, 5, 5, 6} { // several entries share a time
		for _, replica := range []string{"a", "b"} {
			log = append(log, &cloudlessv1.LogEntry{
				Time: timestamppb.New(start.Add(time.Duration(step) * time.Second)), Replica: replica, Text: fmt.Sprintf("%s-%d", replica, i),
			})
		}
	}
	for stop := 1; stop < len(log); stop++ {
		tail := int32(1)
		f := &logFollower{request: &cloudlessv1.LogsRequest{Follow: true, Tail: &tail}, places: map[string]*logPlace{}}
		var got []string
		play := func(until int) {
			for _, entry := range log[:until] {
				if since := f.request.GetSince(); since != nil && entry.GetTime().AsTime().Before(since.AsTime()) {
					continue
				}
				if f.isNew(entry) {
					got = append(got, entry.GetText())
				}
			}
		}
		play(stop)
		f.rewind()
		play(stop) // interrupted again before anything new came
		f.rewind()
		play(len(log))
		if f.request.Tail != nil {
			t.Error("it asks for the last lines only, again")
		}
		if len(got) != len(log) {
			t.Fatalf("interrupted after %d: got %d of %d: %v", stop, len(got), len(log), got)
		}
		for i, entry := range log {
			if got[i] != entry.GetText() {
				t.Fatalf("interrupted after %d: entry %d is %s, want %s", stop, i, got[i], entry.GetText())
			}
		}
	}
}
