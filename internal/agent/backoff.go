package agent

import (
	"math/rand/v2"
	"time"
)

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
