package chunks

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/deadpeer"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

// idlePeer is how long a connection to another node is kept without a call.
const idlePeer = time.Minute

// peers are the other nodes that chunks were fetched from.
type peers struct {
	trust       *identity.Trust
	certificate identity.CertificateSource

	mu     sync.Mutex
	conns  map[string]peer
	closed bool
}

type peer struct {
	address string
	conn    *grpc.ClientConn
}

func newPeers(trust *identity.Trust, certificate identity.CertificateSource) *peers {
	return &peers{trust: trust, certificate: certificate, conns: map[string]peer{}}
}

// get appends a chunk of another node to buf.
func (p *peers) get(ctx context.Context, from *v1.ChunkSource, hash transfer.Hash, buf []byte) ([]byte, error) {
	conn, err := p.connect(from)
	if err != nil {
		return buf, err
	}
	return transfer.Get(ctx, v1.NewChunkServiceClient(conn), hash, 0, 0, buf)
}

// connect returns the connection to a node. gRPC opens it for the first call, and again when it is needed.
func (p *peers) connect(to *v1.ChunkSource) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, net.ErrClosed
	}
	known := p.conns[to.GetNodeUid()]
	if known.conn != nil && known.address == to.GetAddress() {
		return known.conn, nil
	}
	creds := credentials.NewTLS(identity.NodeClientTLS(p.trust, p.certificate, to.GetNodeUid()))
	conn, err := grpc.NewClient("passthrough:///"+to.GetAddress(), append(transfer.DialOptions(creds), grpc.WithIdleTimeout(idlePeer),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return deadpeer.Dialer().DialContext(ctx, "tcp", address)
		}))...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to.GetAddress(), err)
	}
	if known.conn != nil { // the node has moved
		_ = known.conn.Close()
	}
	p.conns[to.GetNodeUid()] = peer{to.GetAddress(), conn}
	return conn, nil
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.conns {
		_ = one.conn.Close()
	}
}
