package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

func TestAnalyze(t *testing.T) {
	limits := spec.Analysis{JudgesErrors: true, MaxErrors: 100, JudgesP99: true, MaxP99: 500 * time.Millisecond, MinRequests: 50}
	seen := func(requests, errors uint64, p99 time.Duration) rollout.Observed {
		return rollout.Observed{Measured: true, Requests: requests, Errors: errors, P99: p99}
	}
	for _, c := range []struct {
		name   string
		limits spec.Analysis
		seen   rollout.Observed
		want   string // part of the finding, empty if there is none
	}{
		{"nothing happened", limits, rollout.Observed{}, ""},
		{"no restart is allowed", limits, rollout.Observed{Restarts: 1, Restarted: "web-1: exit code 3"}, "have restarted once, and no restart is allowed: web-1: exit code 3"},
		{"some are", spec.Analysis{MaxRestarts: 2}, rollout.Observed{Restarts: 2, Restarted: "web-1"}, ""},
		{"but no more", spec.Analysis{MaxRestarts: 1}, rollout.Observed{Restarts: 2, Restarted: "web-1"}, "have restarted 2 times, and 1 restart is allowed"},
		{"a probe fails", limits, rollout.Observed{Failing: "web-1 does not serve any more: no"}, "web-1 does not serve any more: no"},
		{"too few requests say nothing", limits, seen(49, 49, time.Minute), ""},
		{"enough of them do", limits, seen(50, 1, 0), "1 of 50 requests to the new revision have failed (2%), and at most 1% may"},
		{"as many as may", limits, seen(200, 2, 500*time.Millisecond), ""},
		{"one more than may, although both look like 1%", limits, seen(100_000, 1001, 0), "(1.01%), and at most 1% may"},
		{"too slow", limits, seen(100, 0, 812*time.Millisecond), "the P99 of 100 requests to the new revision is 812ms, and at most 500ms is allowed"},
		{"a little too slow", limits, seen(100, 0, 500*time.Millisecond+1), "is 501ms, and at most 500ms"},
		{"no error is allowed", spec.Analysis{JudgesErrors: true}, seen(1_000_000, 1, 0), "(0.01%), and at most 0% may"},
		{"nothing of this is limited", spec.Analysis{}, seen(1000, 1000, time.Hour), ""},
		{"nobody has asked", spec.Analysis{JudgesErrors: true}, seen(0, 0, 0), ""},
	} {
		got := rollout.Analyze(c.limits, c.seen)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: the finding is %q, want %q", c.name, got, c.want)
		}
	}
}

func TestJudgedSaysWhatCounts(t *testing.T) {
	limits := spec.Analysis{JudgesErrors: true, MaxErrors: 50, JudgesP99: true, MaxP99: 500 * time.Millisecond, MaxRestarts: 1, MinRequests: 50}
	for _, c := range []struct {
		limits          spec.Analysis
		counted, enough bool
		want            string
	}{
		{spec.Analysis{}, false, false, "it must not restart or fail its probes"},
		{
			limits, true, false,
			"it may restart once and must not fail its probes; at most 0.5% of its requests may fail and its P99 may be at most 500ms, once the step has had 50 requests",
		},
		{limits, true, true, "it may restart once and must not fail its probes; at most 0.5% of its requests may fail and its P99 may be at most 500ms"},
		{
			limits, false, false,
			"it may restart once and must not fail its probes; at most 0.5% of its requests may fail and its P99 may be at most 500ms, which nothing measures: no route leads to it",
		},
	} {
		if got := rollout.Judged(c.limits, c.counted, c.enough); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
