package identity

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"time"
)

// HostTTL is how long a certificate for a host of a route is valid from now on. With the time that it is dated back, that
// is 90 days.
const HostTTL = 90*24*time.Hour - clockSkew

// IssueHost makes a certificate for the host of a route, in DER form. It proves the host to
// clients that trust the CA, and nobody's identity: it has no URI, without which no member accepts a certificate.
func (c *CA) IssueHost(host string, public crypto.PublicKey, now time.Time) ([]byte, error) {
	signer := c.now.Load()
	if !now.Before(signer.root.NotAfter) {
		return nil, fmt.Errorf("issue certificate for %s: the CA ended on %s: the cluster needs a new one",
			host, signer.root.NotAfter.Format(time.DateOnly))
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Cloudless"}},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              earlier(now.Add(HostTTL), signer.root.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	leaf, err := x509.CreateCertificate(rand.Reader, template, signer.root, public, signer.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", host, err)
	}
	return leaf, nil
}
