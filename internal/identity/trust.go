package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// Fingerprint is the SHA-256 of a CA certificate's DER bytes.
type Fingerprint [sha256.Size]byte

// String is the fingerprint in hex, as `openssl x509 -fingerprint -sha256` shows it but for the colons.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// Trust is what a member needs to verify others: the CA certificate of its cluster, and with it the cluster's id.
type Trust struct {
	cluster string
	root    *x509.Certificate
	pool    *x509.CertPool
}

// ParseTrust reads a CA certificate in DER form, as [Trust.DER] gives it.
func ParseTrust(der []byte) (*Trust, error) {
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	return newTrust(root)
}

// ParseTrustPEM reads a CA certificate in PEM form, as [Trust.PEM] gives it.
func ParseTrustPEM(data []byte) (*Trust, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemCertificate {
		return nil, errors.New("parse CA certificate: no PEM block CERTIFICATE found")
	}
	return ParseTrust(block.Bytes)
}

func newTrust(root *x509.Certificate) (*Trust, error) {
	if !root.IsCA || !root.BasicConstraintsValid {
		return nil, fmt.Errorf("certificate %s is not the certificate of a CA", serial(root))
	}
	if len(root.URIs) != 1 || root.URIs[0].String() != "spiffe://"+root.URIs[0].Host {
		return nil, fmt.Errorf("CA certificate %s does not name its cluster", serial(root))
	}
	cluster := root.URIs[0].Host
	if err := checkCluster(cluster); err != nil {
		return nil, fmt.Errorf("CA certificate %s: %w", serial(root), err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return &Trust{cluster: cluster, root: root, pool: pool}, nil
}

// Cluster is the id of the cluster, which is the SPIFFE trust domain of its members.
func (t *Trust) Cluster() string { return t.cluster }

// Fingerprint identifies the CA.
func (t *Trust) Fingerprint() Fingerprint { return sha256.Sum256(t.root.Raw) }

// DER is the CA certificate in DER form. It must not be changed.
func (t *Trust) DER() []byte { return t.root.Raw }

// PEM is the CA certificate in PEM form, for curl --cacert and the like.
func (t *Trust) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: t.root.Raw})
}

// verify checks that this CA has issued a certificate for the usage and that it is valid now, and returns its identity.
func (t *Trust) verify(leaf *x509.Certificate, usage x509.ExtKeyUsage) (ID, error) {
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:       t.pool,
		KeyUsages:   []x509.ExtKeyUsage{usage},
		CurrentTime: time.Now(),
	})
	if err != nil {
		return ID{}, fmt.Errorf("certificate %s is not valid in cluster %s: %w", serial(leaf), t.cluster, err)
	}
	return t.member(leaf)
}

// member returns the ID in a verified certificate and checks that it is of this cluster.
func (t *Trust) member(leaf *x509.Certificate) (ID, error) {
	id, err := FromCertificate(leaf)
	if err != nil {
		return ID{}, err
	}
	if id.Cluster() != t.cluster {
		return ID{}, fmt.Errorf("%s is not a member of cluster %s", id, t.cluster)
	}
	return id, nil
}
