package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Fingerprint is the SHA-256 of a CA certificate's DER bytes.
type Fingerprint [sha256.Size]byte

// String is the fingerprint in hex, as `openssl x509 -fingerprint -sha256` shows it but for the colons.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// Trust is what a member needs to verify others: the certificates of its cluster's authorities, and with them the
// cluster's id. There is one authority, except while the cluster replaces it. Whoever holds a Trust sees each change at
// the next handshake. It is safe for concurrent use.
type Trust struct {
	cluster string
	bundle  atomic.Pointer[bundle]
}

// bundle is a set of trusted authorities. It does not change.
type bundle struct {
	roots []*x509.Certificate // the one that signs first
	pool  *x509.CertPool
}

// ParseTrust reads the certificates of a cluster's authorities in DER form, the one that signs first.
func ParseTrust(authorities ...[]byte) (*Trust, error) {
	roots := make([]*x509.Certificate, 0, len(authorities))
	for _, der := range authorities {
		root, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("parse CA certificate: %w", err)
		}
		roots = append(roots, root)
	}
	return newTrust(roots...)
}

// ParseTrustPEM reads the certificates in PEM form, as [Trust.PEM] gives them.
func ParseTrustPEM(data []byte) (*Trust, error) {
	var authorities [][]byte
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != pemCertificate {
			return nil, fmt.Errorf("parse CA certificate: unexpected PEM block %q", block.Type)
		}
		authorities = append(authorities, block.Bytes)
	}
	if len(authorities) == 0 {
		return nil, errors.New("parse CA certificate: no PEM block CERTIFICATE found")
	}
	return ParseTrust(authorities...)
}

func newTrust(roots ...*x509.Certificate) (*Trust, error) {
	if len(roots) == 0 {
		return nil, errors.New("no CA certificate: at least one authority must be trusted")
	}
	cluster, err := clusterOf(roots[0])
	if err != nil {
		return nil, err
	}
	t := &Trust{cluster: cluster}
	return t, t.set(roots)
}

// clusterOf returns the cluster that a CA certificate names.
func clusterOf(root *x509.Certificate) (string, error) {
	if !root.IsCA || !root.BasicConstraintsValid {
		return "", fmt.Errorf("certificate %s is not the certificate of a CA", serial(root))
	}
	if len(root.URIs) != 1 || root.URIs[0].String() != "spiffe://"+root.URIs[0].Host {
		return "", fmt.Errorf("CA certificate %s does not name its cluster", serial(root))
	}
	cluster := root.URIs[0].Host
	if err := checkCluster(cluster); err != nil {
		return "", fmt.Errorf("CA certificate %s: %w", serial(root), err)
	}
	return cluster, nil
}

// Set replaces the trusted authorities, in DER form, the one that signs first. It reports whether anything changed.
func (t *Trust) Set(authorities ...[]byte) (changed bool, err error) {
	if slices.EqualFunc(t.DERs(), authorities, bytes.Equal) {
		return false, nil
	}
	next, err := ParseTrust(authorities...)
	if err != nil {
		return false, err
	}
	return true, t.set(next.bundle.Load().roots)
}

func (t *Trust) set(roots []*x509.Certificate) error {
	pool := x509.NewCertPool()
	for _, root := range roots {
		cluster, err := clusterOf(root)
		if err != nil {
			return err
		}
		if cluster != t.cluster {
			return fmt.Errorf("CA certificate %s is of cluster %s, not of %s", serial(root), cluster, t.cluster)
		}
		pool.AddCert(root)
	}
	t.bundle.Store(&bundle{roots: roots, pool: pool})
	return nil
}

// Cluster is the id of the cluster, which is the SPIFFE trust domain of its members.
func (t *Trust) Cluster() string { return t.cluster }

// root is the certificate of the authority that signs.
func (t *Trust) root() *x509.Certificate { return t.bundle.Load().roots[0] }

// pool is the set of trusted authorities. It never changes: each change makes another one.
func (t *Trust) pool() *x509.CertPool { return t.bundle.Load().pool }

// Fingerprint identifies the authority that signs.
func (t *Trust) Fingerprint() Fingerprint { return sha256.Sum256(t.root().Raw) }

// Fingerprints identify all trusted authorities, the one that signs first.
func (t *Trust) Fingerprints() []Fingerprint {
	var all []Fingerprint
	for _, root := range t.bundle.Load().roots {
		all = append(all, sha256.Sum256(root.Raw))
	}
	return all
}

// Has reports whether an authority is trusted.
func (t *Trust) Has(authority Fingerprint) bool { return slices.Contains(t.Fingerprints(), authority) }

// Shares reports whether both trust one of the authorities of the same cluster.
func (t *Trust) Shares(other *Trust) bool { return slices.ContainsFunc(other.Fingerprints(), t.Has) }

// DER is the certificate of the authority that signs, in DER form. It must not be changed.
func (t *Trust) DER() []byte { return t.root().Raw }

// DERs are the certificates of all trusted authorities. They must not be changed.
func (t *Trust) DERs() [][]byte {
	var all [][]byte
	for _, root := range t.bundle.Load().roots {
		all = append(all, root.Raw)
	}
	return all
}

// PEM is the certificates of all trusted authorities in PEM form, for curl --cacert and the like.
func (t *Trust) PEM() []byte {
	var data []byte
	for _, root := range t.bundle.Load().roots {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: root.Raw})...)
	}
	return data
}

// NotAfter is when the authority that signs ends.
func (t *Trust) NotAfter() time.Time { return t.root().NotAfter }

// verify checks that a trusted authority has issued a certificate for the usage and that it is valid now, and returns
// its identity.
func (t *Trust) verify(leaf *x509.Certificate, usage x509.ExtKeyUsage) (ID, error) {
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:       t.pool(),
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
