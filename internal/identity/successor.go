package identity

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An authority that is replaced endorses its successor: it signs the successor's certificate. Servers show endorsements
// along with their own certificates. So a command line or a joining machine that knows only one authority of a cluster
// verifies a server that has its certificate from another.

// endorsementTTL is how long an authority that is replaced speaks for its successor.
const endorsementTTL = 90 * 24 * time.Hour

// ErrReplaced says that the server belongs to the cluster, which has replaced its authority while this member was away.
var ErrReplaced = errors.New("the cluster has replaced its certificate authority, and this machine missed it: join again with a new token: cloudless join ADDRESS --token-file FILE")

// Successor makes the next authority of the same cluster, and the endorsements of each of both by the other.
func (c *CA) Successor(now time.Time) (next *CA, endorsements [][]byte, err error) {
	next, err = NewCA(c.trust.cluster, now)
	if err != nil {
		return nil, nil, err
	}
	for _, pair := range [][2]*CA{{next, c}, {c, next}} {
		one, err := pair[1].endorse(pair[0], now)
		if err != nil {
			return nil, nil, err
		}
		endorsements = append(endorsements, one)
	}
	return next, endorsements, nil
}

// endorse signs the certificate of another authority.
func (c *CA) endorse(other *CA, now time.Time) ([]byte, error) {
	mine := c.now.Load()
	template := rootTemplate(c.trust.cluster, now)
	template.NotAfter = earlier(now.Add(endorsementTTL), mine.root.NotAfter)
	template.SubjectKeyId = other.now.Load().root.SubjectKeyId
	der, err := x509.CreateCertificate(rand.Reader, template, mine.root, other.now.Load().key.Public(), mine.key)
	if err != nil {
		return nil, fmt.Errorf("endorse the next CA: %w", err)
	}
	return der, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// selfSigned distinguishes the certificate of an authority from an endorsement.
func selfSigned(cert *x509.Certificate) bool {
	return cert.IsCA && cert.CheckSignatureFrom(cert) == nil
}

// mostShown bounds the certificates of authorities that a server may show.
const mostShown = 16

// endorsed returns the authorities in a chain that the given ones endorse, directly or not.
func endorsed(by []*x509.Certificate, chain []*x509.Certificate, now time.Time) (found []*x509.Certificate) {
	if len(chain) > mostShown {
		return nil
	}
	// An authority between the known one and the current one is shown only by its endorsement, which has its key.
	trusted := slices.Clone(by)
	for i := 0; i < len(trusted); i++ {
		for _, one := range chain {
			if !one.IsCA || now.Before(one.NotBefore) || now.After(one.NotAfter) || slices.ContainsFunc(trusted, one.Equal) || one.CheckSignatureFrom(trusted[i]) != nil {
				continue
			}
			trusted = append(trusted, one)
			for _, root := range chain {
				if sameKey(root, one) && selfSigned(root) && !slices.ContainsFunc(trusted, root.Equal) {
					trusted, found = append(trusted, root), append(found, root)
				}
			}
		}
	}
	return found
}

func sameKey(a, b *x509.Certificate) bool {
	key, ok := a.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b.PublicKey)
}

// shown returns the authorities in the chain of a server.
func shown(chain []*x509.Certificate) (roots []*x509.Certificate) {
	for _, one := range chain[:min(len(chain), mostShown)] {
		if selfSigned(one) {
			roots = append(roots, one)
		}
	}
	return roots
}
