package oneport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc/credentials"
)

// GRPCCredentials are for the grpc.Server that serves [Port.GRPC]. They do no second handshake: they return the state
// of the first one, as credentials.TLSInfo, just as calls through [Handler] do.
func (p *Port) GRPCCredentials() credentials.TransportCredentials { return doneHandshake{} }

type doneHandshake struct{}

// ServerHandshake accepts a connection whose handshake the port has done.
func (doneHandshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, ok := raw.(*tls.Conn)
	if !ok || !secure.ConnectionState().HandshakeComplete {
		return nil, nil, fmt.Errorf("connection of type %T does not come from a port with TLS", raw)
	}
	return secure, credentials.TLSInfo{
		State:          secure.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ClientHandshake always fails: these are the credentials of a server.
func (doneHandshake) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("the credentials of a port serve only a server")
}

// Info says that the transport is TLS.
func (doneHandshake) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns the credentials themselves, which have no state.
func (d doneHandshake) Clone() credentials.TransportCredentials { return d }

// OverrideServerName does nothing: a server verifies no server name.
func (doneHandshake) OverrideServerName(string) error { return nil }

// Handler is for the http.Server that serves [Port.HTTP]. Clients that offer http/1.1 and speak gRPC all the same
// are answered by grpc, a *grpc.Server; all others by rest.
func Handler(grpc, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && isGRPC(r.Header.Get("Content-Type")) {
			grpc.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// isGRPC distinguishes gRPC from the likes of application/grpc-web.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}
