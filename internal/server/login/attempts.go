package login

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/server/core"
)

const (
	// maxFailures is how many attempts of one network may fail within failureTime.
	maxFailures = 20
	failureTime = 10 * time.Second
	// maxFailing bounds how many networks are counted.
	maxFailing = 4096
	// attemptsPerSecond limits the attempts of all callers together.
	attemptsPerSecond = 100
)

// attempts limits logins, whose callers have no identity yet. Users who do log in do not count: many may be behind one
// address.
type attempts struct {
	all sync.Once
	cap *rate.Limiter

	mu     sync.Mutex
	began  time.Time
	counts map[netip.Prefix]int
}

// begin refuses an attempt if too many have failed.
func (a *attempts) begin(from netip.Addr) error {
	a.all.Do(func() { a.cap = rate.NewLimiter(attemptsPerSecond, attemptsPerSecond) })
	if !a.cap.Allow() {
		return core.Refuse(codes.ResourceExhausted, "too many users log in at this moment; try again in a few seconds")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn()
	count, counted := a.counts[networkOf(from)]
	if count >= maxFailures || !counted && len(a.counts) >= maxFailing {
		return core.Refuse(codes.ResourceExhausted, "too many logins from %s have failed, so this one was not looked at; try again in ten seconds", from)
	}
	return nil
}

// failed counts an attempt.
func (a *attempts) failed(from netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn()
	a.counts[networkOf(from)]++
}

// turn must be called with the lock held.
func (a *attempts) turn() {
	if a.counts == nil || time.Since(a.began) >= failureTime {
		a.began, a.counts = time.Now(), map[netip.Prefix]int{}
	}
}

// networkOf returns the smallest network that one machine usually has to itself.
func networkOf(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	network, _ := a.Prefix(bits)
	return network
}
