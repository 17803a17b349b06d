package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
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
	// Renewed is called after each renewal that was due, so that other keys can be replaced with the certificate's. It
	// may be nil.
	Renewed func()
	// Trust replaces that of Current, if it is set.
	Trust *Trust
	Log   *slog.Logger
}

// Rotator renews the certificate of a member, with a new key each time, after two thirds of its life. Open connections
// stay: a certificate matters only during a handshake.
type Rotator struct {
	path    string
	renew   func(context.Context, []byte) ([][]byte, error)
	renewed func()
	log     *slog.Logger
	current atomic.Pointer[Credentials]

	mu     sync.Mutex // held while credentials are replaced and saved
	wanted Fingerprint
	wake   chan struct{}
	heard  chan struct{} // has a value when trust or issuer have changed
}

// NewRotator makes a rotator; [Rotator.Run] runs it.
func NewRotator(o RotatorOptions) (*Rotator, error) {
	if o.Current == nil || o.Renew == nil || o.Log == nil {
		return nil, errors.New("a certificate rotator needs Current, Renew and Log")
	}
	r := &Rotator{path: o.Path, renew: o.Renew, renewed: o.Renewed, log: o.Log.With("identity", o.Current.ID().String()), wake: make(chan struct{}, 1), heard: make(chan struct{}, 1)}
	if o.Trust != nil {
		o.Current = o.Current.trusting(o.Trust)
	}
	r.current.Store(o.Current)
	return r, nil
}

// Certificate is the current certificate. It is a [CertificateSource].
func (r *Rotator) Certificate() (*tls.Certificate, error) { return r.current.Load().Certificate() }

// Issuer is the authority that issued the current certificate.
func (r *Rotator) Issuer() Fingerprint { return r.current.Load().Issuer() }

// Trust verifies the other members of the cluster. It is the same one for as long as the rotator exists.
func (r *Rotator) Trust() *Trust { return r.current.Load().Trust() }

// Changed has a value when the trust or the issuer of the certificate have changed.
func (r *Rotator) Changed() <-chan struct{} { return r.heard }

// SetTrust replaces the authorities to trust, in DER form, and saves them before it returns. A member must not stop to
// trust the authority that its own certificate is from, because it would lose its identity.
func (r *Rotator) SetTrust(authorities ...[]byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.current.Load()
	wanted, err := ParseTrust(authorities...)
	if err != nil {
		return err
	}
	if !wanted.Has(current.Issuer()) {
		return fmt.Errorf("%w: its certificate is from %s", ErrReplaced, current.Issuer())
	}
	changed, err := current.Trust().Set(authorities...)
	if err != nil || !changed {
		return err
	}
	if err := r.save(current); err != nil {
		return err
	}
	notify(r.heard)
	return nil
}

// WantIssuer renews the certificate until it is from an authority.
func (r *Rotator) WantIssuer(authority Fingerprint) {
	r.mu.Lock()
	r.wanted = authority
	r.mu.Unlock()
	notify(r.wake)
}

// otherIssuer reports whether the certificate should be from another authority.
func (r *Rotator) otherIssuer() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wanted != Fingerprint{} && r.wanted != r.Issuer()
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// RenewNow renews the certificate before it returns.
func (r *Rotator) RenewNow(ctx context.Context) error {
	_, err := r.rotate(ctx)
	return err
}

// Run renews the certificate until the context ends, and then returns nil. A renewal that fails is retried, after
// pauses that grow from about a second to about five minutes, or to a tenth of the certificate's life if that is less.
func (r *Rotator) Run(ctx context.Context) error {
	due := renewalTime(r.current.Load())
	retry := firstRetry
	for {
		if r.wait(ctx, min(time.Until(due), longestWait)) != nil {
			return nil
		}
		asked := r.otherIssuer()
		if time.Now().Before(due) && !r.fromTheFuture() && !asked {
			continue
		}
		next, err := r.rotate(ctx)
		if err == nil && r.otherIssuer() {
			err = fmt.Errorf("renew certificate of %s: the server that answered does not sign with the new authority yet", next.ID())
		}
		switch {
		case err == nil:
			r.log.InfoContext(ctx, "certificate renewed", "until", next.NotAfter())
			if r.renewed != nil && !asked {
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
			if asked && sleep.For(ctx, pause) != nil {
				return nil
			}
		}
	}
}

// wait pauses until a renewal may be due.
func (r *Rotator) wait(ctx context.Context, d time.Duration) error {
	if r.otherIssuer() {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.wake:
	case <-timer.C:
	}
	return nil
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if next.ID() != old.ID() || !old.Trust().Has(next.Issuer()) {
		return nil, fmt.Errorf("renew certificate of %s: got one for %s from CA %s", old.ID(), next.ID(), next.Issuer())
	}
	next = next.trusting(old.Trust())
	if err := r.save(next); err != nil {
		return nil, err
	}
	r.current.Store(next)
	if next.Issuer() != old.Issuer() {
		notify(r.heard)
	}
	return next, nil
}

// save writes credentials to the rotator's file, if it has one.
func (r *Rotator) save(c *Credentials) error {
	if r.path == "" {
		return nil
	}
	return c.Save(r.path)
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
