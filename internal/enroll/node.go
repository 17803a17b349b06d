package enroll

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/peering"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// NodeOptions say which cluster a machine joins, and as which node.
type NodeOptions struct {
	// Address of a server; empty to discover one on this network.
	Address string
	Token   string
	Request datadir.NodeRequest
	// Progress is called with what is being done, in a few words.
	Progress func(doing string)
	Logger   *slog.Logger
}

// Node returns the function that makes this folder's machine a node of the token's cluster, which spends a use of the
// token. It is nil if the machine is a node of that cluster already. A machine whose node was removed, or whose
// certificate has expired, becomes a new node.
func Node(ctx context.Context, f *datadir.Folder, o NodeOptions) (enroll func() error, err error) {
	token, err := identity.ParseJoinToken(o.Token)
	if err != nil {
		return nil, err
	}
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := f.CheckNode(); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case ofOtherCluster(ctx, serversToAsk(f, o.Address), token, creds.Trust()):
		return nil, OtherCluster(f, creds)
	case missed(ctx, serversToAsk(f, o.Address), token, creds):
		o.Logger.Warn("the cluster has replaced its certificate authority while this machine was away: it becomes a new node")
	case time.Now().Before(creds.NotAfter()) && !expelled(ctx, serversToAsk(f, o.Address), creds):
		if err := f.CheckSameNode(o.Request); err != nil {
			return nil, err
		}
		return nil, keepVia(ctx, f, o.Address, creds)
	}
	address, err := locate(ctx, o.Address, token, o.Progress)
	if err != nil {
		return nil, err
	}
	if err := peering.Reach(ctx, address, identity.JoinTLS(token.CA())); err != nil {
		return nil, fmt.Errorf("join the cluster at %s: %w", address, err)
	}
	return func() error {
		o.Progress("joining the cluster at " + address)
		return joinAt(ctx, f, o, address)
	}, nil
}

// joinAt makes this machine a node by a token. The server proves itself by the token's fingerprint before the token
// is sent.
func joinAt(ctx context.Context, f *datadir.Folder, o NodeOptions, address string) error {
	token, err := identity.ParseJoinToken(o.Token)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, address, token)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return becomeNode(ctx, f, o.Request, address, token.CA(), o.Logger, func(csr []byte) (*v1.EnrollResponse, error) {
		return ask(ctx, conn, address, &v1.EnrollRequest{
			Token: o.Token, Csr: csr, Name: Name(o.Request.Name), Named: o.Request.Name != "", Labels: o.Request.Labels, Used: usedRanges(), Networks: usedNetworks(),
		})
	})
}

// OwnNodeOptions say how a server makes its own machine a node.
type OwnNodeOptions struct {
	Request datadir.NodeRequest
	// Address and identity of the server in this process.
	Address     string
	Trust       *identity.Trust
	Certificate func() (*tls.Certificate, error)
	Progress    func(doing string)
	Logger      *slog.Logger
}

// OwnNode asks the cluster, as the server of this process, to make this machine a node. It retries until there is a
// leader.
func OwnNode(ctx context.Context, f *datadir.Folder, o OwnNodeOptions) error {
	conn, err := grpc.NewClient("passthrough:///"+o.Address, grpc.WithTransportCredentials(credentials.NewTLS(identity.ClientTLS(o.Trust, o.Certificate))))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", o.Address, err)
	}
	defer func() { _ = conn.Close() }()
	return becomeNode(ctx, f, o.Request, o.Address, o.Trust.Fingerprint(), o.Logger, func(csr []byte) (*v1.EnrollResponse, error) {
		for {
			answer, err := v1.NewEnrollmentServiceClient(conn).EnrollOwnNode(ctx, &v1.EnrollOwnNodeRequest{
				Csr: csr, Name: Name(o.Request.Name), Labels: o.Request.Labels, Used: usedRanges(), Networks: usedNetworks(),
			})
			switch {
			case err == nil:
				return answer, nil
			case !answerLost(err):
				return nil, fmt.Errorf("make this machine a node: %s", status.Convert(err).Message())
			}
			o.Progress("joining this machine to the cluster: " + client.Message(err))
			if err := sleep.For(ctx, askPause); err != nil {
				return nil, errors.Join(errAnswerLost, err)
			}
		}
	})
}

// becomeNode makes this machine a node of the cluster with the given authority, which it asks at address. The key is on
// disk before it asks, so that asking again after a lost answer asks for the same node.
func becomeNode(ctx context.Context, f *datadir.Folder, r datadir.NodeRequest, address string, ca identity.Fingerprint, logger *slog.Logger, ask func(csr []byte) (*v1.EnrollResponse, error)) error {
	if err := os.MkdirAll(f.Path("agent"), 0o700); err != nil {
		return err
	}
	key, err := identity.OpenOrCreateKey(f.JoiningKeyPath())
	if err != nil {
		return err
	}
	csr, err := identity.NewCSR(key)
	if err != nil {
		return err
	}
	// Clouds that come to this machine at the same time choose their addresses one after the other.
	unlock, err := lockAddresses(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	answer, err := ask(csr)
	switch {
	case errors.Is(err, errAnswerLost):
		f.Keep()
		return err
	case err != nil:
		return errors.Join(err, os.Remove(f.JoiningKeyPath()))
	}
	creds, err := credentialsOf(key, answer, ca)
	if err != nil {
		return err
	}
	about := datadir.Membership{Servers: []string{address}, Via: address, Node: answer.GetNode().GetMetadata().GetName(), Requested: &r}
	if before, err := f.ReadMembership(); err == nil && before.Node != about.Node {
		f.FormerNode = before.Node
		logger.Warn("this machine is another node now", "was", before.Node, "is", about.Node)
	}
	// The replicas of an earlier node of this machine must not be started again before the cluster says what the new
	// node runs.
	if err := agent.Disown(f.Path()); err != nil {
		return err
	}
	if err := f.WriteMembership(about); err != nil {
		return err
	}
	if err := creds.Save(f.CredentialsPath()); err != nil {
		return err
	}
	establishNetwork(f, answer.GetNode().GetSpec(), logger)
	return os.Remove(f.JoiningKeyPath())
}

// credentialsOf are those of a new member, if they are of the token's cluster.
func credentialsOf(key crypto.Signer, answer *v1.EnrollResponse, ca identity.Fingerprint) (*identity.Credentials, error) {
	creds, err := identity.NewCredentials(key, answer.GetCertificates())
	if err != nil {
		return nil, err
	}
	if !creds.Trust().Has(ca) {
		return nil, errors.New("the server answered with a certificate of another cluster than the token's: create a new token and join again")
	}
	return creds, nil
}

// keepVia keeps the address at which a machine that is a node already joins again, if a server of its cluster answers
// there: the servers that it knows may all have moved or been replaced while it was away.
func keepVia(ctx context.Context, f *datadir.Folder, address string, creds *identity.Credentials) error {
	if address == "" || peering.Reach(ctx, address, identity.ClientTLS(creds.Trust(), creds.Certificate)) != nil {
		return nil
	}
	about, err := f.ReadMembership()
	if err != nil || about.Via == address {
		return err
	}
	about.Via = address
	return f.WriteMembership(about)
}

// WarnExpired logs that no server will accept this node because its certificate has expired. The node keeps running
// its replicas.
func WarnExpired(f *datadir.Folder, logger *slog.Logger) error {
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	if err != nil {
		return err
	}
	if ended := creds.NotAfter(); time.Now().After(ended) {
		logger.Error("the certificate of this node has ended, because it was away for too long, or the clock of this machine is wrong; replicas go on, but no server lets it in: set the clock right, or run cloudless join ADDRESS with a new token",
			"ended", ended.Format(time.RFC3339), "now", time.Now().Format(time.RFC3339))
	}
	return nil
}

// CheckRunningNode returns held if the process that holds the folder runs a node of the token's cluster. If it runs
// anything else, or a former node, it returns why that is not what was asked for.
func CheckRunningNode(ctx context.Context, held *datadir.AlreadyRunningError, secret, address string) error {
	token, err := identity.ParseJoinToken(secret)
	if err != nil {
		return err
	}
	f, err := datadir.View(held.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return held // it is only starting
	}
	if err != nil {
		return err
	}
	if err := f.CheckNode(); err != nil {
		return err
	}
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return held // it is joining
	case err != nil:
		return err
	case ofOtherCluster(ctx, serversToAsk(f, address), token, creds.Trust()):
		return OtherCluster(f, creds)
	case missed(ctx, serversToAsk(f, address), token, creds):
		return formerNode(held, "the cluster has replaced its certificate authority while it was away")
	case !time.Now().Before(creds.NotAfter()):
		return formerNode(held, "its certificate has ended")
	case expelled(ctx, serversToAsk(f, address), creds):
		return formerNode(held, "it was removed from the cluster")
	}
	return held
}

// formerNode refuses to let a machine join on which the agent of its former node still runs.
func formerNode(held *datadir.AlreadyRunningError, why string) error {
	return fmt.Errorf("process %d on %s runs what is no node any more, because %s: stop it first with: cloudless down --data-dir %s, and join again",
		held.PID, held.DataDir, why, held.DataDir)
}

// OtherCluster is the error for a folder whose node belongs to another cluster.
func OtherCluster(f *datadir.Folder, creds *identity.Credentials) error {
	return fmt.Errorf("data folder %s belongs to a node of another cluster (%s): choose another --data-dir, or remove the old one with: cloudless down --purge --data-dir %s",
		f.Path(), creds.Trust().Cluster(), f.Path())
}

// CheckRequest refuses a name or labels that no server would accept.
func CheckRequest(r datadir.NodeRequest) error {
	const anyCSR = "x"
	return spec.Validate(&v1.EnrollOwnNodeRequest{Csr: []byte(anyCSR), Name: Name(r.Name), Labels: r.Labels})
}

// Name is the name of a member: the wanted name, or else the host's, with all characters that a name cannot have
// replaced.
func Name(wanted string) string {
	name := wanted
	if name == "" {
		name, _ = os.Hostname()
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		default:
			return '-'
		}
	}, strings.ToLower(name))
	if name = strings.Trim(name[:min(len(name), 63)], "-"); name == "" {
		return "node"
	}
	return name
}

// NotJoined refuses to start a node on a data folder that belongs to no cluster.
func NotJoined(dataDir string) error {
	return fmt.Errorf("this machine has not joined a cluster with data folder %s: run cloudless join ADDRESS --token TOKEN", dataDir)
}
