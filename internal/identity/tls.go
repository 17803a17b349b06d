package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// CertificateSource returns the certificate for the next handshake. [Rotator.Certificate] is one.
type CertificateSource func() (*tls.Certificate, error)

// ServerTLS is the configuration of a server of the cluster. Client certificates are verified if given: a client
// without one has to send another credential with its calls. [PeerID] returns the identity of the client.
//
// Sessions may be resumed: the tls package then checks the certificate of the first handshake again (its dates and its
// root), and the identity is checked for every connection here. A revocation is not visible here: the handler of the
// connection has to check the state.
//
// Each handshake uses the authorities that are trusted then. A server that replaces GetConfigForClient has to call
// [Accepting].
func ServerTLS(trust *Trust, source CertificateSource) *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return source() },
		ClientAuth:     tls.VerifyClientCertIfGiven,
		ClientCAs:      trust.pool(),
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			_, err := trust.member(state.PeerCertificates[0])
			return err
		},
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return Accepting(trust, config), nil }
	return config
}

// Accepting returns a configuration of [ServerTLS] that verifies clients by the authorities that are trusted now. It is
// the given one if nothing has changed.
func Accepting(trust *Trust, config *tls.Config) *tls.Config {
	pool := trust.pool()
	if config.ClientCAs == pool {
		return config
	}
	next := config.Clone()
	next.ClientCAs = pool
	return next
}

// ClientTLS is the configuration of a member or user that calls a server of the cluster. The server is known by its
// identity, not by a host name, so that it may move to any address. Without a source no certificate is sent, and the
// caller has to authenticate otherwise.
func ClientTLS(trust *Trust, source CertificateSource) *tls.Config {
	config := verifyingClient(func(chain []*x509.Certificate) error { return verifyServer(trust, chain) })
	if source != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return source() }
	}
	return config
}

// JoinTLS is the configuration of a machine or user that knows only the fingerprint in its token. The server has to
// send its CA's certificate along. The handshake fails, before the machine has sent anything of its own, unless that is
// the one that the token names and the server is a server under it.
func JoinTLS(ca Fingerprint) *tls.Config {
	return verifyingClient(func(chain []*x509.Certificate) error {
		_, err := TrustByFingerprint(chain, ca)
		return err
	})
}

// TrustByFingerprint is the trust in the CA with this fingerprint, if a server sent that CA's certificate along and is
// a server under it, or under another authority that it endorses.
func TrustByFingerprint(chain []*x509.Certificate, ca Fingerprint) (*Trust, error) {
	for _, cert := range chain {
		if sha256.Sum256(cert.Raw) != ca {
			continue
		}
		roots := []*x509.Certificate{cert}
		trust, err := newTrust(append(roots, endorsed(roots, chain, time.Now())...)...)
		if err != nil {
			return nil, err
		}
		return trust, verifyServer(trust, chain)
	}
	return nil, errors.New("the server does not belong to the cluster that the token is for: " +
		"check the address, or create a token in the cluster that is meant; a token of before the replacement of the certificate authority has ended, too: create a new token")
}

// FollowTLS is [ClientTLS] for a user who calls the cluster only now and then: it also accepts an authority that one of
// the trusted ones endorses. From then on the trust holds the authorities that the server shows, and learned is called
// if that has changed it.
func FollowTLS(trust *Trust, learned func()) *tls.Config {
	return verifyingClient(func(chain []*x509.Certificate) error {
		follows, err := newTrust(slices.Concat(trust.bundle.Load().roots, endorsed(trust.bundle.Load().roots, chain, time.Now()))...)
		if err == nil {
			err = verifyServer(follows, chain)
		}
		if err != nil {
			return err
		}
		var authorities [][]byte
		for _, root := range shown(chain) {
			authorities = append(authorities, root.Raw)
		}
		if len(authorities) == 0 {
			return nil
		}
		changed, err := trust.Set(authorities...)
		if changed && err == nil {
			learned()
		}
		return err
	})
}

// UnknownTLS is the configuration of a user who does not know the cluster yet. It accepts every server that sends its CA's
// certificate along: the user has to compare its fingerprint.
func UnknownTLS() *tls.Config {
	return verifyingClient(func(chain []*x509.Certificate) error {
		_, err := TrustShown(chain)
		return err
	})
}

// TrustShown is the trust in the CA whose certificate a server sent along, if it is a server under it. It proves nothing
// before somebody has compared the fingerprint.
func TrustShown(chain []*x509.Certificate) (*Trust, error) {
	for _, cert := range chain {
		if trust, err := newTrust(cert); err == nil {
			return trust, verifyServer(trust, chain)
		}
	}
	return nil, errors.New("the server shows no certificate of a cluster: check the address")
}

// verifyingClient replaces the verification by host name with another. VerifyConnection, unlike
// VerifyPeerCertificate, is called for resumed sessions too.
func verifyingClient(verify func(chain []*x509.Certificate) error) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // of the host name; verify does the rest
		VerifyConnection:   func(state tls.ConnectionState) error { return verify(state.PeerCertificates) },
	}
}

func verifyServer(trust *Trust, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("the server showed no certificate")
	}
	id, err := trust.verify(chain[0], x509.ExtKeyUsageServerAuth)
	if err != nil {
		if successors := endorsed(trust.bundle.Load().roots, chain, time.Now()); len(successors) > 0 {
			if next, failed := newTrust(successors...); failed == nil && verifyServer(next, chain) == nil {
				return ErrReplaced
			}
		}
		return err
	}
	if id.Kind() != KindServer {
		return fmt.Errorf("%s answered as a server, but is not one", id)
	}
	return nil
}
