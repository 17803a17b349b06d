package spec_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

var issued = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// authority issues certificates as a test needs them.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t testing.TB, name string, above *authority) *authority {
	t.Helper()
	a := &authority{t: t, key: newECKey(t, elliptic.P256())}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: issued, NotAfter: issued.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	parent := &authority{t: t, cert: template, key: a.key}
	if above != nil {
		parent = above
	}
	a.cert = parent.sign(template, a.key.Public())
	return a
}

func newECKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(template *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// issue makes a certificate for hosts, changed by the test.
func (a *authority) issue(key crypto.Signer, change func(*x509.Certificate), hosts ...string) *x509.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: hosts, NotBefore: issued, NotAfter: issued.AddDate(0, 0, 90),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if change != nil {
		change(template)
	}
	return a.sign(template, key.Public())
}

func chainOf(certs ...*x509.Certificate) string {
	var out bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return out.String()
}

func keyPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func TestAKeyPairIsReadInTheFormsThatToolsWrite(t *testing.T) {
	root := newAuthority(t, "Root", nil)
	middle := newAuthority(t, "Middle", root)
	ec := newECKey(t, elliptic.P256())
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecDER, err := x509.MarshalECPrivateKey(ec.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	sec1 := append(pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: ecDER})...)
	pkcs1 := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)})
	for name, one := range map[string]struct {
		signer crypto.Signer
		key    []byte
	}{
		"PKCS #8":                 {ec, keyPEM(t, ec)},
		"openssl ecparam -genkey": {ec, sec1},
		"openssl genrsa":          {rsaKey, pkcs1},
	} {
		leaf := middle.issue(one.signer, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 7)} }, "Shop.example.org", "*.example.org")
		pair, err := spec.ParseKeyPair("a comment\n"+chainOf(leaf, middle.cert, root.cert)+"\n\n", one.key, issued.AddDate(0, 0, 1))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := []string{"shop.example.org", "*.example.org", "192.0.2.7"}; !slices.Equal(pair.Hosts, want) {
			t.Errorf("%s: the hosts are %q, want %q", name, pair.Hosts, want)
		}
		if _, err := tls.X509KeyPair([]byte(pair.Chain), pair.Key); err != nil || strings.Contains(pair.Chain, "comment") {
			t.Errorf("%s: what is stored cannot be served: %v", name, err)
		}
	}
}

func TestABadKeyPairIsRefusedWithTheWayOut(t *testing.T) {
	root := newAuthority(t, "Root", nil)
	middle := newAuthority(t, "Middle", root)
	key, other := newECKey(t, elliptic.P256()), newECKey(t, elliptic.P256())
	leaf := middle.issue(key, nil, "shop.example.org")
	good := chainOf(leaf, middle.cert)
	weak := newECKey(t, elliptic.P224())
	now := issued.AddDate(0, 0, 1)
	for name, c := range map[string]struct {
		chain string
		key   []byte
		now   time.Time
		want  string
	}{
		"another key":        {good, keyPEM(t, other), now, "key: does not belong to the certificate of shop.example.org; give the key"},
		"authority first":    {chainOf(middle.cert, leaf), keyPEM(t, key), now, "the key belongs to certificate 2 of 2 (shop.example.org); put that one first"},
		"gap in the chain":   {chainOf(leaf, root.cert), keyPEM(t, key), now, "certificate 1 (shop.example.org) was issued by Middle, and not by certificate 2 (Root)"},
		"twice":              {chainOf(leaf, leaf), keyPEM(t, key), now, "twice"},
		"an authority":       {chainOf(root.cert), keyPEM(t, root.key), now, "begins with the certificate of an authority (Root)"},
		"expired":            {good, keyPEM(t, key), issued.AddDate(1, 0, 0), "has expired on 2027-01-30 00:00:00; give a new certificate"},
		"not yet valid":      {good, keyPEM(t, key), issued.AddDate(0, 0, -1), "is not valid before 2026-11-01 00:00:00"},
		"no host":            {chainOf(middle.issue(key, func(c *x509.Certificate) { c.Subject.CommonName = "shop.example.org" })), keyPEM(t, key), now, "names no host"},
		"for clients":        {chainOf(middle.issue(key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "a.org")), keyPEM(t, key), now, "is not for servers"},
		"weak curve":         {chainOf(middle.issue(weak, nil, "a.org")), keyPEM(t, weak), now, "P-224"},
		"no PEM":             {"shop", keyPEM(t, key), now, "is not PEM"},
		"empty":              {" \n", keyPEM(t, key), now, "is empty"},
		"key in the chain":   {good + string(keyPEM(t, key)), keyPEM(t, key), now, "has a private key in it"},
		"rubbish after":      {good + "shop", keyPEM(t, key), now, "is not PEM"},
		"no key":             {good, []byte(good), now, "key: has no private key in PEM"},
		"unreadable key":     {good, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")}), now, "cannot be read"},
		"key with password":  {good, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("secret")}), now, "is protected by a password"},
		"too many":           {strings.Repeat(chainOf(root.cert), 17), keyPEM(t, key), now, "too many certificates"},
		"too large":          {strings.Repeat("x", 256<<10+1), keyPEM(t, key), now, "is too large: it may have at most 256Ki"},
		"too large a key":    {good, bytes.Repeat([]byte("x"), 64<<10+1), now, "key: is too large"},
		"unreadable in PEM":  {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), keyPEM(t, key), now, "cannot be read"},
		"another block type": {string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("x")})), keyPEM(t, key), now, "block of type X509 CRL"},
	} {
		pair, err := spec.ParseKeyPair(c.chain, c.key, c.now)
		if err == nil || pair != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %q, want %q in it", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error quotes the key", name)
		}
	}
}

func TestAWildcardCoversOneLabel(t *testing.T) {
	hosts := []string{"*.example.org", "example.org", "192.0.2.7"}
	for host, want := range map[string]bool{
		"shop.example.org": true, "example.org": true, "a.b.example.org": false, "*.example.org": true,
		"*.shop.example.org": false, "org": false, "192.0.2.7": true, "example.com": false, "": false,
	} {
		if got := spec.CertificateCovers(hosts, host); got != want {
			t.Errorf("%q is covered: %t", host, got)
		}
	}
}

func TestOnlyCertificatesOfUsersAskToBeReplaced(t *testing.T) {
	c := &v1.Certificate{
		Metadata: &v1.Metadata{Name: "shop", Namespace: "web"}, Spec: &v1.CertificateSpec{Source: spec.TLSOwn},
		Status: &v1.CertificateStatus{NotAfter: timestamppb.New(issued)},
	}
	if words := spec.ExpiryWarning(c, issued.AddDate(0, 0, -15)); words != "" {
		t.Errorf("15 days before: %q", words)
	}
	want := "it expires on 2026-11-01 00:00:00; give a new one with: cloudless certificate add shop --cert FILE --key FILE --update -n web"
	if words := spec.ExpiryWarning(c, issued.AddDate(0, 0, -2)); words != want {
		t.Errorf("2 days before: %q", words)
	}
	if words := spec.ExpiryWarning(c, issued.AddDate(0, 0, 2)); !strings.HasPrefix(words, "it has expired on ") {
		t.Errorf("2 days after: %q", words)
	}
	c.Spec.Source = spec.TLSAuto
	if words := spec.ExpiryWarning(c, issued); words != "" {
		t.Errorf("a certificate that the cluster renews asks: %q", words)
	}
}

// Whatever bytes come: no panic, and what is accepted can be served.
func FuzzParseKeyPair(f *testing.F) {
	root := newAuthority(f, "Root", nil)
	key := newECKey(f, elliptic.P256())
	good := chainOf(root.issue(key, nil, "shop.example.org"), root.cert)
	f.Add(good, keyPEM(f, key))
	f.Add(good[:len(good)/2], keyPEM(f, key)[:60])
	f.Add("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----", []byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----"))
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, chain string, key []byte) {
		pair, err := spec.ParseKeyPair(chain, key, issued.AddDate(0, 0, 1))
		if (pair == nil) == (err == nil) {
			t.Fatalf("it is %v with the error %v", pair, err)
		}
		if pair == nil {
			return
		}
		if _, err := tls.X509KeyPair([]byte(pair.Chain), pair.Key); err != nil {
			t.Errorf("what was accepted cannot be served: %v", err)
		}
		if again, err := spec.ParseKeyPair(pair.Chain, pair.Key, issued.AddDate(0, 0, 1)); err != nil || again.Chain != pair.Chain {
			t.Errorf("what is stored is not accepted again: %v", err)
		}
	})
}

func TestCertificatesAreNamedAfterTheirHost(t *testing.T) {
	for host, want := range map[string]string{
		"shop.example.org":     "tls-shop-example-org",
		"*.example.org":        "tls-wildcard-example-org",
		"localhost":            "tls-localhost",
		"my-shop.example.org":  "tls-my-shop-example-org-1de66ec3",
		"my.shop.example.org":  "tls-my-shop-example-org",
		"wildcard.example.org": "tls-wildcard-example-org-07bc2b8e",
	} {
		if got := spec.CertificateName(host); got != want {
			t.Errorf("the certificate of %s is %s, want %s", host, got, want)
		}
	}
	long := strings.Repeat("a.", 100)
	first, second := spec.CertificateName(long+"org"), spec.CertificateName(long+"net")
	if first == second || len(first) != 63 && len(first) != 62 {
		t.Errorf("the certificates of two long hosts are %s and %s", first, second)
	}
}
