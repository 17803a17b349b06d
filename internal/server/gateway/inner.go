package gateway

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cloudless/cloudless/internal/server/auth"
)

// The gateway is a client of the gRPC server in the same process, so that its calls pass
// the same interceptors. The connection is in memory: no other process can open one.

type innerConn struct{ net.Conn }

// Inner connects the gateway to the gRPC server.
type Inner struct{ *bufconn.Listener }

// NewInner returns a listener for the gRPC server.
func NewInner() *Inner { return &Inner{bufconn.Listen(256 << 10)} }

func (l *Inner) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, net.ErrClosed
	}
	return innerConn{conn}, nil
}

// Dial connects to the gRPC server. The caller names the principal of each call in its metadata.
func (l *Inner) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///inner",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // memory of this process
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
	)
}

// Credentials accept connections of the port and of the gateway.
type Credentials struct {
	credentials.TransportCredentials
}

func (c Credentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if inner, ok := raw.(innerConn); ok {
		return inner, auth.InnerAuth{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
	return c.TransportCredentials.ServerHandshake(raw)
}

func (c Credentials) Clone() credentials.TransportCredentials {
	return Credentials{c.TransportCredentials.Clone()}
}
