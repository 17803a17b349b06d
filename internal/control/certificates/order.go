package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/acme"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// obtain orders a certificate and stores it, or why there is none.
func (t *term) obtain(ctx context.Context, settings *v1.Acme, o *order) error {
	c := o.certificate
	host := c.GetSpec().GetHosts()[0]
	issued, renewAt, err := t.deliver(ctx, settings, c, host)
	o.again = renewAt.again
	if ctx.Err() != nil {
		return ctx.Err() // the certificate is not needed any more, or another server leads
	}
	if err != nil {
		t.Logger.Warn("no certificate was issued", "host", host, "error", err)
		t.Metrics.CertificateOrdered(spec.TLSAuto, false)
		return errors.Join(err, t.fail(ctx, c, err))
	}
	t.Metrics.CertificateOrdered(spec.TLSAuto, true)
	return t.store(ctx, c, issued, renewAt.at)
}

// renewal is when a certificate is renewed, and when to ask again.
type renewal struct{ at, again time.Time }

func (t *term) deliver(ctx context.Context, settings *v1.Acme, c *v1.Certificate, host string) (acme.Issued, renewal, error) {
	authority, err := t.authority(settings, c)
	if err != nil {
		return acme.Issued{}, renewal{}, err
	}
	account, err := t.accountAt(ctx, authority, settings)
	if err != nil {
		return acme.Issued{}, renewal{}, err
	}
	issued, err := authority.Obtain(ctx, account, host, replaced(c))
	if f, ok := errors.AsType[*acme.Failure](err); ok && f.NoAccount {
		if account, err = t.renewAccount(ctx, authority, settings, account); err == nil {
			issued, err = authority.Obtain(ctx, account, host, nil)
		}
	}
	if err != nil {
		return acme.Issued{}, renewal{}, err
	}
	leaf := spec.ParseLeaf(string(issued.Chain))
	if leaf == nil || !spec.CertificateCovers(spec.CertificateHosts(leaf), host) {
		return acme.Issued{}, renewal{}, &acme.Failure{Reason: fmt.Sprintf("the ACME authority sent a certificate that is not for %s", host)}
	}
	return issued, t.suggested(ctx, authority, leaf), nil
}

// replaced is the certificate that a new one replaces at the same authority.
func replaced(c *v1.Certificate) *x509.Certificate {
	if c.GetStatus().GetState() != spec.CertificateReady || c.GetStatus().GetFailures() > 0 {
		return nil
	}
	return spec.ParseLeaf(c.GetSpec().GetChain())
}

// suggested is when a certificate is renewed: when the authority suggests it, or after two thirds of its life.
func (t *term) suggested(ctx context.Context, authority Authority, leaf *x509.Certificate) renewal {
	r := renewal{at: RenewAt(leaf), again: t.now().Add(askAgain)}
	suggested, err := authority.RenewalOf(ctx, leaf)
	if err != nil {
		return r
	}
	// Never so late that one failure would leave nothing to serve.
	last := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 9 / 10)
	if at := within(leaf, suggested.Start, suggested.End); at.Before(last) {
		r.at = at
	}
	if !suggested.Again.IsZero() {
		r.again = suggested.Again
	}
	return r
}

// askRenewal asks when a certificate should be renewed, because it may have been revoked.
func (t *term) askRenewal(ctx context.Context, settings *v1.Acme, o *order) error {
	leaf := spec.ParseLeaf(o.certificate.GetSpec().GetChain())
	authority, err := t.authority(settings, o.certificate)
	if leaf == nil || err != nil {
		return nil
	}
	r := t.suggested(ctx, authority, leaf)
	if o.again = r.again; r.at.Equal(tryAt(o.certificate)) {
		return nil
	}
	return t.change(ctx, o.certificate, func(now *v1.Certificate) { now.Status.NextTry = timestamppb.New(r.at) })
}

// end hears from an order.
func (t *term) end(o *order) {
	uid := o.certificate.GetMetadata().GetUid()
	delete(t.orders, uid)
	if !o.again.IsZero() {
		t.askAt[uid] = o.again
	}
	if o.asks {
		return
	}
	f, failed := errors.AsType[*acme.Failure](o.err)
	if failed && f.Busy {
		t.pauses++
		t.pausedUntil = t.now().Add(backoff(firstPause, maxPause, t.pauses, f.Wait, rand.Float64()))
		return
	}
	if !errors.Is(o.err, context.Canceled) {
		t.pauses, t.pausedUntil = 0, time.Time{}
	}
}

// authority is the one that the configuration names.
func (t *term) authority(settings *v1.Acme, c *v1.Certificate) (Authority, error) {
	if t.Authority != nil {
		return t.Authority, nil
	}
	a := &acme.Authority{
		Directory: spec.DirectoryOf(settings), Challenges: &challenges{term: t, certificate: c},
		Resolvers: t.Resolvers, Dial: t.Dial, Patience: t.Patience,
	}
	if text := settings.GetCa(); text != "" {
		a.Roots = x509.NewCertPool()
		a.Roots.AppendCertsFromPEM([]byte(text))
	}
	if dns := settings.GetDns(); dns.GetProvider() != "" {
		opened, err := openSettings(t.Sealer, dns)
		if err != nil {
			return nil, &acme.Failure{Reason: "the settings of the DNS provider cannot be opened: " + err.Error() + "; set acme.dns.settings again", Err: err}
		}
		if a.DNS, err = acme.NewDNSProvider(dns.GetProvider(), opened); err != nil {
			return nil, &acme.Failure{Reason: err.Error() + "; set acme.dns.provider to one of " + strings.Join(spec.DNSProviderNames(), ", "), Err: err}
		}
	}
	return a, nil
}

// accountAt is the cluster's account, which the first order makes.
func (t *term) accountAt(ctx context.Context, authority Authority, settings *v1.Acme) (acme.Account, error) {
	t.account.Lock()
	defer t.account.Unlock()
	uid := accountUID(spec.DirectoryOf(settings), settings.GetEmail())
	if stored := t.Store.Snapshot().AcmeAccount(uid); stored != nil {
		text, err := t.Sealer.Unseal(stored.GetSealedKey(), state.AcmeAccountContext(uid))
		if err != nil {
			return acme.Account{}, err
		}
		key, err := acme.ParseKey(text)
		return acme.Account{Location: stored.GetLocation(), Key: key}, err
	}
	made, err := authority.Register(ctx, settings.GetEmail())
	if err != nil {
		return acme.Account{}, err
	}
	text, err := acme.MarshalKey(made.Key)
	if err != nil {
		return acme.Account{}, err
	}
	sealed, err := t.Sealer.Seal(text, state.AcmeAccountContext(uid))
	if err != nil {
		return acme.Account{}, err
	}
	_, err = t.Proposer.Propose(ctx, func(_ *state.Snapshot, b *state.Batch) error {
		b.Put(&statev1.AcmeAccount{Metadata: &v1.Metadata{Uid: uid}, Location: made.Location, SealedKey: sealed})
		return nil
	})
	return made, err
}

// renewAccount replaces an account that the authority does not know any more.
func (t *term) renewAccount(ctx context.Context, authority Authority, settings *v1.Acme, lost acme.Account) (acme.Account, error) {
	uid := accountUID(spec.DirectoryOf(settings), settings.GetEmail())
	_, err := t.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if snap.AcmeAccount(uid).GetLocation() == lost.Location { // unless another order was faster
			b.Delete(state.KindAcmeAccount, uid)
		}
		return nil
	})
	if err != nil {
		return acme.Account{}, err
	}
	return t.accountAt(ctx, authority, settings)
}

// issueOwn issues the due certificates of the cluster's own authority.
func (t *term) issueOwn(ctx context.Context) error {
	for {
		issued := 0
		for c := range due(t.now(), t.Store.Snapshot()) {
			if c.GetSpec().GetSource() != spec.TLSCluster {
				continue
			}
			if err := t.issue(ctx, c); err != nil {
				return err
			}
			if issued++; issued == maxIssued {
				break
			}
		}
		if issued < maxIssued {
			return nil
		}
	}
}

func (t *term) issue(ctx context.Context, c *v1.Certificate) error {
	made, err := t.sign(c.GetSpec().GetHosts()[0])
	if t.Metrics.CertificateOrdered(spec.TLSCluster, err == nil); err != nil {
		t.Logger.Warn("no certificate was issued", "host", c.GetSpec().GetHosts()[0], "error", err)
		return t.fail(ctx, c, &acme.Failure{Reason: err.Error(), Err: err})
	}
	return t.store(ctx, c, made, RenewAt(spec.ParseLeaf(string(made.Chain))))
}

// sign makes a certificate of the cluster's own authority.
func (t *term) sign(host string) (acme.Issued, error) {
	key, err := acme.NewKey()
	if err != nil {
		return acme.Issued{}, err
	}
	der, err := t.CA.IssueHost(host, key.Public(), t.now())
	if err != nil {
		return acme.Issued{}, err
	}
	text, err := acme.MarshalKey(key)
	return acme.Issued{Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: text}, err
}

// store replaces a certificate and its key.
func (t *term) store(ctx context.Context, c *v1.Certificate, issued acme.Issued, renewAt time.Time) error {
	uid := c.GetMetadata().GetUid()
	leaf := spec.ParseLeaf(string(issued.Chain))
	_, err := t.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		old := snap.Certificate(uid)
		if old == nil || old.GetSpec().GetSource() != c.GetSpec().GetSource() {
			return nil
		}
		now := proto.CloneOf(old)
		now.Spec.Chain, now.Spec.Hosts = string(issued.Chain), spec.CertificateHosts(leaf)
		now.Status = spec.DescribeCertificate(leaf, t.now())
		now.Status.NextTry, now.Status.KeyVersion = timestamppb.New(renewAt), old.GetStatus().GetKeyVersion()+1
		b.Update(now, old.GetMetadata().GetVersion())
		sealed, err := t.Sealer.Seal(issued.Key, state.CertificateKeyContext(uid))
		if err != nil {
			return err
		}
		key := &statev1.CertificateKey{Metadata: &v1.Metadata{Uid: uid}, Sealed: sealed}
		reason, message := eventIssued, fmt.Sprintf("by %s until %s", now.GetStatus().GetIssuer(), leaf.NotAfter.UTC().Format(time.DateOnly))
		if stored := snap.CertificateKey(uid); stored != nil {
			key.Metadata = proto.CloneOf(stored.GetMetadata())
			b.Update(key, stored.GetMetadata().GetVersion())
			reason = eventRenewed
		} else {
			b.Create(key)
		}
		b.Create(state.NewEvent(state.NewUID(), t.now(), now, state.SeverityInfo, reason, message, actor))
		return nil
	})
	return err
}

// fail stores why there is no new certificate, and when the next attempt is due. What there is stays in use.
func (t *term) fail(ctx context.Context, c *v1.Certificate, why error) error {
	reason, first, most, asked := why.Error(), firstBackoff, maxBackoff, time.Duration(0)
	if f, ok := errors.AsType[*acme.Failure](why); ok {
		reason, asked = f.Reason, f.Wait
		if f.Busy || f.NoAccount { // then it says nothing about the host
			first, most = firstPause, maxPause
		}
	}
	_, err := t.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		old := snap.Certificate(c.GetMetadata().GetUid())
		if old == nil || old.GetSpec().GetSource() != c.GetSpec().GetSource() {
			return nil
		}
		now := proto.CloneOf(old)
		now.Status.Failures++
		now.Status.Problem = reason
		now.Status.NextTry = timestamppb.New(t.now().Add(backoff(first, most, int(now.GetStatus().GetFailures()), asked, rand.Float64())))
		b.Update(now, old.GetMetadata().GetVersion())
		if old.GetStatus().GetProblem() != reason {
			what := eventFailed
			if old.GetSpec().GetChain() != "" {
				what = eventNotRenewed
			}
			b.Create(state.NewEvent(state.NewUID(), t.now(), now, state.SeverityWarning, what, reason, actor))
		}
		return nil
	})
	return err
}

// change changes a certificate that still exists.
func (t *term) change(ctx context.Context, c *v1.Certificate, f func(now *v1.Certificate)) error {
	_, err := t.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		old := snap.Certificate(c.GetMetadata().GetUid())
		if old == nil || old.GetSpec().GetSource() != c.GetSpec().GetSource() || old.GetStatus().GetKeyVersion() != c.GetStatus().GetKeyVersion() {
			return nil
		}
		now := proto.CloneOf(old)
		f(now)
		b.Update(now, old.GetMetadata().GetVersion())
		return nil
	})
	return err
}
