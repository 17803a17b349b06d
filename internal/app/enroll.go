package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
)

// enroll makes this machine a node by a token. The server is verified by the
// token's fingerprint before the token itself is sent.
func enroll(ctx context.Context, f *folder, m local.Machine, address, secret string, logger *slog.Logger) error {
	token, err := identity.ParseJoinToken(secret)
	if err != nil {
		return err
	}
	if err := reach(ctx, address, identity.JoinTLS(token.CA())); err != nil {
		return fmt.Errorf("join the cluster at %s: %w", address, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(identity.JoinTLS(token.CA()))))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	return f.enrollNode(ctx, m, address, token.CA(), logger, func(csr []byte) (*v1.EnrollResponse, error) {
		return enlist(ctx, conn, address, &v1.EnrollRequest{
			Token: secret, Csr: csr, Name: nodeName(m), Labels: m.Labels, Used: usedRanges(),
		})
	})
}

// enrollNode makes this machine a node of the cluster with the given authority,
// which it asks at address. The key is on the disk before anything is asked, so
// that asking again after a lost answer is asking for the same node.
func (f *folder) enrollNode(ctx context.Context, m local.Machine, address string, ca identity.Fingerprint, logger *slog.Logger, ask func(csr []byte) (*v1.EnrollResponse, error)) error {
	if err := os.MkdirAll(f.sub("agent"), 0o700); err != nil {
		return err
	}
	key, err := identity.OpenOrCreateKey(f.joiningKeyPath())
	if err != nil {
		return err
	}
	csr, err := identity.NewCSR(key)
	if err != nil {
		return err
	}
	// Clouds that come to this machine at the same time choose their addresses one
	// after the other.
	unlock, err := lockAddresses(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	answer, err := ask(csr)
	switch {
	case errors.Is(err, errAnswerLost):
		f.keep()
		return err
	case err != nil:
		return errors.Join(err, os.Remove(f.joiningKeyPath()))
	}
	creds, err := identity.NewCredentials(key, answer.GetCertificates())
	if err != nil {
		return err
	}
	if creds.Trust().Fingerprint() != ca {
		return errors.New("the server answered with a certificate of another cluster than the token's: create a new token and join again")
	}
	about := membership{
		Servers: []string{address}, Via: address, Node: answer.GetNode().GetMetadata().GetName(),
		Wished: &wishes{Name: m.Name, Labels: m.Labels},
	}
	if before, err := f.readMembership(); err == nil && before.Node != about.Node {
		f.formerNode = before.Node
		logger.Warn("this machine is another node now", "was", before.Node, "is", about.Node)
	}
	// What an earlier node of this machine ran must not be started again before
	// the cluster says what the new one is to run.
	if err := agent.Disown(f.path); err != nil {
		return err
	}
	if err := f.writeMembership(about); err != nil {
		return err
	}
	if err := creds.Save(f.credentialsPath()); err != nil {
		return err
	}
	establishNetwork(f, answer.GetNode().GetSpec(), logger)
	return os.Remove(f.joiningKeyPath())
}

// validMachine refuses a name or labels that no server would take.
func validMachine(m local.Machine) error {
	const anyCSR = "x"
	return spec.Validate(&v1.EnrollOwnNodeRequest{Csr: []byte(anyCSR), Name: nodeName(m), Labels: m.Labels})
}

// A cluster whose answer is lost is asked again: by the same token and key it
// answers for the same machine, and spends no other use of the token.
const (
	enlistPatience = 30 * time.Second
	enlistPause    = 500 * time.Millisecond
)

// errAnswerLost says that the cluster may have taken this machine.
var errAnswerLost = errors.New("its answer was lost, join again with the same token and data folder")

// enlist asks a cluster to take this machine, until it has answered.
func enlist(ctx context.Context, conn *grpc.ClientConn, address string, request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	connected := connect(ctx, conn)
	for end := time.Now().Add(enlistPatience); ; {
		answer, err := v1.NewEnrollmentServiceClient(conn).Enroll(ctx, request, grpc.WaitForReady(false))
		if err == nil {
			return answer, nil
		}
		said := status.Convert(err).Message()
		if !connected || !answerLost(err) {
			return nil, fmt.Errorf("join the cluster at %s: %s", address, said)
		}
		if time.Now().After(end) || pause(ctx, enlistPause) != nil {
			return nil, fmt.Errorf("join the cluster at %s: %w: %s", address, errAnswerLost, said)
		}
	}
}

// connect waits until a server is connected or cannot be.
func connect(ctx context.Context, conn *grpc.ClientConn) bool {
	conn.Connect()
	for {
		switch now := conn.GetState(); now {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		default:
			if !conn.WaitForStateChange(ctx, now) {
				return false
			}
		}
	}
}

// answerLost reports whether a server may have done what it was asked for.
func answerLost(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown: // the last one where leadership was lost meanwhile
		return true
	}
	return false
}
