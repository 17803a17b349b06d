package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"strings"
	"testing"
	"time"
)

func newTestCA(t *testing.T, cluster string) *CA {
	t.Helper()
	ca, err := NewCA(cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func mustID(t *testing.T, cluster string, kind Kind, parts ...string) ID {
	t.Helper()
	id, err := NewID(cluster, kind, parts...)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// issue gives a member its credentials, good for both ends of a connection.
func issue(t *testing.T, ca *CA, ttl time.Duration, kind Kind, parts ...string) *Credentials {
	t.Helper()
	key, csr, err := NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	id := mustID(t, ca.Trust().Cluster(), kind, parts...)
	chain, err := ca.Issue(csr, id, IssueOptions{TTL: ttl, Server: true, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCredentials(key, chain)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func request(t *testing.T, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func TestTheCACanBeStoredAndLoaded(t *testing.T) {
	ca := newTestCA(t, testCluster)
	key, err := ca.MarshalKey()
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadCA(ca.Trust().DER(), key)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Trust().Cluster() != testCluster || loaded.Trust().Fingerprint() != ca.Trust().Fingerprint() {
		t.Errorf("loaded CA is of cluster %s, fingerprint %s", loaded.Trust().Cluster(), loaded.Trust().Fingerprint())
	}
	fromPEM, err := ParseTrustPEM(ca.Trust().PEM())
	if err != nil || fromPEM.Fingerprint() != ca.Trust().Fingerprint() {
		t.Errorf("ParseTrustPEM = %v, %v", fromPEM, err)
	}
	member := issue(t, loaded, time.Hour, KindNode, "n-1")
	if _, err := ca.Trust().verify(member.cert.Leaf, x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("certificate of the loaded CA: %v", err)
	}
}

func TestACAWithTheKeyOfAnotherIsRefused(t *testing.T) {
	ca := newTestCA(t, testCluster)
	key, err := newTestCA(t, testCluster).MarshalKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(ca.Trust().DER(), key); err == nil || !strings.Contains(err.Error(), "does not belong") {
		t.Errorf("LoadCA with a foreign key: %v", err)
	}
	if _, err := LoadCA(ca.Trust().DER(), key[:20]); err == nil {
		t.Error("LoadCA took half a key")
	}
	member := issue(t, ca, time.Hour, KindServer, "s-1")
	if _, err := ParseTrust(member.cert.Certificate[0]); err == nil {
		t.Error("ParseTrust took the certificate of a member for that of a CA")
	}
}

// A request may contain anything: only its key gets into the certificate.
func TestOnlyTheKeyIsTakenFromARequest(t *testing.T) {
	ca := newTestCA(t, testCluster)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	greedy := request(t, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "root"},
		DNSNames: []string{"bank.example"},
		URIs:     []*url.URL{{Scheme: "spiffe", Host: testCluster, Path: "/server/s-1"}},
	}, key)
	id := mustID(t, testCluster, KindNode, "n-1")
	now := time.Now()
	chain, err := ca.Issue(greedy, id, IssueOptions{TTL: time.Hour, Client: true}, now)
	if err != nil {
		t.Fatal(err)
	}
	if len(chain) != 2 || !bytes.Equal(chain[1], ca.Trust().DER()) {
		t.Fatalf("the chain has %d certificates and must end with the CA's", len(chain))
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := FromCertificate(leaf); err != nil || got != id {
		t.Errorf("certificate is for %s, %v; want %s", got, err, id)
	}
	if len(leaf.DNSNames) != 0 || leaf.Subject.CommonName == "root" || leaf.IsCA {
		t.Errorf("certificate took %v, %q, CA %v from the request", leaf.DNSNames, leaf.Subject.CommonName, leaf.IsCA)
	}
	if !key.PublicKey.Equal(leaf.PublicKey) {
		t.Error("certificate is for another key")
	}
	if _, err := ca.Trust().verify(leaf, x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a client's certificate passes as a server's")
	}
	if !leaf.NotBefore.Before(now.Add(-clockSkew+time.Second)) || leaf.NotAfter.After(now.Add(time.Hour)) {
		t.Errorf("certificate holds from %s to %s", leaf.NotBefore, leaf.NotAfter)
	}
}

func TestRequestsWithoutProofOfTheKeyAreRefused(t *testing.T) {
	ca := newTestCA(t, testCluster)
	id := mustID(t, testCluster, KindNode, "n-1")
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, good, err := NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1 // the end of the signature
	options := IssueOptions{TTL: time.Hour, Client: true}
	for name, c := range map[string]struct {
		csr []byte
		id  ID
		o   IssueOptions
		now time.Time
	}{
		"not a request":      {[]byte("hello"), id, options, time.Now()},
		"forged signature":   {forged, id, options, time.Now()},
		"P-384 key":          {request(t, &x509.CertificateRequest{}, p384), id, options, time.Now()},
		"RSA key":            {request(t, &x509.CertificateRequest{}, rsaKey), id, options, time.Now()},
		"nobody":             {good, ID{}, options, time.Now()},
		"another cluster":    {good, mustID(t, "elsewhere", KindNode, "n-1"), options, time.Now()},
		"no usage":           {good, id, IssueOptions{TTL: time.Hour}, time.Now()},
		"no lifetime":        {good, id, IssueOptions{Client: true}, time.Now()},
		"after the CA ended": {good, id, options, time.Now().Add(caLifetime + time.Hour)},
	} {
		if _, err := ca.Issue(c.csr, c.id, c.o, c.now); err == nil {
			t.Errorf("%s: a certificate was issued", name)
		}
	}
}

func TestEd25519KeysAreWelcome(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := newTestCA(t, testCluster)
	chain, err := ca.Issue(request(t, &x509.CertificateRequest{}, key), mustID(t, testCluster, KindUser, "ada"),
		IssueOptions{TTL: time.Hour, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewCredentials(key, chain); err != nil {
		t.Error(err)
	}
}

func TestNoCertificateOutlivesTheCA(t *testing.T) {
	ca := newTestCA(t, testCluster)
	member := issue(t, ca, 2*caLifetime, KindUser, "ada")
	if member.NotAfter().After(ca.Trust().root().NotAfter) {
		t.Errorf("certificate until %s, CA until %s", member.NotAfter(), ca.Trust().root().NotAfter)
	}
}
