package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/identity"
)

// join is the role of a machine that becomes a node now. On a machine that has
// joined already it goes on as that node and leaves the token unused, unless
// it was removed or its certificate has expired: then it becomes a new node.
func join(ctx context.Context, o local.JoinOptions) error {
	if o.Role == "server" {
		return joinServer(ctx, o)
	}
	err := serveNode(ctx, o.Process, o.Machine, func(f *folder, logger *slog.Logger) (enrollment, error) {
		return becomeNode(ctx, f, o, logger)
	})
	if held, ok := errors.AsType[*local.AlreadyRunningError](err); ok {
		return joinedAs(ctx, held, o)
	}
	return err
}

// enrollment makes this machine a node, which spends a use of its token. It is
// nil on one that is a node already.
type enrollment func() error

// becomeNode is how this folder's node is enrolled, unless it is one of that
// cluster.
func becomeNode(ctx context.Context, f *folder, o local.JoinOptions, logger *slog.Logger) (enrollment, error) {
	token, err := identity.ParseJoinToken(o.Token)
	if err != nil {
		return nil, err
	}
	creds, err := identity.LoadCredentials(f.credentialsPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := f.mayJoin(); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case creds.Trust().Fingerprint() != token.CA():
		return nil, otherCluster(f, creds)
	case time.Now().Before(creds.NotAfter()) && !expelled(ctx, f.serversToAsk(o.Address), creds):
		if err := f.sameNode(o.Machine); err != nil {
			return nil, err
		}
		if err := f.joinedVia(ctx, o.Address, creds); err != nil {
			return nil, err
		}
		return nil, f.notAmongStrangers(ctx, o.Process)
	}
	address, err := locate(ctx, o, token)
	if err != nil {
		return nil, err
	}
	if err := reach(ctx, address, identity.JoinTLS(token.CA())); err != nil {
		return nil, fmt.Errorf("join the cluster at %s: %w", address, err)
	}
	return func() error {
		o.Progress("joining the cluster at " + address)
		return enroll(ctx, f, o.Machine, address, o.Token, logger)
	}, nil
}

// joinedVia keeps the address by which a machine that is a node already joins once
// more, if a server of its cluster is there: those that it knows may all have moved
// or been replaced while it was away.
func (f *folder) joinedVia(ctx context.Context, address string, creds *identity.Credentials) error {
	if address == "" || reach(ctx, address, identity.ClientTLS(creds.Trust(), creds.Certificate)) != nil {
		return nil
	}
	about, err := f.readMembership()
	if err != nil || about.Via == address {
		return err
	}
	about.Via = address
	return f.writeMembership(about)
}

// sayExpired explains why no server will let this node in. What runs here goes
// on nevertheless, so it is no reason to end.
func (f *folder) sayExpired(logger *slog.Logger) error {
	creds, err := identity.LoadCredentials(f.credentialsPath())
	if err != nil {
		return err
	}
	if ended := creds.NotAfter(); time.Now().After(ended) {
		logger.Error("the certificate of this node has ended, because it was away for too long, or the clock of this machine is wrong; replicas go on, but no server lets it in: set the clock right, or run cloudless join ADDRESS with a new token",
			"ended", ended.Format(time.RFC3339), "now", time.Now().Format(time.RFC3339))
	}
	return nil
}

// joinedAs returns held if what runs there is a node of the token's cluster.
// If it is anything else, or a node no more, that it runs is not what was asked for.
func joinedAs(ctx context.Context, held *local.AlreadyRunningError, o local.JoinOptions) error {
	token, err := identity.ParseJoinToken(o.Token)
	if err != nil {
		return err
	}
	id, err := readFolderID(held.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return held // it is only beginning
	}
	if err != nil {
		return err
	}
	f := &folder{path: held.DataDir, folderID: id}
	if err := f.mayJoin(); err != nil {
		return err
	}
	creds, err := identity.LoadCredentials(f.credentialsPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return held // it is joining
	case err != nil:
		return err
	case creds.Trust().Fingerprint() != token.CA():
		return otherCluster(f, creds)
	case !time.Now().Before(creds.NotAfter()):
		return nodeNoMore(held, "its certificate has ended")
	case expelled(ctx, f.serversToAsk(o.Address), creds):
		return nodeNoMore(held, "it was removed from the cluster")
	}
	return held
}

// nodeNoMore refuses to let a machine join on which the agent of its former node
// still keeps running what ran there.
func nodeNoMore(held *local.AlreadyRunningError, why string) error {
	return fmt.Errorf("process %d on %s runs what is no node any more, because %s: stop it first with: cloudless down --data-dir %s, and join again",
		held.PID, held.DataDir, why, held.DataDir)
}

// expelPatience is how long each server may take to say whether it knows a member.
const expelPatience = 3 * time.Second

// expelled reports whether the cluster says that it does not know this member
// any more: the first server that answers does. A cluster that says nothing is no
// reason to leave it.
func expelled(ctx context.Context, servers []string, creds *identity.Credentials) bool {
	for _, address := range servers {
		soon, cancel := context.WithTimeout(ctx, expelPatience)
		err := whoAmI(soon, address, creds)
		cancel()
		switch status.Code(err) {
		case codes.OK:
			return false
		case codes.Unauthenticated:
			return true
		}
	}
	return false
}

func whoAmI(ctx context.Context, address string, creds *identity.Credentials) error {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(identity.ClientTLS(creds.Trust(), creds.Certificate))))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = v1.NewClusterServiceClient(conn).WhoAmI(ctx, &v1.WhoAmIRequest{})
	return err
}

func otherCluster(f *folder, creds *identity.Credentials) error {
	return fmt.Errorf("data folder %s belongs to a node of another cluster (%s): choose another --data-dir, or remove the old one with: cloudless down --purge --data-dir %s",
		f.path, creds.Trust().Cluster(), f.path)
}
