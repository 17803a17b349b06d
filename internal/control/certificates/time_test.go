package certificates_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/acme"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// slowAuthority issues certificates for 90 days without asking anybody, and takes a minute for each. It stands in for
// pebble where days have to pass.
type slowAuthority struct {
	mu            sync.Mutex
	err           error
	renewal       *acme.Renewal
	orders        []time.Time
	running, most int
}

func (a *slowAuthority) Register(context.Context, string) (acme.Account, error) {
	key, err := acme.NewKey()
	return acme.Account{Location: "https://acme.example.org/1", Key: key}, err
}

func (a *slowAuthority) RenewalOf(context.Context, *x509.Certificate) (acme.Renewal, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.renewal == nil {
		return acme.Renewal{}, acme.ErrNoRenewal
	}
	return *a.renewal, nil
}

func (a *slowAuthority) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// attempts are when orders began, after the first one.
func (a *slowAuthority) attempts() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []time.Duration
	for _, at := range a.orders {
		all = append(all, at.Sub(a.orders[0]))
	}
	return all
}

func (a *slowAuthority) Obtain(ctx context.Context, _ acme.Account, host string, _ *x509.Certificate) (acme.Issued, error) {
	a.set(func() {
		a.orders = append(a.orders, time.Now())
		a.running++
		a.most = max(a.most, a.running)
	})
	defer a.set(func() { a.running-- })
	select {
	case <-ctx.Done():
		return acme.Issued{}, ctx.Err()
	case <-time.After(time.Minute):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return acme.Issued{}, a.err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return acme.Issued{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().Unix()), DNSNames: []string{host}, NotBefore: time.Now(), NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return acme.Issued{}, err
	}
	text, err := acme.MarshalKey(key)
	return acme.Issued{Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: text}, err
}

// inTime runs a test with a clock of its own.
func inTime(t *testing.T, test func(t *testing.T, w *world, a *slowAuthority)) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWorld(t), &slowAuthority{}
		w.options.Authority = a
		stop := w.lead()
		test(t, w, a)
		stop()
	})
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

const day = 24 * time.Hour

func TestCertificatesAreRenewedAfterTwoThirdsOfTheirLife(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, _ *slowAuthority) {
		w.route("shop", "shop.example.org", spec.TLSAuto)
		w.route("home", "home.internal", spec.TLSCluster)
		pass(57 * day)
		for _, host := range []string{"shop.example.org", "home.internal"} {
			if n := w.certificate(host).GetStatus().GetKeyVersion(); n != 1 {
				t.Errorf("after 57 days the certificate of %s was made %d times", host, n)
			}
		}
		pass(4 * day)
		for _, host := range []string{"shop.example.org", "home.internal"} {
			c := w.certificate(host)
			if n := c.GetStatus().GetKeyVersion(); n != 2 {
				t.Errorf("after 61 days the certificate of %s was made %d times", host, n)
			}
			w.pair(c)
		}
		leaf := spec.ParseLeaf(w.certificate("home.internal").GetSpec().GetChain())
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(w.ca.Trust().PEM())
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "home.internal", CurrentTime: time.Now()}); err != nil {
			t.Error(err)
		}
	})
}

// An authority may suggest an earlier time, for instance because it has to revoke a certificate.
func TestTheAuthoritySuggestsWhenToRenew(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, a *slowAuthority) {
		w.route("shop", "shop.example.org", spec.TLSAuto)
		pass(10 * day)
		a.set(func() { a.renewal = &acme.Renewal{Start: time.Now().Add(-time.Hour), End: time.Now()} })
		pass(7 * time.Hour)
		if n := w.certificate("shop.example.org").GetStatus().GetKeyVersion(); n < 2 {
			t.Error("it was not renewed")
		}
	})
}

// Failures of one host are retried ever more rarely, with the same event only once.
func TestFailuresAreRetriedEverMoreRarely(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, a *slowAuthority) {
		a.set(func() { a.err = &acme.Failure{Reason: "nobody answers"} })
		w.route("shop", "shop.example.org", spec.TLSAuto)
		pass(30 * time.Hour)
		attempts := a.attempts()
		// 5, 10, 20 ... minutes up to 12 hours, up to a fifth more, and a minute for the order.
		want := []time.Duration{0, 5 * time.Minute, 15 * time.Minute, 35 * time.Minute, 75 * time.Minute, 155 * time.Minute, 315 * time.Minute, 635 * time.Minute, 1275 * time.Minute}
		if len(attempts) != len(want) {
			t.Fatalf("in 30 hours it was tried at %v", attempts)
		}
		for i, at := range attempts {
			if least, most := want[i], want[i]*6/5+time.Duration(i)*time.Minute; at < least || at > most {
				t.Errorf("attempt %d was after %s, and not between %s and %s", i+1, at, least, most)
			}
		}
		if want := []string{"Created", "IssueFailed"}; !slices.Equal(w.events(), want) {
			t.Errorf("the events are %q, want %q", w.events(), want)
		}
		// The next leader waits as long.
		status := w.certificate("shop.example.org").GetStatus()
		if status.GetProblem() != "nobody answers" || status.GetFailures() != int32(len(want)) || !status.GetNextTry().AsTime().After(time.Now()) {
			t.Errorf("the status is %v", status)
		}
		a.set(func() { a.err = nil })
		pass(15 * time.Hour)
		if status := w.certificate("shop.example.org").GetStatus(); status.GetProblem() != "" || status.GetFailures() != 0 || status.GetState() != spec.CertificateReady {
			t.Errorf("after a success the status is %v", status)
		}
	})
}

// While the authority is down, one order shows whether it is back, and then all others follow a few at a time.
func TestADeadAuthorityIsNotFloodedWithOrders(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, a *slowAuthority) {
		a.set(func() { a.err = &acme.Failure{Reason: "it cannot be reached", Busy: true} })
		for i := range 50 {
			w.route(fmt.Sprint("r", i), fmt.Sprintf("h%d.example.org", i), spec.TLSAuto)
		}
		pass(5 * time.Hour)
		if n := len(a.attempts()); n > 30 {
			t.Errorf("in 5 hours a dead authority got %d orders", n)
		}
		a.set(func() { a.err = nil })
		pass(90 * time.Minute)
		for c := range w.store.Snapshot().Certificates("", "") {
			if c.GetStatus().GetState() != spec.CertificateReady {
				t.Errorf("after 90 minutes %v", c)
			}
		}
		if a.most > 4 {
			t.Errorf("%d orders ran at once", a.most)
		}
	})
}

func TestALimitIsRespected(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, a *slowAuthority) {
		a.set(func() { a.err = &acme.Failure{Reason: "too many", Busy: true, Wait: 24 * time.Hour} })
		w.route("shop", "shop.example.org", spec.TLSAuto)
		pass(time.Hour)
		w.route("api", "api.example.org", spec.TLSAuto)
		pass(22 * time.Hour)
		if n := len(a.attempts()); n != 1 {
			t.Errorf("within the day that the authority asked for it got %d orders", n)
		}
	})
}

// Another mode of the routes changes the source, and the old certificate stays until the new one is there.
func TestAnotherModeKeepsTheOldCertificateUntilThereIsAnother(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, _ *slowAuthority) {
		w.route("shop", "shop.example.org", spec.TLSCluster)
		pass(time.Second)
		own := w.certificate("shop.example.org")
		w.route("shop", "shop.example.org", spec.TLSAuto)
		pass(time.Second)
		if c := w.certificate("shop.example.org"); c.GetSpec().GetSource() != spec.TLSAuto || c.GetSpec().GetChain() != own.GetSpec().GetChain() || own.GetSpec().GetChain() == "" {
			t.Errorf("during the order it is %v", c)
		}
		pass(2 * time.Minute)
		if c := w.certificate("shop.example.org"); c.GetSpec().GetChain() == own.GetSpec().GetChain() || c.GetStatus().GetKeyVersion() != 2 {
			t.Errorf("after the order it is %v", c)
		}
		w.route("shop", "shop.example.org", spec.TLSOff)
		pass(time.Second)
		if n := w.store.Snapshot().Count(state.KindCertificate) + w.store.Snapshot().Count(state.KindCertificateKey); n != 0 {
			t.Errorf("without TLS %d objects are left", n)
		}
	})
}

// A certificate that cannot be renewed expires, and one of a user says before that it must be replaced: each once.
func TestTheEndOfACertificateIsAnnounced(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, a *slowAuthority) {
		w.route("shop", "shop.example.org", spec.TLSAuto)
		pass(time.Hour)
		a.set(func() { a.err = &acme.Failure{Reason: "nobody answers"} })
		w.do(func(_ *state.Snapshot, b *state.Batch) error {
			b.Create(&v1.Certificate{
				Metadata: &v1.Metadata{Uid: "own", Namespace: "web", Name: "mine"}, Spec: &v1.CertificateSpec{Source: spec.TLSOwn, Hosts: []string{"mine.example.org"}},
				Status: &v1.CertificateStatus{State: spec.CertificateReady, NotAfter: timestamppb.New(time.Now().Add(30 * day))},
			})
			return nil
		})
		pass(91 * day)
		if got := w.certificate("shop.example.org").GetStatus(); got.GetState() != spec.CertificateExpired || got.GetProblem() != "nobody answers" {
			t.Errorf("the status is %v", got)
		}
		own := w.store.Snapshot().Certificate("own").GetStatus()
		if own.GetState() != spec.CertificateExpired || !strings.Contains(own.GetProblem(), "it has expired on") {
			t.Errorf("the status of the user's own is %v", own)
		}
		if want := []string{"Created", "Issued", "ExpiresSoon", "Expired", "RenewalFailed", "Expired"}; !slices.Equal(w.events(), want) {
			t.Errorf("the events are %q, want %q", w.events(), want)
		}
	})
}
