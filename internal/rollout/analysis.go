package rollout

import (
	"fmt"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
)

// Observed is what is known of the new revision of a canary deployment.
type Observed struct {
	// Restarts is how often its replicas have restarted, and Restarted says which one has and why.
	Restarts  int
	Restarted string
	// Failing says which replica has served in this step and fails its probe now, and why; empty if none does.
	Failing string
	// Requests is how many requests the revision has answered in this step, Errors how many of them have failed, and P99
	// how long 99 of 100 took. Measured is whether anybody counts them.
	Measured         bool
	Requests, Errors uint64
	P99              time.Duration
}

// Analyze says why the new revision must be taken back; empty if nothing is wrong with it.
func Analyze(limits spec.Analysis, o Observed) (finding string) {
	switch {
	case o.Restarts > limits.MaxRestarts:
		return fmt.Sprintf("the new replicas have restarted %s, and %s allowed: %s", times(o.Restarts), atMost(limits.MaxRestarts), o.Restarted)
	case o.Failing != "":
		return o.Failing
	case !o.Measured || o.Requests < limits.MinRequests || o.Requests == 0:
		return ""
	case limits.JudgesErrors && failedTooOften(o, limits.MaxErrors):
		return fmt.Sprintf("%d of %d requests to the new revision have failed (%s), and at most %s may", o.Errors, o.Requests,
			rateOf(o), spec.FormatRate(limits.MaxErrors))
	case limits.JudgesP99 && o.P99 > limits.MaxP99:
		return fmt.Sprintf("the P99 of %d requests to the new revision is %s, and at most %s is allowed", o.Requests,
			spec.FormatDuration(roundedUp(o.P99)), spec.FormatDuration(limits.MaxP99))
	}
	return ""
}

// failedTooOften compares without rounding.
func failedTooOften(o Observed, most int) bool {
	return float64(o.Errors)*10_000 > float64(o.Requests)*float64(most)
}

// rateOf is the share of the requests that have failed. It is rounded up: a rate above a limit never looks like the limit.
func rateOf(o Observed) string {
	parts := (float64(o.Errors)*10_000 + float64(o.Requests) - 1) / float64(o.Requests)
	return spec.FormatRate(min(int(parts), 10_000))
}

// roundedUp never makes a duration above a limit look like the limit.
func roundedUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func atMost(n int) string {
	switch n {
	case 0:
		return "no restart is"
	case 1:
		return "1 restart is"
	}
	return fmt.Sprintf("%d restarts are", n)
}

// Judged says in a sentence by what a new revision is judged. counted is whether anybody counts its requests, and enough
// whether there are enough of them in this step.
func Judged(limits spec.Analysis, counted, enough bool) string {
	judged := "it must not restart or fail its probes"
	if limits.MaxRestarts > 0 {
		judged = fmt.Sprintf("it may restart %s and must not fail its probes", times(limits.MaxRestarts))
	}
	var rates []string
	if limits.JudgesErrors {
		rates = append(rates, fmt.Sprintf("at most %s of its requests may fail", spec.FormatRate(limits.MaxErrors)))
	}
	if limits.JudgesP99 {
		rates = append(rates, "its P99 may be at most "+spec.FormatDuration(limits.MaxP99))
	}
	if len(rates) == 0 {
		return judged
	}
	text := judged + "; " + strings.Join(rates, " and ")
	switch {
	case !counted:
		return text + ", which nothing measures: no route leads to it"
	case !enough:
		return text + fmt.Sprintf(", once the step has had %s", spec.Count(int(limits.MinRequests), "request"))
	}
	return text
}
