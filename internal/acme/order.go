package acme

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// Issued is a new certificate with its key, both in PEM.
type Issued struct{ Chain, Key []byte }

// How long one order may take: DNS records need minutes until everybody sees them.
const orderTimeout = 10 * time.Minute

// Obtain orders a certificate for a host. If it replaces one, the authority may allow it beyond its rate limits.
func (a *Authority) Obtain(ctx context.Context, account Account, host string, replaces *x509.Certificate) (Issued, error) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	s, end := a.open()
	defer end()
	ways, err := a.ways(host)
	if err != nil {
		return Issued{}, err
	}
	for _, way := range ways {
		s.ChallengeSolvers = way
		var issued Issued
		if issued, err = s.obtain(ctx, account, host, replaces); err == nil {
			return issued, nil
		}
		// Only a record that could not be made lets the next way help: the authority counts its own refusals.
		if _, refused := errors.AsType[acme.Problem](err); refused || ctx.Err() != nil {
			break
		}
	}
	return Issued{}, a.explain(s, host, err)
}

// ways are the solvers to try, one set after the other.
func (a *Authority) ways(host string) ([]map[string]acmez.Solver, error) {
	wildcard := strings.HasPrefix(host, "*.")
	if wildcard && a.DNS == nil {
		return nil, &Failure{Reason: host + " cannot be proven: a certificate for a wildcard needs a DNS provider; set acme.dns in the configuration of the cluster, or name each host in a route of its own"}
	}
	answered := &answerer{authority: a, host: host}
	direct := map[string]acmez.Solver{
		acme.ChallengeTypeHTTP01:    answered,
		acme.ChallengeTypeTLSALPN01: answered,
	}
	if a.DNS == nil {
		return []map[string]acmez.Solver{direct}, nil
	}
	dns := map[string]acmez.Solver{acme.ChallengeTypeDNS01: &certmagic.DNS01Solver{DNSManager: certmagic.DNSManager{
		DNSProvider: a.DNS, Resolvers: a.Resolvers,
	}}}
	if wildcard {
		return []map[string]acmez.Solver{dns}, nil
	}
	// The provider may not have the zone of every host.
	return []map[string]acmez.Solver{dns, direct}, nil
}

func (s *session) obtain(ctx context.Context, account Account, host string, replaces *x509.Certificate) (Issued, error) {
	key, err := NewKey()
	if err != nil {
		return Issued{}, err
	}
	csr, err := acmez.NewCSR(key, []string{host})
	if err != nil {
		return Issued{}, fmt.Errorf("make the request for a certificate of %s: %w", host, err)
	}
	order, err := acmez.OrderParametersFromCSR(acme.Account{Status: acme.StatusValid, Location: account.Location, PrivateKey: account.Key}, csr)
	if err != nil {
		return Issued{}, fmt.Errorf("make the order of a certificate of %s: %w", host, err)
	}
	order.Replaces = replaces
	chains, err := s.ObtainCertificate(ctx, order)
	if err != nil {
		return Issued{}, err
	}
	if len(chains) == 0 {
		return Issued{}, errors.New("the authority sent no certificate")
	}
	pem, err := MarshalKey(key)
	if err != nil {
		return Issued{}, err
	}
	return Issued{Chain: chains[0].ChainPEM, Key: pem}, nil
}
