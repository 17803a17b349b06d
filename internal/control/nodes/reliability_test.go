package nodes

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func TestWeightsAreAHundredPerCent(t *testing.T) {
	if sum := weightUptime + weightResponseTime + weightSuccessRate + weightCapacity + weightStability; sum != 100 {
		t.Errorf("they are %d", sum)
	}
}

func TestScore(t *testing.T) {
	for _, one := range []struct {
		name   string
		record *v1.ReliabilityRecord
		want   string // score: uptime, response time, success rate, capacity, stability
	}{
		{"nothing is known", &v1.ReliabilityRecord{}, "100: 100 100 100 100 100"},
		{"always there, quick, with room", &v1.ReliabilityRecord{
			WatchedSeconds: 3600, OnlineSeconds: 3600, ResponseSeconds: 0.002, Started: 5, FreeShare: proto.Float64(0.8),
		}, "100: 100 100 100 100 100"},
		{"there half of the time", &v1.ReliabilityRecord{WatchedSeconds: 3600, OnlineSeconds: 1800}, "85: 50 100 100 100 100"},
		{"never there", &v1.ReliabilityRecord{WatchedSeconds: 3600}, "70: 0 100 100 100 100"},
		{"answers in a tenth of a second", &v1.ReliabilityRecord{ResponseSeconds: 0.1}, "90: 100 50 100 100 100"},
		{"answers in ten seconds", &v1.ReliabilityRecord{ResponseSeconds: 10}, "80: 100 0 100 100 100"},
		{"starts three of four", &v1.ReliabilityRecord{Started: 3, NotStarted: 1}, "95: 100 100 75 100 100"},
		{"starts nothing", &v1.ReliabilityRecord{NotStarted: 2}, "80: 100 100 0 100 100"},
		{"a quarter is free", &v1.ReliabilityRecord{FreeShare: proto.Float64(0.25)}, "93: 100 100 100 50 100"},
		{"nothing is free", &v1.ReliabilityRecord{FreeShare: proto.Float64(0)}, "85: 100 100 100 0 100"},
		{"lost once just now", &v1.ReliabilityRecord{Losses: 1}, "93: 100 100 100 100 50"},
		{"lost all the time", &v1.ReliabilityRecord{Losses: 20}, "85: 100 100 100 100 0"},
		{"as bad as can be", &v1.ReliabilityRecord{
			WatchedSeconds: 1e6, ResponseSeconds: 5, NotStarted: 9, FreeShare: proto.Float64(0), Losses: 30,
		}, "0: 0 0 0 0 0"},
	} {
		r := score(start, one.record, "memory")
		got := fmt.Sprintf("%d:", r.GetScore())
		for _, part := range parts(r) {
			got += fmt.Sprintf(" %d", part.GetScore())
			if part.GetBasis() == "" {
				t.Errorf("%s: a part does not say what it was computed from", one.name)
			}
		}
		if got != one.want {
			t.Errorf("%s: %s, want %s", one.name, got, one.want)
		}
	}
}

// Old observations count less: a loss is forgotten in days, an absence in weeks.
func TestRecordDecays(t *testing.T) {
	r := &v1.ReliabilityRecord{Losses: 4, Started: 8, NotStarted: 8}
	pass(r, lossesHalfLife, false)
	if r.GetLosses() != 2 || r.GetOnlineSeconds() != 0 || r.GetWatchedSeconds() <= 0 {
		t.Errorf("after a half-life the record is %v", r)
	}
	pass(r, startsHalfLife, true)
	if left := r.GetStarted(); left > 4 || left < 2 {
		t.Errorf("of eight starts %v are left", left)
	}
	for range 12 {
		pass(r, uptimeHalfLife, true)
	}
	if uptime(r).GetScore() != 100 || stability(r).GetScore() != 100 {
		t.Errorf("after months the record is %v", r)
	}
	// The same time counts the same, however it is divided.
	whole, pieces := &v1.ReliabilityRecord{}, &v1.ReliabilityRecord{}
	pass(whole, time.Hour, true)
	for range 3600 {
		pass(pieces, time.Second, true)
	}
	if diff := whole.GetOnlineSeconds() - pieces.GetOnlineSeconds(); diff > 1e-6 || diff < -1e-6 {
		t.Errorf("an hour counts %v s, in pieces %v s", whole.GetOnlineSeconds(), pieces.GetOnlineSeconds())
	}
}

func TestFreeIsOfTheScarcestResource(t *testing.T) {
	has := &v1.NodeResources{Cpu: "4", Memory: "8Gi", Disk: "100Gi"}
	share, what, known := free(has, &v1.NodeResources{Cpu: "1", Memory: "6Gi", Disk: "10Gi"})
	if share != 0.25 || what != "memory" || !known {
		t.Errorf("%v of %s, known: %v", share, what, known)
	}
	if _, _, known := free(has, nil); known {
		t.Error("what is free is known without a measurement")
	}
	if share, _, _ := free(has, &v1.NodeResources{Cpu: "5"}); share != 0 {
		t.Errorf("a node that uses more than it has is free to %v", share)
	}
}

func TestScoreIsStoredNowAndThen(t *testing.T) {
	at := func(score int32, after time.Duration) *v1.Reliability {
		part := &v1.ReliabilityPart{Score: score}
		return &v1.Reliability{
			Score: score, Uptime: part, ResponseTime: part, SuccessRate: part, Capacity: part, Stability: part,
			Time: timestamppb.New(start.Add(after)), Record: &v1.ReliabilityRecord{WatchedSeconds: after.Seconds()},
		}
	}
	for _, one := range []struct {
		name          string
		stored, fresh *v1.Reliability
		want          bool
	}{
		{"the first, too early", nil, at(100, 10*time.Second), false},
		{"the first", nil, at(100, time.Minute), true},
		{"moved, but a moment ago", at(100, 0), at(50, 4*time.Minute), false},
		{"moved", at(100, 0), at(90, 5*time.Minute), true},
		{"the same", at(100, 0), at(100, time.Hour), false},
		{"the same, after hours", at(100, 0), at(100, 6*time.Hour), true},
		{"the same, where the last was written by a clock that was wrong", at(100, 24*time.Hour), at(100, 6*time.Hour), true},
	} {
		if got := worthKeeping(one.stored, one.fresh); got != one.want {
			t.Errorf("%s: %v", one.name, got)
		}
	}
}

// A node's record is stored, and the next leader resumes from it.
func TestScoreSurvivesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proposer := &log{store: storeWith(t, node("enrolling")), index: 1}
		placed := func(uid, phase string) *v1.Replica {
			r := replicaOn("n", uid)
			r.Status.Phase = phase
			return r
		}
		first := New(proposer.store, proposer, alive)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- first.Run(ctx) }()
		first.Connected("n", here, &v1.NodeStatus{Capacity: &v1.NodeResources{Cpu: "4"}})
		synctest.Wait()
		put(t, first, placed("a", spec.PhasePlaced), placed("b", spec.PhasePreparing))
		put(t, first, placed("a", spec.PhaseRunning), placed("b", spec.PhaseBackoff))
		first.Answered("n", 40*time.Millisecond)
		for range 90 {
			first.Heartbeat("n", &v1.Heartbeat{Usage: &v1.NodeResources{Cpu: "3"}})
			time.Sleep(time.Second)
		}
		first.Disconnected("n") // for a moment
		time.Sleep(time.Second)
		first.Connected("n", here, &v1.NodeStatus{})
		before := proposer.made()
		for range 360 { // until it is worth storing again
			first.Heartbeat("n", &v1.Heartbeat{Usage: &v1.NodeResources{Cpu: "3"}})
			time.Sleep(time.Second)
		}
		cancel()
		<-done
		if made := proposer.made() - before; made > 2 {
			t.Errorf("%d proposals were made in six minutes", made)
		}
		stored := proposer.store.Snapshot().Node("n").GetStatus().GetReliability()
		if stored.GetSuccessRate().GetScore() != 50 || stored.GetResponseTime().GetScore() > 75 ||
			stored.GetUptime().GetScore() != 100 || stored.GetCapacity().GetScore() != 50 {
			t.Errorf("written down is %v", stored)
		}

		second := New(proposer.store, proposer, alive)
		ctx, cancel = context.WithCancel(t.Context())
		go func() { done <- second.Run(ctx) }()
		synctest.Wait()
		shown := node("ready")
		second.Observe(shown)
		cancel()
		<-done
		got := shown.GetStatus().GetReliability()
		if got.GetScore() != stored.GetScore() || got.GetRecord().GetWatchedSeconds() < 100 {
			t.Errorf("the new leader begins with %v, not with %v", got, stored)
		}
	})
}
