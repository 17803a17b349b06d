package client

import (
	"context"
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
	config := identity.JoinTLS(ca)
	config.NextProtos = []string{"http/1.1"}
	conn, err := shakeHands(ctx, config, address)
	if err != nil {
		if handshake, ok := errors.AsType[*handshakeError](err); ok {
			return Context{}, fmt.Errorf("cannot trust what answers at %s: %w", address, handshake.err)
		}
		return Context{}, &UnreachableError{Addresses: []string{address}, Err: err}
	}
	defer conn.Close()
	trust, err := identity.TrustByFingerprint(conn.ConnectionState().PeerCertificates, ca)
	if err != nil {
		return Context{}, err
	}
	return Context{Name: address, Addresses: []string{address}, Cluster: trust.Cluster(), CA: string(trust.PEM()), Token: token}, nil
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
