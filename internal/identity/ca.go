package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"time"
)

const (
	caLifetime = 10 * 365 * 24 * time.Hour

	// clockSkew dates certificates back. A machine whose clock is behind the server's must not refuse a new certificate
	// as "not yet valid", and certificates that were issued while the server's clock was hours ahead must still be
	// valid when it is corrected. It grants nothing that the CA did not grant.
	clockSkew = 24 * time.Hour
)

// CA is the certificate authority of a cluster: the key that signs now, and the authorities that are trusted now. Both
// change while the cluster replaces its authority, see [CA.Set]. It is safe for concurrent use.
type CA struct {
	trust *Trust
	now   atomic.Pointer[signer]
}

// signer is the authority that signs. It does not change.
type signer struct {
	root    *x509.Certificate
	key     *ecdsa.PrivateKey
	shown   [][]byte // the other authorities and the endorsements, which servers show along with their certificates
	lasting Fingerprint
}

// NewCA makes the certificate authority of a new cluster, with an ECDSA P-256 key, good for ten years.
func NewCA(cluster string, now time.Time) (*CA, error) {
	if err := checkCluster(cluster); err != nil {
		return nil, fmt.Errorf("create CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key of CA: %w", err)
	}
	template := rootTemplate(cluster, now)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create CA certificate: %w", err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	trust, err := newTrust(root)
	if err != nil {
		return nil, err
	}
	c := &CA{trust: trust}
	c.now.Store(&signer{root: root, key: key, lasting: trust.Fingerprint()})
	return c, nil
}

func rootTemplate(cluster string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Cloudless"}, CommonName: "Cloudless CA"},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: cluster}},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it issues to members only, never to another CA
	}
}

// LoadCA puts a CA together again from [Trust.DER] and [CA.MarshalKey].
func LoadCA(certificate, key []byte) (*CA, error) {
	return OpenCA(Authorities{Active: certificate, Key: key})
}

// Authorities are the authorities of a cluster at one time, in DER form.
type Authorities struct {
	// Active signs with Key, as by [CA.MarshalKey].
	Active, Key []byte
	// Next and Previous are trusted, if there are any.
	Next, Previous []byte
	// Endorsements are those of [CA.Successor].
	Endorsements [][]byte
}

// OpenCA puts a CA together again.
func OpenCA(a Authorities) (*CA, error) {
	trust, err := ParseTrust(a.trusted()...)
	if err != nil {
		return nil, err
	}
	c := &CA{trust: trust}
	return c, c.Set(a)
}

// trusted returns all authorities, the one that signs first.
func (a Authorities) trusted() [][]byte {
	all := [][]byte{a.Active}
	for _, other := range [][]byte{a.Next, a.Previous} {
		if len(other) > 0 {
			all = append(all, other)
		}
	}
	return all
}

// Set replaces the authorities. From then on the CA signs with the new key, and everything that uses its trust verifies
// by the new authorities. It changes nothing if it fails.
func (c *CA) Set(a Authorities) error {
	root, err := x509.ParseCertificate(a.Active)
	if err != nil {
		return fmt.Errorf("parse CA certificate: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(a.Key)
	if err != nil {
		// The parser's error could quote what it parsed, and that is a private key.
		return errors.New("parse key of CA: it is not a PKCS #8 private key")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(root.PublicKey) {
		return fmt.Errorf("the key does not belong to CA certificate %s: restore both from the same backup",
			serial(root))
	}
	next := &signer{root: root, key: key, shown: slices.Concat(a.trusted()[1:], a.Endorsements), lasting: sha256.Sum256(root.Raw)}
	if len(a.Next) > 0 {
		next.lasting = sha256.Sum256(a.Next)
	}
	if _, err := c.trust.Set(a.trusted()...); err != nil {
		return err
	}
	c.now.Store(next)
	return nil
}

// Lasting identifies the authority that stays: the next one if the authority is being replaced. Tokens name it.
func (c *CA) Lasting() Fingerprint { return c.now.Load().lasting }

// Trust is the public half, by which members verify each other.
func (c *CA) Trust() *Trust { return c.trust }

// MarshalKey returns the private key in PKCS #8 form. Its holder can impersonate any identity in the cluster: seal it before
// storing it.
func (c *CA) MarshalKey() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.now.Load().key)
	if err != nil {
		return nil, fmt.Errorf("marshal key of CA: %w", err)
	}
	return der, nil
}

// IssueOptions says what a certificate is valid for.
type IssueOptions struct {
	TTL    time.Duration // validity from now on; required. It never outlives the CA.
	Server bool          // may accept connections
	Client bool          // may open connections

	// Names by which a server is reached, for clients that check host names (curl, browsers).
	DNSNames []string
	IPs      []net.IP
}

// Issue answers a certificate request, as made by [NewKeyAndCSR], in DER form: with the new certificate, the CA's, and
// what else a server shows while or after the authority is replaced. From the request it takes the public key alone, after checking that the requester holds the
// private one: names and usages come from id and options.
func (c *CA) Issue(csr []byte, id ID, o IssueOptions, now time.Time) ([][]byte, error) {
	if id.Cluster() != c.trust.cluster {
		return nil, fmt.Errorf("issue certificate to %q: not a member of cluster %s", id, c.trust.cluster)
	}
	if o.TTL <= 0 {
		return nil, fmt.Errorf("issue certificate to %s: the lifetime must be positive, not %s", id, o.TTL)
	}
	signer := c.now.Load()
	if !now.Before(signer.root.NotAfter) {
		return nil, fmt.Errorf("issue certificate to %s: the CA ended on %s: the cluster needs a new one",
			id, signer.root.NotAfter.Format(time.DateOnly))
	}
	var usages []x509.ExtKeyUsage
	if o.Server {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if o.Client {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	if len(usages) == 0 {
		return nil, fmt.Errorf("issue certificate to %s: it must be for a server, a client or both", id)
	}
	public, err := requestedKey(csr)
	if err != nil {
		return nil, fmt.Errorf("issue certificate to %s: %w", id, err)
	}
	notAfter := now.Add(o.TTL)
	notAfter = earlier(notAfter, signer.root.NotAfter)
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Cloudless"}, CommonName: string(id.Kind())},
		URIs:                  []*url.URL{id.url()},
		DNSNames:              o.DNSNames,
		IPAddresses:           o.IPs,
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           usages,
		BasicConstraintsValid: true,
	}
	leaf, err := x509.CreateCertificate(rand.Reader, template, signer.root, public, signer.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate to %s: %w", id, err)
	}
	return append([][]byte{leaf, signer.root.Raw}, signer.shown...), nil
}

// requestedKey returns the public key of a certificate request, after checking that the requester holds the private
// one.
func requestedKey(der []byte) (crypto.PublicKey, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the certificate request is not signed by its own key: %w", err)
	}
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			return key, nil
		}
		return nil, fmt.Errorf("the requested key is on curve %s: use ECDSA P-256 or Ed25519", key.Params().Name)
	case ed25519.PublicKey:
		return key, nil
	}
	return nil, fmt.Errorf("the requested key is of type %s: use ECDSA P-256 or Ed25519", csr.PublicKeyAlgorithm)
}

// RequestFingerprint identifies the key of a certificate request, after checking that the requester holds the private
// one: requests for the same key have the same fingerprint.
func RequestFingerprint(csr []byte) (string, error) {
	key, err := requestedKey(csr)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode the requested key: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// NewKeyAndCSR makes a key and the request for a certificate of it, in DER form.
func NewKeyAndCSR() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create key: %w", err)
	}
	csr, err := NewCSR(key)
	return key, csr, err
}

// NewCSR makes the request for a certificate of a key, in DER form. The request contains no name: the cluster decides
// which identity the certificate gets.
func NewCSR(key crypto.Signer) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	return csr, nil
}
