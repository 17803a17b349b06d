package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// rotation is one replacement of a cluster's authority, as the servers go through it.
type rotation struct {
	ca           *CA
	old, next    Authorities
	endorsements [][]byte
}

func newRotation(t *testing.T) *rotation {
	t.Helper()
	ca := newTestCA(t, testCluster)
	next, endorsements, err := ca.Successor(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &rotation{ca: ca, old: authoritiesOf(t, ca), next: authoritiesOf(t, next), endorsements: endorsements}
}

func authoritiesOf(t *testing.T, ca *CA) Authorities {
	t.Helper()
	key, err := ca.MarshalKey()
	if err != nil {
		t.Fatal(err)
	}
	return Authorities{Active: ca.Trust().DER(), Key: key}
}

func (r *rotation) step(t *testing.T, step string) {
	t.Helper()
	a := map[string]Authorities{
		"distribute": {Active: r.old.Active, Key: r.old.Key, Next: r.next.Active, Endorsements: r.endorsements},
		"renew":      {Active: r.next.Active, Key: r.next.Key, Previous: r.old.Active, Endorsements: r.endorsements},
		"done":       {Active: r.next.Active, Key: r.next.Key, Endorsements: r.endorsements[:1]},
	}[step]
	if err := r.ca.Set(a); err != nil {
		t.Fatal(err)
	}
}

// connect makes one connection and returns the errors of both ends.
func connect(t *testing.T, server, client *tls.Config) (atServer, atClient error) {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		_, err = io.WriteString(conn, "x")
		done <- err
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, client)
	_, atClient = io.ReadAll(io.LimitReader(conn, 1))
	_ = conn.Close()
	return <-done, atClient
}

func certified(t *testing.T, ca *CA, kind Kind, name string) CertificateSource {
	t.Helper()
	return issue(t, ca, time.Hour, kind, name).Certificate
}

func TestMembersWorkThroughEachStepOfARotation(t *testing.T) {
	r := newRotation(t)
	before := issue(t, r.ca, time.Hour, KindNode, "n-1")
	server := ServerTLS(r.ca.Trust(), func() (*tls.Certificate, error) { return certified(t, r.ca, KindServer, "s-1")() })
	node := func() *tls.Config { return ClientTLS(before.Trust(), before.Certificate) }

	r.step(t, "distribute")
	if atServer, atClient := connect(t, server, node()); atServer != nil || atClient != nil {
		t.Errorf("distribute, before the node learns the next authority: %v, %v", atServer, atClient)
	}
	if _, err := before.Trust().Set(r.ca.Trust().DERs()...); err != nil {
		t.Fatal(err)
	}
	r.step(t, "renew")
	if atServer, atClient := connect(t, server, node()); atServer != nil || atClient != nil {
		t.Errorf("renew, with the old certificate: %v, %v", atServer, atClient)
	}
	renewed := issue(t, r.ca, time.Hour, KindNode, "n-1")
	if renewed.Issuer() != r.ca.Trust().Fingerprint() || !renewed.Trust().Has(before.Issuer()) {
		t.Error("a certificate of this step is from the new authority, and comes with the old one")
	}
	r.step(t, "done")
	if atServer, atClient := connect(t, server, ClientTLS(renewed.Trust(), renewed.Certificate)); atServer != nil || atClient != nil {
		t.Errorf("done, with the new certificate: %v, %v", atServer, atClient)
	}
	if atServer, _ := connect(t, server, node()); atServer == nil {
		t.Error("a certificate of the old authority is accepted after the rotation")
	}
}

func TestStolenKeyOfADroppedAuthorityIsUseless(t *testing.T) {
	r := newRotation(t)
	stolen, err := OpenCA(r.old)
	if err != nil {
		t.Fatal(err)
	}
	node := issue(t, r.ca, time.Hour, KindNode, "n-1").Trust()
	r.step(t, "done")
	if _, err := node.Set(r.ca.Trust().DERs()...); err != nil {
		t.Fatal(err)
	}
	server := ServerTLS(r.ca.Trust(), certified(t, r.ca, KindServer, "s-1"))
	if atServer, _ := connect(t, server, ClientTLS(r.ca.Trust(), certified(t, stolen, KindServer, "s-2"))); atServer == nil {
		t.Error("a server accepts a member that the stolen key has made")
	}
	impostor := ServerTLS(r.ca.Trust(), certified(t, stolen, KindServer, "s-1"))
	if _, atClient := connect(t, impostor, ClientTLS(node, nil)); atClient == nil {
		t.Error("a node accepts a server that the stolen key has made")
	}
}

func TestMemberThatMissedARotationIsToldSo(t *testing.T) {
	r := newRotation(t)
	away := issue(t, r.ca, time.Hour, KindNode, "n-1")
	r.step(t, "done")
	server := ServerTLS(r.ca.Trust(), certified(t, r.ca, KindServer, "s-1"))
	if _, err := connect(t, server, ClientTLS(away.Trust(), away.Certificate)); !errors.Is(err, ErrReplaced) {
		t.Errorf("it reads: %v", err)
	}
	other := newTestCA(t, "elsewhere")
	if _, err := connect(t, server, ClientTLS(other.Trust(), nil)); errors.Is(err, ErrReplaced) {
		t.Error("a member of another cluster is told that its cluster has replaced its authority")
	}
}

func TestUserFollowsTheAuthorityAtAnyTime(t *testing.T) {
	for _, step := range []string{"distribute", "renew", "done"} {
		r := newRotation(t)
		trust, err := ParseTrustPEM(r.ca.Trust().PEM())
		if err != nil {
			t.Fatal(err)
		}
		r.step(t, step)
		server := ServerTLS(r.ca.Trust(), certified(t, r.ca, KindServer, "s-1"))
		learned := 0
		config := FollowTLS(trust, func() { learned++ })
		for range 2 {
			if _, err := connect(t, server, config); err != nil {
				t.Fatalf("%s: %v", step, err)
			}
		}
		if learned != 1 || !slices.Equal(trust.Fingerprints(), r.ca.Trust().Fingerprints()) {
			t.Errorf("%s: learned %d times, trusts %v, want %v", step, learned, trust.Fingerprints(), r.ca.Trust().Fingerprints())
		}
		stranger := newTestCA(t, testCluster)
		if _, err := connect(t, ServerTLS(stranger.Trust(), certified(t, stranger, KindServer, "s-1")), config); err == nil {
			t.Errorf("%s: a server of an authority that nobody endorses is accepted", step)
		}
	}
}

// A token names one authority. It is good while that one is trusted, whichever of them signs.
func TestTokenIsGoodWhileItsAuthorityIsTrusted(t *testing.T) {
	for step, good := range map[string][2]bool{"distribute": {true, true}, "renew": {true, true}, "done": {false, true}} {
		r := newRotation(t)
		next, err := ParseTrust(r.next.Active)
		if err != nil {
			t.Fatal(err)
		}
		old := r.ca.Trust().Fingerprint()
		r.step(t, step)
		server := ServerTLS(r.ca.Trust(), certified(t, r.ca, KindServer, "s-1"))
		for i, ca := range []Fingerprint{old, next.Fingerprint()} {
			if _, err := connect(t, server, JoinTLS(ca)); (err == nil) != good[i] {
				t.Errorf("%s, token of authority %d: %v", step, i, err)
			}
		}
		if r.ca.Lasting() != next.Fingerprint() {
			t.Errorf("%s: new tokens name an authority that will be dropped", step)
		}
	}
}

func TestSessionTicketsEndWithTheirAuthority(t *testing.T) {
	r := newRotation(t)
	before, err := r.ca.TicketKeys(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.step(t, "renew")
	after, err := r.ca.TicketKeys(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range before {
		if slices.Contains(after, key) {
			t.Error("a ticket of before the rotation would still be opened")
		}
	}
}

func TestCredentialsRemainWhatTheyWereAfterARestart(t *testing.T) {
	r := newRotation(t)
	path := filepath.Join(t.TempDir(), "credentials.pem")
	first := issue(t, r.ca, time.Hour, KindNode, "n-1")
	rotator, err := NewRotator(RotatorOptions{Current: first, Path: path, Log: slog.New(slog.DiscardHandler), Renew: renewer(r.ca, first.ID())})
	if err != nil {
		t.Fatal(err)
	}
	r.step(t, "distribute")
	if err := rotator.SetTrust(r.ca.Trust().DERs()...); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadCredentials(path)
	if err != nil || !slices.Equal(loaded.Trust().Fingerprints(), r.ca.Trust().Fingerprints()) {
		t.Fatalf("after the next authority is known: %v, %v", loaded, err)
	}
	r.step(t, "renew")
	if err := rotator.SetTrust(r.next.Active); !errors.Is(err, ErrReplaced) {
		t.Errorf("a member forgets the authority of its own certificate: %v", err)
	}
	if err := rotator.RenewNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := rotator.SetTrust(r.next.Active); err != nil {
		t.Fatal(err)
	}
	loaded, err = LoadCredentials(path)
	if err != nil || len(loaded.Trust().DERs()) != 1 || loaded.Issuer() != r.ca.Trust().Fingerprint() {
		t.Errorf("after the rotation: %v, %v", loaded, err)
	}
	if first.Trust() != rotator.Trust() || rotator.Trust().Fingerprint() != r.ca.Trust().Fingerprint() {
		t.Error("what holds the trust of the first credentials must see the change")
	}
}

func TestNodeRenewsUntilTheNewAuthoritySigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRotation(t)
		first := issue(t, r.ca, testTTL, KindNode, "n-1")
		rotator := newTestRotator(t, RotatorOptions{Current: first, Renew: renewer(r.ca, first.ID()), Renewed: func() { t.Error("other keys need not change") }})
		start(t, rotator)
		r.step(t, "distribute")
		if err := rotator.SetTrust(r.ca.Trust().DERs()...); err != nil {
			t.Fatal(err)
		}
		next, err := ParseTrust(r.next.Active)
		if err != nil {
			t.Fatal(err)
		}
		rotator.WantIssuer(next.Fingerprint()) // before the server that renews knows
		time.Sleep(5 * time.Second)
		r.step(t, "renew")
		time.Sleep(time.Minute)
		if rotator.Issuer() != next.Fingerprint() {
			t.Error("the certificate is still from the old authority")
		}
	})
}

func TestEndorsementIsNoAuthority(t *testing.T) {
	r := newRotation(t)
	for _, der := range r.endorsements {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if selfSigned(cert) {
			t.Error("an endorsement passes as an authority")
		}
		if cert.NotAfter.After(time.Now().Add(endorsementTTL)) {
			t.Errorf("it is valid until %s", cert.NotAfter)
		}
	}
}

func TestUserFollowsSeveralRotations(t *testing.T) {
	r := newRotation(t)
	trust, err := ParseTrust(r.ca.Trust().DER())
	if err != nil {
		t.Fatal(err)
	}
	r.step(t, "done")
	kept := r.endorsements[:1]
	again, endorsements, err := r.ca.Successor(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a := authoritiesOf(t, again)
	a.Endorsements = append(endorsements[:1:1], kept...)
	if err := r.ca.Set(a); err != nil {
		t.Fatal(err)
	}
	server := ServerTLS(r.ca.Trust(), certified(t, r.ca, KindServer, "s-1"))
	if _, err := connect(t, server, FollowTLS(trust, func() {})); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(trust.Fingerprints(), r.ca.Trust().Fingerprints()) {
		t.Errorf("trusts %v, want %v", trust.Fingerprints(), r.ca.Trust().Fingerprints())
	}
}
