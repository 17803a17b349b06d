package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func conditionOf(status *v1.NodeStatus, kind string) *v1.Condition {
	for _, c := range status.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// A clock that is five minutes wrong is reported with the next heartbeat, in words and
// minutes, and does no harm.
func TestWrongClockIsReported(t *testing.T) {
	for off, want := range map[time.Duration]string{5 * time.Minute: "is 5m ahead of the servers'", -5 * time.Minute: "is 5m behind the servers'"} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.start()
			s := n.join()
			first := full(assignment("a"))
			first.Time = timestamppb.New(time.Now().Add(-off))
			s.send(t, first)
			s.await(t, "a", "running")
			var status *v1.NodeStatus
			for status == nil {
				status = (<-s.ups).GetHeartbeat().GetStatus()
			}
			if c := conditionOf(status, conditionClock); !c.GetStatus() || !strings.Contains(c.GetReason(), want) {
				t.Errorf("the condition is %v", c)
			}
		})
	}
}

// The clock is compared as it is now: it may be set during the session.
func TestClockSetDuringTheSession(t *testing.T) {
	noon := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	var passed, set time.Duration
	c := &wallClock{now: func() time.Time { return noon.Add(passed + set) }, passed: func() time.Duration { return passed }}
	if c.condition() != nil {
		t.Error("it judges before a server has spoken")
	}
	c.setServerTime(timestamppb.New(noon))
	for _, step := range []struct {
		passed, set time.Duration
		want        bool
	}{
		{0, 0, false},
		{time.Hour, 0, false},
		{time.Hour, 5 * time.Minute, true},
		{2 * time.Hour, 25 * time.Second, true}, // not yet good enough
		{2 * time.Hour, 15 * time.Second, false},
		{3 * time.Hour, 25 * time.Second, false}, // not yet bad enough
		{3 * time.Hour, -5 * time.Minute, true},
	} {
		passed, set = step.passed, step.set
		if got := c.condition(); got.GetStatus() != step.want || (got.GetReason() != "") != step.want {
			t.Errorf("after %s, set by %s: %v", passed, set, got)
		}
	}
}
