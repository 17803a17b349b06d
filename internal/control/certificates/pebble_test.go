package certificates_test

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// with makes a world with a real authority.
func with(t *testing.T) (*world, *ingress, *pebble, *nameserver) {
	t.Helper()
	w, names := newWorld(t), newNameserver(t)
	in := newIngress(w)
	p := newPebble(t, in, names.address)
	w.options.Resolvers = []string{names.address}
	w.configure(p.settings())
	return w, in, p, names
}

func (w *world) wantLeaf(c *v1.Certificate, host string) *x509.Certificate {
	w.t.Helper()
	leaf := spec.ParseLeaf(c.GetSpec().GetChain())
	if err := leaf.VerifyHostname(strings.Replace(host, "*.", "any.", 1)); err != nil {
		w.t.Error(err)
	}
	if w.pair(c).Leaf.SerialNumber.Cmp(leaf.SerialNumber) != 0 {
		w.t.Error("the key is that of another certificate")
	}
	return leaf
}

func TestCertificatesOfAnAuthorityAreProvenOverHTTP(t *testing.T) {
	w, in, _, _ := with(t)
	in.withTLS.Store(false)
	w.lead()
	w.route("shop", "shop.example.org", spec.TLSAuto)
	c := w.awaitReady("shop.example.org")
	leaf := w.wantLeaf(c, "shop.example.org")
	if in.answeredByHTTP.Load() == 0 || in.answeredByTLS.Load() != 0 {
		t.Errorf("HTTP answered %d times, TLS %d times", in.answeredByHTTP.Load(), in.answeredByTLS.Load())
	}
	status := c.GetStatus()
	if status.GetProblem() != "" || status.GetFailures() != 0 || !strings.Contains(status.GetIssuer(), "Pebble") || status.GetKeyVersion() != 1 {
		t.Errorf("the status is %v", status)
	}
	if at := status.GetNextTry().AsTime(); at.Before(leaf.NotBefore.Add(24*time.Hour)) || at.After(leaf.NotAfter.Add(-24*time.Hour)) {
		t.Errorf("it is renewed at %s, and valid from %s to %s", at, leaf.NotBefore, leaf.NotAfter)
	}
	w.await("shop.example.org", "left no answers behind", func(*v1.Certificate) bool {
		return w.store.Snapshot().Count(state.KindCertificateChallenge) == 0
	})
	if want := []string{"Created", "Issued"}; !slices.Equal(w.events(), want) {
		t.Errorf("the events are %q, want %q", w.events(), want)
	}

	// The last route takes the certificate and its key with it.
	w.removeRoute("shop")
	w.await("shop.example.org", "was removed", func(c *v1.Certificate) bool { return c == nil })
	if n := w.store.Snapshot().Count(state.KindCertificateKey); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

func TestCertificatesOfAnAuthorityAreProvenOverTLS(t *testing.T) {
	w, in, _, _ := with(t)
	in.withHTTP.Store(false)
	w.lead()
	w.route("shop", "shop.example.org", spec.TLSAuto)
	w.wantLeaf(w.awaitReady("shop.example.org"), "shop.example.org")
	if in.answeredByTLS.Load() == 0 {
		t.Error("nobody has seen the certificate that answers")
	}
}

// A wildcard can only be proven by DNS. A DNS provider that refuses is no obstacle for other hosts.
func TestCertificatesOfWildcardsAreProvenByDNS(t *testing.T) {
	w, _, p, names := with(t)
	w.lead()
	w.route("all", "*.example.org", spec.TLSAuto)
	c := w.awaitProblem("*.example.org")
	if problem := c.GetStatus().GetProblem(); !strings.Contains(problem, "needs a DNS provider; set acme.dns") {
		t.Errorf("without a provider: %q", problem)
	}

	settings := p.settings()
	settings.Dns = &v1.AcmeDns{Provider: "rfc2136", Settings: map[string]string{
		"server": names.address, "keyName": tsigName, "keyAlgorithm": "hmac-sha256", "key": "d3Jvbmc=",
	}}
	w.configure(settings)
	w.await("*.example.org", "fails with the wrong key", func(c *v1.Certificate) bool {
		return strings.Contains(c.GetStatus().GetProblem(), "the DNS record that proves *.example.org could not be made")
	})
	w.route("shop", "shop.example.org", spec.TLSAuto)
	w.wantLeaf(w.awaitReady("shop.example.org"), "shop.example.org")

	// Another configuration is tried at once.
	settings.Dns.Settings["key"] = tsigKey
	w.configure(settings)
	w.wantLeaf(w.awaitReady("*.example.org"), "*.example.org")
	if left, updates := names.left(); left != 0 || updates == 0 {
		t.Errorf("%d records are left after %d updates", left, updates)
	}
	for _, setting := range w.store.Snapshot().Cluster().GetSpec().GetAcme().GetDns().GetSettings() {
		if !strings.HasPrefix(setting, "sealed:") || strings.Contains(setting, tsigKey) {
			t.Errorf("a setting is stored as %q", setting)
		}
	}
}

func (w *world) dueNow(host string) {
	w.t.Helper()
	w.do(func(snap *state.Snapshot, b *state.Batch) error {
		old := snap.CertificateByName("web", spec.CertificateName(host))
		now := proto.CloneOf(old)
		now.Status.NextTry = timestamppb.New(time.Now().Add(-time.Second))
		b.Update(now, old.GetMetadata().GetVersion())
		return nil
	})
}

// renewed has a certificate renewed. Pebble hands a certificate out a moment before it knows it as one that can be replaced,
// and refuses the renewal then.
func (w *world) renewed(host string) *v1.Certificate {
	w.t.Helper()
	for {
		failures := w.certificate(host).GetStatus().GetFailures()
		w.dueNow(host)
		after := w.await(host, "was renewed", func(c *v1.Certificate) bool {
			return c.GetStatus().GetKeyVersion() == 2 || c.GetStatus().GetFailures() > failures
		})
		if after.GetStatus().GetKeyVersion() == 2 {
			return after
		}
		if problem := after.GetStatus().GetProblem(); !strings.Contains(problem, "could not find an order") {
			w.t.Fatalf("the certificate of %s was not renewed: %s", host, problem)
		}
	}
}

func TestARenewalReplacesTheKey(t *testing.T) {
	w, _, _, _ := with(t)
	w.lead()
	w.route("shop", "shop.example.org", spec.TLSAuto)
	before := w.awaitReady("shop.example.org")
	old := w.pair(before)
	after := w.renewed("shop.example.org")
	if w.pair(after).Leaf.Equal(old.Leaf) || after.GetStatus().GetFingerprint() == before.GetStatus().GetFingerprint() {
		t.Error("the certificate is the same")
	}
	events := slices.DeleteFunc(w.events(), func(reason string) bool { return reason == "RenewalFailed" })
	if want := []string{"Created", "Issued", "Renewed"}; !slices.Equal(events, want) {
		t.Errorf("the events are %q, want %q", w.events(), want)
	}
	if n := w.store.Snapshot().Count(state.KindAcmeAccount); n != 1 {
		t.Errorf("there are %d accounts", n)
	}
}

// Whatever the authority does, the old certificate stays in use, and its status says what is wrong.
func TestAFailedRenewalKeepsTheOldCertificate(t *testing.T) {
	limited := http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		answer.Header().Set("Content-Type", "application/problem+json")
		answer.Header().Set("Retry-After", "7200")
		answer.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(answer, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many orders"}`)
	})
	down := http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(answer).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	for name, c := range map[string]struct {
		fault func(*world, *ingress, *pebble)
		want  string
		least time.Duration
	}{
		"the authority is down": {func(_ *world, _ *ingress, p *pebble) { p.intercept.Store(&down) }, "cannot be reached", time.Minute},
		"the authority limits":  {func(_ *world, _ *ingress, p *pebble) { p.intercept.Store(&limited) }, "limits the rate of requests", 2*time.Hour - time.Minute},
		"another host answers":  {func(_ *world, in *ingress, _ *pebble) { in.wrong.Store(true); in.withTLS.Store(false) }, "got a wrong answer from shop.example.org", 4 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w, in, p, _ := with(t)
			w.options.Patience = 300 * time.Millisecond
			w.lead()
			w.route("shop", "shop.example.org", spec.TLSAuto)
			before := w.awaitReady("shop.example.org")
			c.fault(w, in, p)
			w.dueNow("shop.example.org")
			after := w.await("shop.example.org", "says what is wrong", func(now *v1.Certificate) bool {
				return strings.Contains(now.GetStatus().GetProblem(), c.want)
			})
			status := after.GetStatus()
			if after.GetSpec().GetChain() != before.GetSpec().GetChain() || status.GetState() != spec.CertificateReady || status.GetFailures() == 0 {
				t.Errorf("the certificate is %v", after)
			}
			if wait := time.Until(status.GetNextTry().AsTime()); wait < c.least-10*time.Second {
				t.Errorf("it tries again in %s", wait)
			}
			if events := w.events(); events[len(events)-1] != "RenewalFailed" {
				t.Errorf("the events are %q", events)
			}
		})
	}
}

// An authority that has forgotten the account gets another one.
func TestALostAccountIsMadeAgain(t *testing.T) {
	w, _, p, _ := with(t)
	w.lead()
	w.route("shop", "shop.example.org", spec.TLSAuto)
	w.awaitReady("shop.example.org")
	p.restart()
	w.dueNow("shop.example.org")
	w.await("shop.example.org", "was renewed", func(c *v1.Certificate) bool { return c.GetStatus().GetKeyVersion() == 2 })
	if n := w.store.Snapshot().Count(state.KindAcmeAccount); n != 1 {
		t.Errorf("there are %d accounts", n)
	}
}

// The order of a leader that is gone is lost with its answers, and the next leader orders again.
func TestTheNextLeaderOrdersAgain(t *testing.T) {
	w, in, _, _ := with(t)
	in.withHTTP.Store(false)
	in.withTLS.Store(false)
	w.options.Patience = time.Minute
	stop := w.lead()
	w.route("shop", "shop.example.org", spec.TLSAuto)
	w.await("shop.example.org", "is being proven", func(*v1.Certificate) bool {
		return w.store.Snapshot().Count(state.KindCertificateChallenge) == 1
	})
	stop()
	w.do(func(_ *state.Snapshot, b *state.Batch) error { // as if it could not remove its answer any more
		b.Put(&statev1.CertificateChallenge{Metadata: &v1.Metadata{Uid: "old"}, Host: "old.example.org", Token: "old", KeyAuthorization: "old"})
		return nil
	})
	in.withHTTP.Store(true)
	in.withTLS.Store(true)
	w.lead()
	w.awaitReady("shop.example.org")
	w.await("shop.example.org", "left no answers behind", func(*v1.Certificate) bool {
		return w.store.Snapshot().Count(state.KindCertificateChallenge) == 0
	})
}

// Without its last route an order ends, and nothing remains of it.
func TestAnOrderEndsWithItsRoute(t *testing.T) {
	w, in, _, _ := with(t)
	in.withHTTP.Store(false)
	in.withTLS.Store(false)
	w.options.Patience = time.Minute
	w.lead()
	w.route("shop", "shop.example.org", spec.TLSAuto)
	w.await("shop.example.org", "is being proven", func(*v1.Certificate) bool {
		return w.store.Snapshot().Count(state.KindCertificateChallenge) == 1
	})
	w.removeRoute("shop")
	w.await("shop.example.org", "left nothing behind", func(c *v1.Certificate) bool {
		return c == nil && w.store.Snapshot().Count(state.KindCertificateChallenge) == 0
	})
}
