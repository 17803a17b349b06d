package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/identity"
)

// runNode makes this machine a node, unless it is one, and runs its agent. A node
// that was removed while this process did not run becomes a new one. One that is
// removed later is left alone until the next start: somebody wanted that.
func (s *service) runNode(ctx context.Context) error {
	s.Progress("joining this machine to the cluster")
	if err := s.enrollSelf(ctx); err != nil {
		return err
	}
	context, err := s.writeContext(ctx)
	if err != nil {
		return err
	}
	for {
		m, accepted, err := s.runMember(ctx, context)
		if !errors.Is(err, agent.ErrRemoved) {
			return err
		}
		if accepted {
			return s.withoutNode(ctx, m)
		}
		s.logger.Warn("this machine was removed from the cluster and joins it as a new node", "was", m.name)
		s.Progress(fmt.Sprintf("joining this machine to the cluster again, from which node %s was removed", m.name))
		if err := s.enrollAnew(ctx); err != nil {
			return err
		}
	}
}

// runMember runs the agent until it ends, and reports whether a server had
// accepted it.
func (s *service) runMember(ctx context.Context, context string) (m *member, accepted bool, err error) {
	var u undo
	defer u.run()
	leaves := s.folder.clearNetworkIfRemoved(s.logger, &u)
	if m, err = openMember(ctx, s.folder, s.link, s.driver, s.Version, s.instruments, s.logger, &u); err != nil {
		return nil, false, err
	}
	m.progress = s.Progress
	over := make(chan struct{})
	var watches sync.WaitGroup
	watches.Go(func() { s.sayNoSession(m, over) })
	watches.Go(func() { s.sayRemoved(m, over) })
	err = m.Run(ctx, func() { s.ready(s.readyMessage(m, context)) })
	close(over)
	watches.Wait()
	if errors.Is(err, agent.ErrRemoved) {
		leaves()
	}
	return m, m.accepted(), err
}

// sayNoSession says why the node gets no session, if that takes long although a
// server leads, until over is closed.
func (s *service) sayNoSession(m *member, over <-chan struct{}) {
	select {
	case <-over:
	case <-m.agent.Ready():
	case <-m.agent.Removed():
	case <-time.After(serverHope):
		if why := m.refusal.Load(); why != nil {
			if _, led := s.plane.consensus.Leader(); led {
				s.ready(fmt.Sprintf("server is ready at %s, but node %s gets no session with it: %s", s.plane.server.Address(), m.name, *why))
			}
		}
	}
}

// sayRemoved tells those who find the folder held that its node was removed, while
// the agent still stops replicas, until over is closed.
func (s *service) sayRemoved(m *member, over <-chan struct{}) {
	select {
	case <-over:
	case <-m.agent.Removed():
	}
	if !closed(m.agent.Removed()) {
		return
	}
	logError(s.logger, "keep that the node was removed", s.folder.noteRemoved())
	if m.accepted() { // else this process makes the machine a node again
		logError(s.logger, "say that the node was removed", s.folder.say(func(h *holder) { h.NodeRemoved = true }))
	}
}

// withoutNode goes on as a server whose node was removed.
func (s *service) withoutNode(ctx context.Context, m *member) error {
	close(s.nodeGone)
	s.logger.Error("the node of this machine was removed from the cluster and its replicas were stopped; the server goes on",
		"node", m.name, "again", s.startAgain())
	select {
	case <-ctx.Done():
		return nil
	case <-s.serverGone:
		return command.ForGood(s.folder.wasRemoved(m))
	}
}

// enrollSelf joins this machine on its first start. After a rest longer than
// its certificate lasts it gets a new one from the authority in this process.
func (s *service) enrollSelf(ctx context.Context) error {
	f, p := s.folder, s.plane
	creds, err := identity.LoadCredentials(f.credentialsPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.enrollOwnNode(ctx, *s.node)
	case err != nil:
		return err
	case creds.Trust().Fingerprint() != p.ca.Trust().Fingerprint():
		return otherCluster(f, creds)
	case time.Now().After(creds.NotAfter()):
		if creds, err = s.recertify(creds); err != nil {
			return err
		}
		if creds == nil { // the state does not have the node
			return s.enrollAnew(ctx)
		}
		if err := creds.Save(f.credentialsPath()); err != nil {
			return err
		}
	}
	about, err := f.readMembership()
	if err != nil {
		return err
	}
	about.Via = reachable(p.server.Address()) // the address may be another one than last time
	about.Servers = []string{about.Via}
	return f.writeMembership(about)
}

// recertify issues a certificate to the node of this machine; nil if the cluster
// does not have the node any more.
func (s *service) recertify(old *identity.Credentials) (*identity.Credentials, error) {
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	chain, err := s.plane.server.Certify(csr, old.ID().Name())
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return identity.NewCredentials(key, chain)
}

// enrollAnew makes this machine a new node, called and labelled as the one that it
// was, unless the person at the terminal says otherwise.
func (s *service) enrollAnew(ctx context.Context) error {
	m := *s.node
	if about, err := s.folder.readMembership(); err == nil {
		if m.Name == "" {
			m.Name = about.Node
		}
		if about.Wished != nil && len(m.Labels) == 0 {
			m.Labels = about.Wished.Labels
		}
	}
	err := s.enrollOwnNode(ctx, m)
	s.folder.formerNode = "" // it needs not be removed
	return err
}

// enrollPause is between two questions to a cluster that cannot answer.
const enrollPause = 500 * time.Millisecond

// enrollOwnNode asks the cluster, as the server that this process is, to make this
// machine a node. It asks until somebody leads who can.
func (s *service) enrollOwnNode(ctx context.Context, m local.Machine) error {
	address, me := reachable(s.plane.server.Address()), s.plane.server.PeerConfig()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(
		identity.ClientTLS(me.Trust, func() (*tls.Certificate, error) { return me.Certificate() }))))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	return s.folder.enrollNode(ctx, m, address, me.Trust.Fingerprint(), s.logger, func(csr []byte) (*v1.EnrollResponse, error) {
		for {
			answer, err := v1.NewEnrollmentServiceClient(conn).EnrollOwnNode(ctx, &v1.EnrollOwnNodeRequest{
				Csr: csr, Name: nodeName(m), Labels: m.Labels, Used: usedRanges(),
			})
			switch {
			case err == nil:
				return answer, nil
			case !answerLost(err):
				return nil, fmt.Errorf("make this machine a node: %s", status.Convert(err).Message())
			}
			s.Progress("joining this machine to the cluster: " + client.Message(err))
			if err := pause(ctx, enrollPause); err != nil {
				return nil, errors.Join(errAnswerLost, err)
			}
		}
	})
}

// readyMessage says that server and node can be used.
func (s *service) readyMessage(m *member, context string) string {
	if !s.folder.founds() {
		return fmt.Sprintf("server is ready at %s (node %s); after a restart of the machine, run: %s", s.plane.server.Address(), m.name, s.startAgain())
	}
	return fmt.Sprintf("cloudless is ready at %s (node %s)\n%s\n%s", s.plane.server.Address(), m.name, context, whatNext(s.folder))
}

// whatNext is the command that is of most use after a start.
func whatNext(f *folder) string {
	if f.formerNode != "" {
		return fmt.Sprintf("this machine was node %s, whose key is lost: remove that one with: cloudless node rm %s", f.formerNode, f.formerNode)
	}
	return "run something with: cloudless run ./hello --name web --publish 8080:8080"
}
