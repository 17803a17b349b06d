package membership

import (
	"context"
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
	// leadingPatience is how long another server may take to say whether it leads.
	leadingPatience = 3 * time.Second
	// passportTime is how long a certificate is good that is for one question.
	passportTime = 10 * time.Minute
)

// AskLed asks another server, as one of the cluster that does not run, whether it
// leads, which takes a majority, or hears of one that does. It fails with
// ErrRemoved if that one knows that the asking one was removed.
func AskLed(ctx context.Context, ca *identity.CA, uid string, other consensus.Server) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leadingPatience)
	defer cancel()
	passport, err := newPassport(ca, uid)
	if err != nil {
		return false, err
	}
	config := peers.TLS(peers.Config{Trust: ca.Trust(), Certificate: passport.Certificate}, other.ID)
	conn, err := grpc.NewClient("passthrough:///"+other.Address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	there := v1.NewPeerServiceClient(conn)
	_, err = there.GetProgress(ctx, &v1.GetProgressRequest{Leading: true})
	switch {
	case core.HasReason(err, core.ReasonRemoved):
		return false, ErrRemoved
	case !core.HasReason(err, core.ReasonNotLeader):
		return err == nil, err
	}
	said, err := there.GetProgress(ctx, &v1.GetProgressRequest{})
	leader := said.GetLeader()
	return leader != "" && leader != uid && leader != other.ID, err
}

// newPassport is what a server proves itself with that does not run.
func newPassport(ca *identity.CA, uid string) (*identity.Credentials, error) {
	id, err := identity.NewID(ca.Trust().Cluster(), identity.KindServer, uid)
	if err != nil {
		return nil, err
	}
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: passportTime, Server: true, Client: true}, time.Now().UTC())
	if err != nil {
		return nil, err
	}
	return identity.NewCredentials(key, chain)
}
