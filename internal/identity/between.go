package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// NodeServerTLS is the configuration of a node that other nodes of its cluster call. It refuses everybody else in the
// handshake: servers, users, programs of replicas, and callers without a certificate.
func NodeServerTLS(trust *Trust, source CertificateSource) *tls.Config {
	config := ServerTLS(trust, source)
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.SessionTicketsDisabled = true // an authority that is not trusted any more must not be remembered
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(state); err != nil {
			return err
		}
		if len(state.PeerCertificates) == 0 {
			return errors.New("only nodes of the cluster are answered here, and this caller has no certificate")
		}
		id, err := trust.member(state.PeerCertificates[0])
		if err == nil && id.Kind() != KindNode {
			err = fmt.Errorf("only nodes of the cluster are answered here, and %s is none", id)
		}
		return err
	}
	return config
}

// NodeClientTLS is the configuration of a node that calls the node with a uid. Certificates of nodes are only for
// callers, so that no node can pose as a server; between nodes that is no difference.
func NodeClientTLS(trust *Trust, source CertificateSource, uid string) *tls.Config {
	config := verifyingClient(func(chain []*x509.Certificate) error {
		if len(chain) == 0 {
			return errors.New("the node showed no certificate")
		}
		id, err := trust.verify(chain[0], x509.ExtKeyUsageClientAuth)
		if err != nil {
			return err
		}
		if id.Kind() != KindNode || id.Name() != uid {
			return fmt.Errorf("%s answered in place of node %s", id, uid)
		}
		return nil
	})
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return source() }
	return config
}
