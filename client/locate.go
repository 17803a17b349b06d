package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/cloudless/cloudless/internal/identity"
)

// Locate makes a context of a cluster that is known only by the address of one of its servers and by an API token. The
// fingerprint in the token authenticates the server. Nothing is sent before that, and the token is not sent at all. The
// context is named after the address.
func Locate(ctx context.Context, address, token string) (Context, error) {
	parsed, err := identity.ParseAPIToken(token)
	if err != nil {
		return Context{}, err
	}
	ca, ok := parsed.CA()
	if !ok {
		return Context{}, errors.New("the token was made by an older version and does not say which server to trust: create a new one with: cloudless token create")
	}
	found, err := LocateBy(ctx, address, ca)
	found.Token = token
	return found, err
}

// LocateBy makes a context without a token of the cluster whose authority has the fingerprint.
func LocateBy(ctx context.Context, address string, ca identity.Fingerprint) (Context, error) {
	return locate(ctx, address, identity.JoinTLS(ca), func(chain []*x509.Certificate) (*identity.Trust, error) {
		return identity.TrustByFingerprint(chain, ca)
	})
}

// LocateUnknown makes a context without a token of the cluster to which the server at an address says that it belongs, and
// returns the fingerprint of its authority. Nothing proves that it is the cluster that the user means: somebody must compare
// the fingerprint before anything is sent there.
func LocateUnknown(ctx context.Context, address string) (Context, identity.Fingerprint, error) {
	var ca identity.Fingerprint
	found, err := locate(ctx, address, identity.UnknownTLS(), func(chain []*x509.Certificate) (*identity.Trust, error) {
		trust, err := identity.TrustShown(chain)
		if err == nil {
			ca = trust.Fingerprint()
		}
		return trust, err
	})
	return found, ca, err
}

func locate(ctx context.Context, address string, config *tls.Config, trustIn func([]*x509.Certificate) (*identity.Trust, error)) (Context, error) {
	config.NextProtos = []string{"http/1.1"}
	conn, err := shakeHands(ctx, config, address)
	if err != nil {
		if handshake, ok := errors.AsType[*handshakeError](err); ok {
			return Context{}, fmt.Errorf("cannot trust what answers at %s: %w", address, handshake.err)
		}
		return Context{}, &UnreachableError{Addresses: []string{address}, Err: err}
	}
	defer conn.Close()
	trust, err := trustIn(conn.ConnectionState().PeerCertificates)
	if err != nil {
		return Context{}, err
	}
	return Context{Name: address, Addresses: []string{address}, Cluster: trust.Cluster(), CA: string(trust.PEM())}, nil
}

// Fits reports whether the token is for the context's cluster, as far as the token says.
func (c Context) Fits(token identity.APIToken) bool {
	ca, carries := token.CA()
	if !carries {
		return true
	}
	trust, err := identity.ParseTrustPEM([]byte(c.CA))
	return err == nil && trust.Has(ca)
}
