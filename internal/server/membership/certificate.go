package membership

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

// NewCertificate issues and renews this server's own certificate. The server issues it
// itself, because every server holds the key of the authority. The certificate is only in
// memory.
func NewCertificate(c *core.Core, ca *identity.CA, ttl time.Duration, hosts []string) (*identity.Rotator, error) {
	id, err := identity.NewID(ca.Trust().Cluster(), identity.KindServer, c.UID)
	if err != nil {
		return nil, err
	}
	options := identity.IssueOptions{TTL: ttl, Server: true, Client: true}
	for _, host := range append([]string{"localhost", "127.0.0.1", "::1"}, hosts...) {
		if ip := net.ParseIP(host); ip != nil {
			options.IPs = append(options.IPs, ip)
		} else {
			options.DNSNames = append(options.DNSNames, host)
		}
	}
	issue := func(_ context.Context, csr []byte) ([][]byte, error) {
		return ca.Issue(csr, id, options, c.Now())
	}
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	chain, err := issue(context.Background(), csr)
	if err != nil {
		return nil, fmt.Errorf("issue this server's certificate: %w", err)
	}
	credentials, err := identity.NewCredentials(key, chain)
	if err != nil {
		return nil, err
	}
	return identity.NewRotator(identity.RotatorOptions{Current: credentials, Renew: issue, Trust: ca.Trust(), Log: c.Logger})
}
