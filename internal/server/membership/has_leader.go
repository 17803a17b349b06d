package membership

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
)

const (
	// leaderTimeout bounds how long another server may take to answer whether it leads.
	leaderTimeout = 3 * time.Second
	// questionTTL is the validity of a certificate for one question.
	questionTTL = 10 * time.Minute
)

// HasLeader asks another server whether it leads, confirmed by a majority, or knows a third
// server that does. It asks as a server that does not run now. It fails with ErrRemoved if
// the other server knows that the asking one was removed.
func HasLeader(ctx context.Context, ca *identity.CA, uid string, other consensus.Server) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	own, err := newCredentials(ca, uid)
	if err != nil {
		return false, err
	}
	var replaced atomic.Bool
	config := peers.TLS(peers.Config{Trust: ca.Trust(), Certificate: own.Certificate, Replaced: func() { replaced.Store(true) }}, other.ID)
	conn, err := grpc.NewClient("passthrough:///"+other.Address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	there := v1.NewPeerServiceClient(conn)
	_, err = there.GetProgress(ctx, &v1.GetProgressRequest{Leading: true})
	switch {
	case core.HasReason(err, core.ReasonRemoved), replaced.Load(): // it was removed, or left behind by a rotation
		return false, ErrRemoved
	case !core.HasReason(err, core.ReasonNotLeader):
		return err == nil, err
	}
	progress, err := there.GetProgress(ctx, &v1.GetProgressRequest{})
	leader := progress.GetLeader()
	return leader != "" && leader != uid && leader != other.ID, err
}

// newCredentials issues credentials to a server that does not run.
func newCredentials(ca *identity.CA, uid string) (*identity.Credentials, error) {
	id, err := identity.NewID(ca.Trust().Cluster(), identity.KindServer, uid)
	if err != nil {
		return nil, err
	}
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: questionTTL, Server: true, Client: true}, time.Now().UTC())
	if err != nil {
		return nil, err
	}
	return identity.NewCredentials(key, chain)
}
