package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func TestRestartDefaults(t *testing.T) {
	got, err := restartPolicyOf(nil)
	want := restartPolicy{when: "always", first: time.Second, max: time.Minute, reset: 5 * time.Minute}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := restartPolicyOf(&v1.Restart{MaxBackoff: "soon"}); err == nil {
		t.Error(`a pause of "soon" was understood`)
	}
}

func TestPausesStayWithinTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := restartPolicy{
			when:  rapid.SampledFrom([]string{"always", "on-failure", "never"}).Draw(t, "policy"),
			first: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "first")),
			max:   time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "max")),
			reset: 5 * time.Minute,
		}
		failures, last := 0, time.Duration(0)
		for range rapid.IntRange(1, 100).Draw(t, "attempts") {
			e := ending{started: rapid.Bool().Draw(t, "started"), failed: true}
			d := p.after(e, failures, 0)
			if d.phase != spec.PhaseBackoff {
				if p.when != "never" || !e.started {
					t.Fatalf("%+v ends in %s under %s", e, d.phase, p.when)
				}
				return
			}
			if d.pause < last {
				t.Fatalf("the pause shrank from %s to %s", last, d.pause)
			}
			if longest := max(p.first, p.max); d.pause > longest {
				t.Fatalf("a pause of %s is longer than %s", d.pause, longest)
			}
			jittered := p.after(e, failures, rapid.Float64Range(0, 1).Draw(t, "jitter"))
			if jittered.pause > d.pause || jittered.pause < d.pause*9/10-1 {
				t.Fatalf("jitter made %s out of %s", jittered.pause, d.pause)
			}
			failures, last = d.failures, d.pause
		}
	})
}

// Most programs that fail once run when they are restarted. Those that fail again get
// growing pauses.
func TestFirstRestartIsImmediate(t *testing.T) {
	p, _ := restartPolicyOf(nil)
	failures := 0
	for _, want := range []time.Duration{0, p.first, 2 * p.first, 4 * p.first} {
		d := p.after(ending{started: true, failed: true}, failures, 0)
		if d.phase != spec.PhaseBackoff || d.pause != want {
			t.Errorf("after %d failures: %+v, want a pause of %s", failures+1, d, want)
		}
		failures = d.failures
	}
	// A failed start would only fail in the same way again.
	if d := p.after(ending{failed: true}, 0, 0); d.pause != p.first {
		t.Errorf("after a start that failed: %+v, want a pause of %s", d, p.first)
	}
}

func TestLongRunResetsThePause(t *testing.T) {
	p, _ := restartPolicyOf(nil)
	if d := p.after(ending{started: true, failed: true, ran: p.reset}, 50, 0); d.pause != 0 || d.failures != 1 {
		t.Errorf("after a long run: %+v", d)
	}
	if d := p.after(ending{started: true, failed: true, ran: p.reset - 1}, 50, 0); d.pause != p.max {
		t.Errorf("after a short run: %+v", d)
	}
}
