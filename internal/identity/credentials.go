package identity

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

const (
	pemCertificate = "CERTIFICATE"
	pemPrivateKey  = "PRIVATE KEY"
)

// Credentials authenticate a member: a private key, its certificate and those of the cluster's authorities. Only the
// trust may change.
type Credentials struct {
	id     ID
	trust  *Trust
	issuer Fingerprint
	cert   *tls.Certificate
}

// NewCredentials puts together a key and the chain that [CA.Issue] answered its request with: the certificate, and
// those of the authorities to trust. It checks that they belong together, not that the certificate still holds.
func NewCredentials(key crypto.Signer, chain [][]byte) (*Credentials, error) {
	if len(chain) < 2 {
		return nil, fmt.Errorf("expected the certificate and that of its CA, got %d certificates", len(chain))
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}
	roots, err := parseRoots(chain[1:])
	if err != nil {
		return nil, err
	}
	from := slices.IndexFunc(roots, func(root *x509.Certificate) bool { return leaf.CheckSignatureFrom(root) == nil })
	if from < 0 {
		return nil, fmt.Errorf("certificate %s is not from the CA that came with it", serial(leaf))
	}
	trust, err := newTrust(roots...)
	if err != nil {
		return nil, err
	}
	id, err := trust.member(leaf)
	if err != nil {
		return nil, err
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(leaf.PublicKey) {
		return nil, fmt.Errorf("certificate %s of %s is for another key", serial(leaf), id)
	}
	cert := &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}
	return &Credentials{id: id, trust: trust, issuer: sha256.Sum256(roots[from].Raw), cert: cert}, nil
}

// parseRoots returns the authorities in a chain, without endorsements.
func parseRoots(chain [][]byte) (roots []*x509.Certificate, err error) {
	for _, der := range chain {
		root, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("parse CA certificate: %w", err)
		}
		if _, err := clusterOf(root); err != nil {
			return nil, err
		}
		if selfSigned(root) {
			roots = append(roots, root)
		}
	}
	return roots, nil
}

// trusting returns the same credentials with another trust.
func (c *Credentials) trusting(trust *Trust) *Credentials {
	next := *c
	next.trust = trust
	return &next
}

// LoadCredentials reads what [Credentials.Save] wrote. The error is fs.ErrNotExist when there is nothing yet.
func LoadCredentials(path string) (*Credentials, error) {
	data, err := readPrivate(path)
	if err != nil {
		return nil, fmt.Errorf("load credentials: %w", err)
	}
	key, chain, err := decodeCredentials(data)
	if err != nil {
		return nil, fmt.Errorf("load credentials from %s: %w", path, err)
	}
	c, err := NewCredentials(key, chain)
	if err != nil {
		return nil, fmt.Errorf("load credentials from %s: %w", path, err)
	}
	return c, nil
}

func decodeCredentials(data []byte) (key crypto.Signer, chain [][]byte, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case block.Type == pemCertificate:
			chain = append(chain, block.Bytes)
		case block.Type == pemPrivateKey && key == nil:
			// The parser's error is not passed on: it could quote the key.
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			signer, ok := parsed.(crypto.Signer)
			if err != nil || !ok {
				return nil, nil, errors.New("the private key is damaged")
			}
			key = signer
		default:
			return nil, nil, fmt.Errorf("unexpected PEM block %q", block.Type)
		}
	}
	if key == nil {
		return nil, nil, errors.New("no private key found")
	}
	return key, chain, nil
}

// Save writes the credentials to one file of mode 0600. Key and certificates share it, so that a crash between two
// writes cannot leave a key without its certificate.
func (c *Credentials) Save(path string) error {
	key, err := x509.MarshalPKCS8PrivateKey(c.cert.PrivateKey)
	if err != nil {
		return fmt.Errorf("save credentials of %s: %w", c.id, err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: key})
	for _, der := range append([][]byte{c.cert.Certificate[0]}, c.trust.DERs()...) {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})...)
	}
	if err := atomicfile.Replace(path, data); err != nil {
		return fmt.Errorf("save credentials of %s: %w", c.id, err)
	}
	return nil
}

// ID is the identity of the credentials.
func (c *Credentials) ID() ID { return c.id }

// Trust verifies the other members of the cluster.
func (c *Credentials) Trust() *Trust { return c.trust }

// Issuer is the authority that issued the certificate.
func (c *Credentials) Issuer() Fingerprint { return c.issuer }

// NotAfter is when the certificate expires.
func (c *Credentials) NotAfter() time.Time { return c.cert.Leaf.NotAfter }

// Lifetime is the validity of the certificate when it was issued.
func (c *Credentials) Lifetime() time.Duration { return lifetime(c) }

// Certificate is the certificate, its key and the CA's certificate, as the tls package wants them. It is a
// [CertificateSource] that never changes.
func (c *Credentials) Certificate() (*tls.Certificate, error) { return c.cert, nil }

// String names the member, never the key.
func (c *Credentials) String() string { return "credentials of " + c.id.String() }

// GoString names the member, never the key.
func (c *Credentials) GoString() string { return c.String() }

// LogValue names the member, never the key.
func (c *Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }
