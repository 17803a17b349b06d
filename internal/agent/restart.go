package agent

import (
	"fmt"
	"math/rand/v2"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// restartPolicy decides what follows the end of a replica's attempt. It is pure: randomness
// and time are arguments.
type restartPolicy struct {
	when       string // "always", "on-failure" or "never"
	first, max time.Duration
	reset      time.Duration
}

// restartPolicyOf reads a spec, whose empty fields mean the defaults.
func restartPolicyOf(r *v1.Restart) (restartPolicy, error) {
	p := restartPolicy{when: r.GetPolicy(), first: time.Second, max: time.Minute, reset: 5 * time.Minute}
	if p.when == "" {
		p.when = "always"
	}
	for _, f := range []struct {
		name, text string
		value      *time.Duration
	}{
		{"backoff", r.GetBackoff(), &p.first},
		{"maxBackoff", r.GetMaxBackoff(), &p.max},
		{"reset", r.GetReset_(), &p.reset},
	} {
		if f.text == "" {
			continue
		}
		d, err := spec.ParseDuration(f.text)
		if err != nil {
			return restartPolicy{}, fmt.Errorf("restart.%s: %w", f.name, err)
		}
		*f.value = d
	}
	return p, nil
}

// policy is the restart policy of the replica. An unreadable pause must not keep a replica
// from restarting, so it falls back to the default.
func (r *record) policy() restartPolicy {
	restart := r.Assignment.GetRevision().GetSpec().GetWorkload().GetRestart()
	p, err := restartPolicyOf(restart)
	if err != nil {
		p, _ = restartPolicyOf(&v1.Restart{Policy: restart.GetPolicy()})
	}
	return p
}

// ending is how an attempt ended.
type ending struct {
	started   bool // it ran; otherwise it could not be started
	failed    bool // its exit code was not 0, or it could not be started
	permanent bool // it can never start as specified
	ran       time.Duration
}

// decision is what follows an ending.
type decision struct {
	phase    string // PhaseBackoff, PhaseCompleted or PhaseFailed
	pause    time.Duration
	failures int // pauses in a row, the input for the next ending
}

// after decides, given the number of pauses in a row before this ending and a jitter from 0
// to 1.
//
// A failed start is retried under every policy, because nothing has run yet and the reason
// may pass: the image may be pushed, the disk freed. Only a task that is itself invalid and
// may not be restarted fails for good.
//
// A program that ends for the first time, or after a long run, is restarted at once.
func (p restartPolicy) after(e ending, failures int, jitter float64) decision {
	final := spec.PhaseCompleted
	if e.failed {
		final = spec.PhaseFailed
	}
	switch {
	case !e.started && e.permanent && p.when == "never",
		e.started && p.when == "never",
		e.started && p.when == "on-failure" && !e.failed:
		return decision{phase: final}
	}
	if e.started && e.ran >= p.reset {
		failures = 0
	}
	var pause time.Duration
	switch {
	case failures > 0:
		pause = grow(p.first, p.max, failures-1)
	case !e.started:
		pause = p.first
	}
	// The jitter only shortens, so that max is the longest pause.
	pause -= time.Duration(jitter * 0.1 * float64(pause))
	return decision{phase: spec.PhaseBackoff, pause: pause, failures: failures + 1}
}

// The pauses between retries that never give up, such as connecting to a server. They are
// short at first, because most failures are brief.
const (
	retryFirst = 50 * time.Millisecond
	retryMax   = 5 * time.Second
)

// backoff is a growing pause between retries.
type backoff struct{ tries int }

// next is the pause before the next try. Half of it is random, so that a thousand agents
// that lost the same server do not come back at the same moment.
func (b *backoff) next() time.Duration {
	pause := grow(retryFirst, retryMax, b.tries)
	b.tries++
	return pause/2 + rand.N(pause/2+1)
}

func (b *backoff) reset() { b.tries = 0 }

// grow doubles first so many times, up to limit.
func grow(first, limit time.Duration, times int) time.Duration {
	pause := first
	for range times {
		if pause >= limit/2 {
			return max(first, limit)
		}
		pause *= 2
	}
	return min(pause, max(first, limit))
}
