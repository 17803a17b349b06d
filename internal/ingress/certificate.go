package ingress

import (
	"crypto/tls"
	"errors"
	"slices"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/table"
)

// certificate is parsed when it is first used: a node may have thousands of them, and clients for a few.
type certificate struct {
	source *v1.IngressCertificate
	parsed func() (*tls.Certificate, error)
}

func newCertificate(c *v1.IngressCertificate) *certificate {
	return &certificate{source: c, parsed: sync.OnceValues(func() (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair([]byte(c.GetChain()), c.GetKey())
		return &pair, err
	})}
}

// covers reports whether a certificate is for a host.
func (c *certificate) covers(host string) bool {
	if c == nil {
		return false
	}
	pair, err := c.parsed()
	return err == nil && pair.Leaf.VerifyHostname(host) == nil
}

// acmeProtocol is that of the challenge TLS-ALPN-01.
const acmeProtocol = "acme-tls/1"

// handshakeTime is how long a client may take to agree on keys.
const handshakeTime = 10 * time.Second

// certificateFor returns the certificate for the name that a client asks for. Without one it returns nothing, which the
// client sees as the alert unrecognized_name.
func (e *Engine) certificateFor(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := e.current.Load().certificate(table.Host(hello.ServerName))
	if c == nil {
		return nil, nil //nolint:nilnil // net/http's way to say so
	}
	pair, err := c.parsed()
	if err != nil {
		e.opts.Logger.Error("a certificate cannot be used", "host", hello.ServerName, "error", err)
		return nil, nil //nolint:nilnil // as above
	}
	return pair, nil
}

func (s *state) certificate(host string) *certificate {
	if host == "" {
		return nil
	}
	r, found := s.routes.First(host, func(r *route) bool { return r.tls && r.certificate != nil })
	if !found {
		return nil
	}
	return r.certificate
}

// challengeFor answers an authority that asks by TLS-ALPN-01 whether a host is ours.
func (e *Engine) challengeFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if !slices.Equal(hello.SupportedProtos, []string{acmeProtocol}) {
		return nil, nil //nolint:nilnil // the usual configuration
	}
	c := e.current.Load().alpn[table.Host(hello.ServerName)]
	if c == nil {
		return nil, errors.New("no challenge for " + hello.ServerName)
	}
	pair, err := c.parsed()
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{*pair}, NextProtos: []string{acmeProtocol}}, nil
}

// tlsForHosts is the configuration of the port for HTTPS.
func (e *Engine) tlsForHosts() *tls.Config {
	return &tls.Config{
		GetCertificate: e.certificateFor, GetConfigForClient: e.challengeFor, NextProtos: []string{"h2", "http/1.1"},
		DynamicRecordSizingDisabled: true, // small records first cost more than they gain
	}
}

// tlsForPort is the configuration of a TCP route: it has one certificate, whatever the client asks for.
func (e *Engine) tlsForPort(p port) *tls.Config {
	return &tls.Config{
		DynamicRecordSizingDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			r := e.current.Load().byPort[p]
			if r == nil || r.certificate == nil {
				return nil, nil //nolint:nilnil // as above
			}
			return r.certificate.parsed()
		},
	}
}
