package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/server/core"
)

// A server that lags behind may not have a caller in its state yet, so it catches
// up with the leader before it turns a caller away. Any client can make up a token,
// so this must stay cheap:
//
//   - all callers that wait share one catch-up at a time;
//   - a token that was unknown after a catch-up is refused without one for a moment;
//   - an address whose tokens were unknown too often gets none looked up for the
//     rest of a second.
//
// The state is asked before any of this. A token that this server knows works at
// once, even if it was unknown a moment ago and whatever else its address sends.

const (
	// catchUpPause is the shortest time between the beginnings of two catch-ups.
	catchUpPause = 10 * time.Millisecond
	// refusalTime is how long a token is refused without another catch-up. A lagging server refuses a token for that
	// long if a client tried it before it was created.
	refusalTime = time.Second
	// maxRefused limits how many refused tokens are remembered.
	maxRefused = 8192
	// maxFailures is how many tokens of one address may turn out to be unknown in a
	// second before no more are looked up.
	maxFailures = 20
	// maxFailing limits how many addresses are counted in a second.
	maxFailing = 4096
)

// unknownCallers decides about callers that the state of this server does not have.
type unknownCallers struct {
	catchUp  *shared
	refused  refusedTokens
	failures failures
}

func newUnknownCallers(ctx context.Context, catchUp func(context.Context) error) *unknownCallers {
	return &unknownCallers{catchUp: &shared{ctx: ctx, do: catchUp}}
}

// behindError says why this server could not catch up with the leader.
type behindError struct{ error }

// notKnown reports whether a caller was refused only because the state of this server does not have it.
func notKnown(err error) bool {
	_, node := errors.AsType[unknownNode](err)
	_, server := errors.AsType[unknownServer](err)
	_, joinToken := errors.AsType[UnknownJoinToken](err)
	return node || server || joinToken || errors.Is(err, ErrUnknownToken)
}

// retry authenticates a caller again after this server has caught up with the leader.
func (u *unknownCallers) retry(ctx context.Context, by presentedToken, identify func() (core.Principal, error)) (core.Principal, error) {
	if by.token == "" {
		return u.afterCatchUp(ctx, identify)
	}
	key := sha256.Sum256([]byte(by.token))
	if u.refused.has(key) {
		return identify() // with what this server knows
	}
	if u.failures.tooMany(by.address) {
		return core.Principal{}, errTooManyTokens(by.address)
	}
	p, err := u.afterCatchUp(ctx, identify)
	if notKnown(err) {
		u.refused.add(key)
		u.failures.count(by.address)
	}
	return p, err
}

func (u *unknownCallers) afterCatchUp(ctx context.Context, identify func() (core.Principal, error)) (core.Principal, error) {
	if err := u.catchUp.wait(ctx); err != nil {
		return core.Principal{}, behindError{err}
	}
	return identify()
}

func errTooManyTokens(from netip.Addr) error {
	return core.Refuse(codes.ResourceExhausted,
		"too many calls with unknown tokens come from %s, so this token was not looked up; stop them, or try again in a second", from)
}

// shared runs one function at a time for all goroutines that need its result. Each
// gets the result of a run that began after it asked.
type shared struct {
	ctx context.Context // of the runs
	do  func(context.Context) error

	mu      sync.Mutex
	running bool
	next    *run
}

type run struct {
	done chan struct{}
	err  error // set before done is closed
}

func (s *shared) wait(ctx context.Context) error {
	mine := s.join()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join returns the next run, and makes sure that it happens.
func (s *shared) join() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &run{done: make(chan struct{})}
	}
	if !s.running {
		s.running = true
		go s.work() // ends when no caller waits any more
	}
	return s.next
}

func (s *shared) work() {
	for {
		now := s.take()
		if now == nil {
			return
		}
		pause := time.NewTimer(catchUpPause)
		now.err = s.do(s.ctx)
		close(now.done)
		select {
		case <-pause.C:
		case <-s.ctx.Done():
		}
	}
}

func (s *shared) take() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.next
	s.next, s.running = nil, now != nil
	return now
}

// refusedTokens are the hashes of tokens that were unknown a moment ago. It keeps
// two generations, and drops the older one whenever half the time is over.
type refusedTokens struct {
	mu         sync.Mutex
	began      time.Time // start of the younger generation
	young, old map[[sha256.Size]byte]struct{}
}

func (r *refusedTokens) has(key [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	_, young := r.young[key]
	_, old := r.old[key]
	return young || old
}

func (r *refusedTokens) add(key [sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	if len(r.young) < maxRefused/2 {
		r.young[key] = struct{}{}
	}
}

// turn must be called with the lock held.
func (r *refusedTokens) turn() {
	switch age := time.Since(r.began); {
	case age < refusalTime/2:
		return
	case age < refusalTime:
		r.old = r.young
	default:
		r.old = nil
	}
	r.began, r.young = time.Now(), map[[sha256.Size]byte]struct{}{}
}

// failures counts the tokens of each address that were unknown in this second. Those
// that are just being looked up do not count: many users may be behind one address.
type failures struct {
	mu     sync.Mutex
	began  time.Time
	counts map[netip.Prefix]int
}

func (f *failures) tooMany(from netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn()
	known, counted := f.counts[networkOf(from)]
	return known >= maxFailures || !counted && len(f.counts) >= maxFailing
}

func (f *failures) count(from netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn()
	network := networkOf(from)
	if _, counted := f.counts[network]; counted || len(f.counts) < maxFailing {
		f.counts[network]++
	}
}

// turn must be called with the lock held.
func (f *failures) turn() {
	if time.Since(f.began) >= time.Second {
		f.began, f.counts = time.Now(), map[netip.Prefix]int{}
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
