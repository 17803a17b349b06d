package certificates

import (
	"context"
	"crypto/x509"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/acme"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Proposer changes the state.
type Proposer interface {
	Propose(ctx context.Context, build func(*state.Snapshot, *state.Batch) error) (*state.Snapshot, error)
}

// Authority is an ACME authority. [acme.Authority] is one.
type Authority interface {
	Register(ctx context.Context, email string) (acme.Account, error)
	Obtain(ctx context.Context, account acme.Account, host string, replaces *x509.Certificate) (acme.Issued, error)
	RenewalOf(ctx context.Context, leaf *x509.Certificate) (acme.Renewal, error)
}

const (
	// maxOrders is how many orders run at once.
	maxOrders = 4
	// maxIssued is how many certificates the cluster's own authority issues in one tick.
	maxIssued = 64
	// askAgain is how often the authority is asked when a certificate should be renewed, if it does not say.
	askAgain = 6 * time.Hour
)

// Options are the parts that a Loop works with.
type Options struct {
	Store    *state.Store
	Proposer Proposer
	CA       *identity.CA
	Sealer   *identity.Sealer
	Logger   *slog.Logger
	// Metrics counts what was issued. It may be nil.
	Metrics *telemetry.Server

	// Authority replaces the authority that the configuration names. It may be nil.
	Authority Authority
	// Resolvers, Dial and Patience are those of [acme.Authority].
	Resolvers []string
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	Patience  time.Duration
}

// Loop makes, renews and removes certificates while this server leads.
type Loop struct{ Options }

// New returns a loop that does not run yet.
func New(o Options) *Loop { return &Loop{Options: o} }

// term is one time of leadership.
type term struct {
	*Loop
	orders map[string]*order // by the uid of the certificate
	done   chan *order
	tasks  sync.WaitGroup
	// pausedUntil is when the authority may be asked again, after so many failures that were not one host's.
	pausedUntil time.Time
	pauses      int
	// acme is the configuration that orders began with.
	acme *v1.Acme
	// askAt is when the authority is asked about the renewal of a certificate, by uid.
	askAt map[string]time.Time

	account sync.Mutex // held while an account is made
}

// order is one order, or one question about a renewal.
type order struct {
	certificate *v1.Certificate
	stop        context.CancelFunc
	asks        bool // only about the renewal
	again       time.Time
	err         error
}

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	t := &term{Loop: l, orders: map[string]*order{}, done: make(chan *order), askAt: map[string]time.Time{}}
	defer t.tasks.Wait()
	defer stop()
	if err := t.forgetChallenges(ctx); err != nil {
		return err
	}
	changed, failed := make(chan struct{}, 1), make(chan error, 1)
	t.tasks.Go(func() { failed <- t.follow(ctx, changed) })
	for {
		snap, err := t.tick(ctx)
		if err != nil {
			return err
		}
		timer := time.NewTimer(t.pause(snap))
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case err = <-failed:
		case <-changed:
		case <-timer.C:
		case o := <-t.done:
			t.end(o)
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

// follow reports changes that may make something due.
func (t *term) follow(ctx context.Context, changed chan<- struct{}) error {
	for feed := t.Store.Follow(); ; {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		if !news.Resync && !concerns(news.Changes) {
			continue
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

func concerns(changes []state.Change) bool {
	for _, c := range changes {
		switch c.Kind {
		case state.KindRoute, state.KindCertificate, state.KindCluster:
			return true
		}
	}
	return false
}

// tick does what is due.
func (t *term) tick(ctx context.Context) (*state.Snapshot, error) {
	snap := t.Store.Snapshot()
	if err := t.configured(ctx, snap); err != nil {
		return nil, err
	}
	for {
		var batch state.Batch
		if Tick(t.now(), t.Store.Snapshot(), &batch, state.NewUID); batch.Len() == 0 {
			break
		}
		if _, err := t.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			Tick(t.now(), snap, b, state.NewUID)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if err := t.issueOwn(ctx); err != nil {
		return nil, err
	}
	snap = t.Store.Snapshot()
	for uid := range t.askAt {
		if snap.Certificate(uid) == nil {
			delete(t.askAt, uid)
		}
	}
	for uid, o := range t.orders {
		// An order ends with its certificate, and with its source.
		if now := snap.Certificate(uid); now == nil || now.GetSpec().GetSource() != spec.TLSAuto {
			o.stop()
		}
	}
	t.order(ctx, snap)
	return snap, nil
}

func (t *term) now() time.Time { return time.Now().UTC() }

// configured begins again with all orders when the authority is another one.
func (t *term) configured(ctx context.Context, snap *state.Snapshot) error {
	now := snap.Cluster().GetSpec().GetAcme()
	if now == nil {
		now = &v1.Acme{}
	}
	before := t.acme
	if t.acme = now; before == nil || proto.Equal(before, now) {
		return nil
	}
	t.pausedUntil, t.pauses = time.Time{}, 0
	for _, o := range t.orders {
		o.stop()
	}
	_, err := t.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		for c := range snap.Certificates("", "") {
			if c.GetSpec().GetSource() != spec.TLSAuto || c.GetStatus().GetFailures() == 0 {
				continue
			}
			again := proto.CloneOf(c)
			again.Status.NextTry, again.Status.Failures = nil, 1
			if !proto.Equal(again, c) {
				b.Update(again, c.GetMetadata().GetVersion())
			}
		}
		return nil
	})
	return err
}

// order begins orders as long as there is room.
func (t *term) order(ctx context.Context, snap *state.Snapshot) {
	now := t.now()
	if now.Before(t.pausedUntil) {
		return
	}
	for c := range due(now, snap) {
		if len(t.orders) >= maxOrders {
			return
		}
		uid := c.GetMetadata().GetUid()
		if c.GetSpec().GetSource() == spec.TLSAuto && t.orders[uid] == nil {
			t.begin(ctx, &order{certificate: c})
			// After a failure of the authority, one order shows whether it is back.
			if t.pauses > 0 {
				return
			}
		}
	}
	t.ask(ctx, snap, now)
}

// ask asks about one renewal at a time.
func (t *term) ask(ctx context.Context, snap *state.Snapshot, now time.Time) {
	if len(t.orders) > 0 {
		return
	}
	for c := range asked(snap) {
		uid := c.GetMetadata().GetUid()
		at, known := t.askAt[uid]
		if !known {
			// A new leader does not ask about all of them at once.
			at = now.Add(time.Duration(rand.Int64N(int64(askAgain))))
			t.askAt[uid] = at
		}
		if !at.After(now) {
			t.askAt[uid] = now.Add(askAgain)
			t.begin(ctx, &order{certificate: c, asks: true})
			return
		}
	}
}

// asked lists the certificates that the authority may want to have renewed earlier.
func asked(snap *state.Snapshot) iter.Seq[*v1.Certificate] {
	return func(yield func(*v1.Certificate) bool) {
		for c := range snap.Certificates("", "") {
			status := c.GetStatus()
			if c.GetSpec().GetSource() == spec.TLSAuto && status.GetState() == spec.CertificateReady && status.GetFailures() == 0 && !yield(c) {
				return
			}
		}
	}
}

func (t *term) begin(ctx context.Context, o *order) {
	own, stop := context.WithCancel(ctx)
	o.stop = stop
	t.orders[o.certificate.GetMetadata().GetUid()] = o
	settings := t.acme
	t.tasks.Go(func() {
		defer stop()
		if o.asks {
			o.err = t.askRenewal(own, settings, o)
		} else {
			o.err = t.obtain(own, settings, o)
		}
		select {
		case t.done <- o:
		case <-ctx.Done():
		}
	})
}

// pause is how long nothing will be due.
func (t *term) pause(snap *state.Snapshot) time.Duration {
	now := t.now()
	pause := askAgain
	hear := func(at time.Time) {
		if d := at.Sub(now); d < pause {
			pause = max(d, 0)
		}
	}
	if at, known := next(now, snap); known {
		hear(at)
	}
	if now.Before(t.pausedUntil) {
		hear(t.pausedUntil)
	} else if len(t.orders) == 0 {
		for c := range asked(snap) {
			hear(t.askAt[c.GetMetadata().GetUid()])
		}
	}
	return pause
}
