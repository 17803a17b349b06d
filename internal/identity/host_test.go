package identity

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"
)

func issueHost(t *testing.T, ca *CA, host string) (tls.Certificate, *x509.Certificate) {
	t.Helper()
	key, _, err := NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	der, err := ca.IssueHost(host, key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, ca.Trust().DER()}, PrivateKey: key, Leaf: leaf}, leaf
}

func TestACertificateForAHostIsValidForThatHostOnly(t *testing.T) {
	ca := newTestCA(t, testCluster)
	for host, other := range map[string]string{"shop.example.org": "api.example.org", "*.example.org": "a.b.example.org", "192.0.2.7": "192.0.2.8"} {
		_, leaf := issueHost(t, ca, host)
		name := host
		if host[0] == '*' {
			name = "any" + host[1:]
		}
		options := x509.VerifyOptions{Roots: ca.trust.pool(), DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		if _, err := leaf.Verify(options); err != nil {
			t.Errorf("%s: %v", host, err)
		}
		if leaf.VerifyHostname(other) == nil {
			t.Errorf("the certificate for %s is valid for %s", host, other)
		}
		options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if _, err := leaf.Verify(options); err == nil {
			t.Errorf("the certificate for %s is one of a client", host)
		}
		if life := leaf.NotAfter.Sub(leaf.NotBefore); life > 90*24*time.Hour || life < 80*24*time.Hour {
			t.Errorf("it lives for %s", life)
		}
	}
}

// Whoever has the key of a certificate for a host, as every node of the ingress does, is nobody: neither a client nor a
// server of the cluster.
func TestACertificateForAHostIsNoIdentity(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server, node := issue(t, ca, time.Hour, KindServer, "s-1"), issue(t, ca, time.Hour, KindNode, "n-1")
	host, leaf := issueHost(t, ca, "shop.example.org")
	source := func() (*tls.Certificate, error) { return &host, nil }
	if id, err := FromCertificate(leaf); err == nil {
		t.Errorf("it is %s", id)
	}
	if _, serverErr, _ := shake(t, ServerTLS(ca.Trust(), server.Certificate), ClientTLS(ca.Trust(), source)); serverErr == nil {
		t.Error("a server accepts it from a client")
	}
	if _, _, clientErr := shake(t, ServerTLS(ca.Trust(), source), ClientTLS(ca.Trust(), node.Certificate)); clientErr == nil {
		t.Error("a member accepts it from a server")
	}
	if _, _, clientErr := shake(t, ServerTLS(ca.Trust(), source), JoinTLS(ca.Trust().Fingerprint())); clientErr == nil {
		t.Error("a machine that joins accepts it from a server")
	}
}
