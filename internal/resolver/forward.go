package resolver

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// hedgeAfter is how long a query waits for one upstream before it asks the next one, too.
	hedgeAfter = 250 * time.Millisecond
	// resendAfter is how long it waits before it asks all of them again.
	resendAfter = time.Second
	// giveUpAfter is less than the five seconds that programs wait.
	giveUpAfter = 4 * time.Second
	maxAttempts = 6
	// A failed upstream is asked last, and is tried again beside others after this time, then ever more rarely.
	firstRetry, maxRetry = 5 * time.Second, time.Minute
)

var errNoUpstream = errors.New("this machine has no name server")

// pool chooses among upstreams: in their order, but those that fail last.
type pool struct {
	ask func(context.Context, netip.AddrPort, *query) (*dns.Msg, error)

	mu        sync.Mutex
	upstreams []*upstream
	failures  uint64
}

type upstream struct {
	address  netip.AddrPort
	failed   int // in a row
	retry    time.Time
	retrying bool
}

// set replaces the upstreams and reports whether anything changed. Those that stay keep their state.
func (p *pool) set(addresses []netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var after []*upstream
	for _, address := range addresses {
		i := slices.IndexFunc(p.upstreams, func(u *upstream) bool { return u.address == address })
		if i >= 0 {
			after = append(after, p.upstreams[i])
		} else {
			after = append(after, &upstream{address: address})
		}
	}
	changed := !slices.Equal(after, p.upstreams)
	p.upstreams = after
	return changed
}

// order returns the upstreams in the order in which to ask them. If a failed one is due to be tried again, it comes
// beside the first one, so that trying it delays nothing.
func (p *pool) order() (list []*upstream, probe *upstream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed []*upstream
	for _, u := range p.upstreams {
		if u.failed == 0 {
			list = append(list, u)
		} else {
			failed = append(failed, u)
		}
	}
	if len(list) > 0 {
		for _, u := range failed {
			if !u.retrying && !time.Now().Before(u.retry) {
				u.retrying, probe = true, u
				break
			}
		}
	}
	return append(list, failed...), probe
}

func (p *pool) report(u *upstream, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u.retrying = false
	if ok {
		u.failed = 0
		return
	}
	p.failures++
	u.retry = time.Now().Add(min(firstRetry<<min(u.failed, 10), maxRetry))
	u.failed++
}

func (p *pool) failureCount() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failures
}

// attempt is the outcome of asking one upstream.
type attempt struct {
	answer *dns.Msg
	err    error
}

// useful reports whether other upstreams can know no better.
func (a attempt) useful() bool {
	return a.err == nil && (a.answer.Rcode == dns.RcodeSuccess || a.answer.Rcode == dns.RcodeNameError)
}

// exchange asks upstreams until one gives a useful answer. A slow one costs no more than hedgeAfter, once.
func (p *pool) exchange(ctx context.Context, q *query) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, giveUpAfter)
	defer cancel()
	list, probe := p.order()
	if len(list) == 0 {
		return nil, errNoUpstream
	}
	results := make(chan attempt, maxAttempts+1)
	asked, open := 0, 0
	start := func(u *upstream) {
		open++
		go func() { results <- p.attempt(ctx, u, q) }()
	}
	next := func() {
		start(list[asked%len(list)])
		asked++
	}
	next()
	if probe != nil {
		start(probe)
	}
	timer := time.NewTimer(p.pause(asked, len(list)))
	defer timer.Stop()
	last := attempt{err: errNoUpstream}
	for open > 0 {
		select {
		case a := <-results:
			open--
			if a.useful() {
				return a.answer, nil
			}
			if a.err == nil || last.answer == nil {
				last = a
			}
			if asked >= len(list) || asked >= maxAttempts {
				continue
			}
		case <-timer.C:
			if asked >= maxAttempts {
				continue
			}
		}
		next()
		timer.Reset(p.pause(asked, len(list)))
	}
	return last.answer, last.err
}

// pause is the time until the next attempt.
func (*pool) pause(asked, upstreams int) time.Duration {
	if asked%upstreams != 0 {
		return hedgeAfter
	}
	return resendAfter
}

// attempt asks one upstream and remembers whether it answered. One that lost against another by more than
// hedgeAfter has failed as well.
func (p *pool) attempt(ctx context.Context, u *upstream, q *query) attempt {
	began := time.Now()
	answer, err := p.ask(ctx, u.address, q)
	switch {
	case err == nil:
		p.report(u, true)
	case !errors.Is(ctx.Err(), context.Canceled) || time.Since(began) >= hedgeAfter:
		p.report(u, false)
	default:
		p.forget(u)
	}
	return attempt{answer, err}
}

// forget ends a try that was cut short.
func (p *pool) forget(u *upstream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u.retrying = false
}

// flights merges equal queries that wait at the same time.
type flights struct {
	mu      sync.Mutex
	waiting map[string][]func(packed)
}

// join adds a waiter, and reports whether it is the first.
func (f *flights) join(key string, done func(packed)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.waiting[key] == nil
	f.waiting[key] = append(f.waiting[key], done)
	return first
}

func (f *flights) land(key string, answer packed) {
	f.mu.Lock()
	waiting := f.waiting[key]
	delete(f.waiting, key)
	f.mu.Unlock()
	for _, done := range waiting {
		done(answer)
	}
}

// forward gets an answer from an upstream, for everyone who asks the same meanwhile. If all upstreams fail, the
// answer is a failure, which is kept as well, for a moment.
func (r *Resolver) forward(q query, key string, done func(packed)) {
	if !r.flights.join(key, done) {
		r.counters.merged.Add(1)
		return
	}
	r.counters.forwarded.Add(1)
	r.background.Go(func() {
		era := r.cache.currentEra()
		m, err := r.exchange(r.ctx, &q)
		if err != nil {
			r.log.Debug("no upstream answers", "name", q.name, "error", err)
			m = failure(&q)
		}
		answer, err := pack(m)
		if err != nil {
			r.log.Debug("an upstream's answer cannot be passed on", "name", q.name, "error", err)
			m = failure(&q)
			answer, _ = pack(m)
		}
		r.cache.put(era, key, answer, lifetime(m))
		r.flights.land(key, answer)
	})
}

func failure(q *query) *dns.Msg {
	m := q.message(false)
	m.Response, m.Rcode = true, dns.RcodeServerFailure
	return m
}
