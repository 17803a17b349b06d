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
	"time"
)

const (
	caLifetime = 10 * 365 * 24 * time.Hour

	// clockSkew dates certificates back. A machine whose clock is behind the server's must not refuse a new certificate
	// as "not yet valid", and certificates that were issued while the server's clock was hours ahead must still be
	// valid when it is corrected. It grants nothing that the CA did not grant.
	clockSkew = 24 * time.Hour
)

// CA is the certificate authority of a cluster. It is safe for concurrent use.
type CA struct {
	trust *Trust
	key   *ecdsa.PrivateKey
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
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Cloudless"}, CommonName: "Cloudless CA"},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: cluster}},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it issues to members only, never to another CA
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create CA certificate: %w", err)
	}
	trust, err := ParseTrust(der)
	if err != nil {
		return nil, err
	}
	return &CA{trust: trust, key: key}, nil
}

// LoadCA puts a CA together again from [Trust.DER] and [CA.MarshalKey].
func LoadCA(certificate, key []byte) (*CA, error) {
	trust, err := ParseTrust(certificate)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		// The parser's error could quote what it parsed, and that is a private key.
		return nil, errors.New("parse key of CA: it is not a PKCS #8 private key")
	}
	signer, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(trust.root.PublicKey) {
		return nil, fmt.Errorf("the key does not belong to CA certificate %s: restore both from the same backup",
			serial(trust.root))
	}
	return &CA{trust: trust, key: signer}, nil
}

// Trust is the public half, by which members verify each other.
func (c *CA) Trust() *Trust { return c.trust }

// MarshalKey returns the private key in PKCS #8 form. Its holder can impersonate any identity in the cluster: seal it before
// storing it.
func (c *CA) MarshalKey() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
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

// Issue answers a certificate request, as made by [NewKeyAndCSR], with the chain of the new certificate and the
// CA's, in DER form. From the request it takes the public key alone, after checking that the requester holds the
// private one: names and usages come from id and options.
func (c *CA) Issue(csr []byte, id ID, o IssueOptions, now time.Time) ([][]byte, error) {
	if id.Cluster() != c.trust.cluster {
		return nil, fmt.Errorf("issue certificate to %q: not a member of cluster %s", id, c.trust.cluster)
	}
	if o.TTL <= 0 {
		return nil, fmt.Errorf("issue certificate to %s: the lifetime must be positive, not %s", id, o.TTL)
	}
	if !now.Before(c.trust.root.NotAfter) {
		return nil, fmt.Errorf("issue certificate to %s: the CA ended on %s: the cluster needs a new one",
			id, c.trust.root.NotAfter.Format(time.DateOnly))
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
	if notAfter.After(c.trust.root.NotAfter) {
		notAfter = c.trust.root.NotAfter
	}
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
	leaf, err := x509.CreateCertificate(rand.Reader, template, c.trust.root, public, c.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate to %s: %w", id, err)
	}
	return [][]byte{leaf, c.trust.root.Raw}, nil
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
