package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute

	// A timer stops while the machine is suspended and does not follow a corrected clock, so the date is checked this
	// often whatever the timer says.
	longestWait = 10 * time.Minute
)

// RotatorOptions configures a [Rotator].
type RotatorOptions struct {
	// Current are the initial credentials.
	Current *Credentials
	// Path is where new credentials are saved, as by [Credentials.Save]. It is empty for a member that gets new ones at
	// every start.
	Path string
	// Renew gets a certificate request answered by the cluster's CA: with what [CA.Issue] returns.
	Renew func(ctx context.Context, csr []byte) (chain [][]byte, err error)
	// Renewed is called after each renewal, so that other keys can be replaced with the certificate's. It may be nil.
	Renewed func()
	Log     *slog.Logger
}

// Rotator renews the certificate of a member, with a new key each time, after two thirds of its life. Open connections
// stay: a certificate matters only during a handshake.
type Rotator struct {
	path    string
	renew   func(context.Context, []byte) ([][]byte, error)
	renewed func()
	log     *slog.Logger
	current atomic.Pointer[Credentials]
}

// NewRotator makes a rotator; [Rotator.Run] runs it.
func NewRotator(o RotatorOptions) (*Rotator, error) {
	if o.Current == nil || o.Renew == nil || o.Log == nil {
		return nil, errors.New("a certificate rotator needs Current, Renew and Log")
	}
	r := &Rotator{path: o.Path, renew: o.Renew, renewed: o.Renewed, log: o.Log.With("identity", o.Current.ID().String())}
	r.current.Store(o.Current)
	return r, nil
}

// Certificate is the current certificate. It is a [CertificateSource].
func (r *Rotator) Certificate() (*tls.Certificate, error) { return r.current.Load().Certificate() }

// Run renews the certificate until the context ends, and then returns nil. A renewal that fails is retried, after
// pauses that grow from about a second to about five minutes, or to a tenth of the certificate's life if that is less.
func (r *Rotator) Run(ctx context.Context) error {
	due := renewalTime(r.current.Load())
	retry := firstRetry
	for {
		if sleep.For(ctx, min(time.Until(due), longestWait)) != nil {
			return nil
		}
		if time.Now().Before(due) && !r.fromTheFuture() {
			continue
		}
		next, err := r.rotate(ctx)
		switch {
		case err == nil:
			r.log.InfoContext(ctx, "certificate renewed", "until", next.NotAfter())
			if r.renewed != nil {
				r.renewed()
			}
			// A clock that is far ahead sees a fresh certificate as old: do not ask for another at once.
			due, retry = later(renewalTime(next), time.Now().Add(lifetime(next)/10)), firstRetry
		case ctx.Err() != nil:
			return nil
		default:
			pause := retry/2 + rand.N(retry/2)
			r.log.WarnContext(ctx, "certificate not renewed", "error", err, "until", r.current.Load().NotAfter(), "retry", pause)
			due = time.Now().Add(pause)
			retry = min(2*retry, max(firstRetry, min(lastRetry, lifetime(r.current.Load())/10)))
		}
	}
}

// fromTheFuture reports whether the certificate is not valid yet, because it was issued by a clock that was far ahead
// and has been corrected since. Waiting would take as long as the clock was ahead.
func (r *Rotator) fromTheFuture() bool {
	return time.Now().Before(r.current.Load().cert.Leaf.NotBefore)
}

// rotate gets a new certificate, saves it, and only then uses it.
func (r *Rotator) rotate(ctx context.Context) (*Credentials, error) {
	old := r.current.Load()
	key, csr, err := NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	chain, err := r.renew(ctx, csr)
	if err != nil {
		return nil, fmt.Errorf("renew certificate of %s: %w", old.ID(), err)
	}
	next, err := NewCredentials(key, chain)
	if err != nil {
		return nil, fmt.Errorf("renew certificate of %s: %w", old.ID(), err)
	}
	if next.ID() != old.ID() || next.Trust().Fingerprint() != old.Trust().Fingerprint() {
		return nil, fmt.Errorf("renew certificate of %s: got one for %s from CA %s", old.ID(), next.ID(), next.Trust().Fingerprint())
	}
	if r.path != "" {
		if err := next.Save(r.path); err != nil {
			return nil, err
		}
	}
	r.current.Store(next)
	return next, nil
}

// lifetime is the validity of a certificate when it was issued, without its backdating.
func lifetime(c *Credentials) time.Duration {
	leaf := c.cert.Leaf
	return max(leaf.NotAfter.Sub(leaf.NotBefore)-clockSkew, time.Second)
}

// renewalTime is after two thirds of the certificate's life, or up to a twentieth of its life sooner, so that members
// that enrolled together do not all renew together.
func renewalTime(c *Credentials) time.Time {
	life := lifetime(c)
	return c.NotAfter().Add(-life/3 - rand.N(life/20))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
