package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
)

// runNode makes this machine a node, unless it is one, and runs its agent. If the node was removed while this process
// did not run, the machine becomes a new node. A node that is removed later stays removed until the next start, because
// an operator wanted that.
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

// runMember runs the agent until it ends, and reports whether a server had accepted it.
func (s *service) runMember(ctx context.Context, context string) (m *member, accepted bool, err error) {
	var u undo
	defer u.run()
	leaves := clearNetworkIfRemoved(ctx, s.folder, s.logger, &u)
	if m, err = openMember(ctx, s.folder, s.link, s.driver, s.Version, s.instruments, s.logger, &u); err != nil {
		return nil, false, err
	}
	m.progress = s.Progress
	s.plane.server.Disks().SetLocal(m.uid)
	over := make(chan struct{})
	var watches sync.WaitGroup
	watches.Go(func() { s.sayNoSession(m, over) })
	watches.Go(func() { s.sayRemoved(m, over) })
	err = endedByContext(together(ctx, m.parts(func() { s.ready(s.readyMessage(m, context)) })...))
	close(over)
	watches.Wait()
	if errors.Is(err, agent.ErrRemoved) {
		leaves()
	}
	return m, m.accepted(), err
}

// sayNoSession reports why the node gets no session, if that takes long although there is a leader, until over is
// closed.
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

// sayRemoved tells processes that find the folder held that its node was removed, while the agent still stops replicas,
// until over is closed.
func (s *service) sayRemoved(m *member, over <-chan struct{}) {
	select {
	case <-over:
	case <-m.agent.Removed():
	}
	if !closed(m.agent.Removed()) {
		return
	}
	logError(s.logger, "keep that the node was removed", s.folder.MarkNodeRemoved())
	if m.accepted() { // else this process makes the machine a node again
		logError(s.logger, "say that the node was removed", s.folder.UpdateHolder(func(h *datadir.Holder) { h.NodeRemoved = true }))
	}
}

// withoutNode continues as a server without its removed node.
func (s *service) withoutNode(ctx context.Context, m *member) error {
	close(s.nodeGone)
	s.logger.Error("the node of this machine was removed from the cluster and its replicas were stopped; the server goes on",
		"node", m.name, "again", s.startAgain())
	select {
	case <-ctx.Done():
		return nil
	case <-s.serverGone:
		return command.ForGood(wasRemoved(s.folder, m))
	}
}

// enrollSelf enrolls this machine on its first start. If its certificate has expired since the last run, the authority
// in this process issues a new one.
func (s *service) enrollSelf(ctx context.Context) error {
	f, p := s.folder, s.plane
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.enrollOwnNode(ctx, *s.node)
	case err != nil:
		return err
	case creds.Trust().Cluster() != p.ca.Trust().Cluster():
		return enroll.OtherCluster(f, creds)
	// The authority may have been replaced while this machine was off.
	case time.Now().After(creds.NotAfter()) || !p.ca.Trust().Has(creds.Issuer()):
		if creds, err = s.recertify(creds); err != nil {
			return err
		}
		if creds == nil { // the state does not have the node
			return s.enrollAnew(ctx)
		}
		if err := creds.Save(f.CredentialsPath()); err != nil {
			return err
		}
	}
	about, err := f.ReadMembership()
	if err != nil {
		return err
	}
	about.Via = spec.LoopbackAddress(p.server.Address()) // the address may have changed
	about.Servers = []string{about.Via}
	return f.WriteMembership(about)
}

// recertify issues a certificate to this machine's node; nil if the node is not in the cluster any more.
func (s *service) recertify(old *identity.Credentials) (*identity.Credentials, error) {
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	chain, err := s.plane.server.Membership().Certify(csr, old.ID().Name())
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return identity.NewCredentials(key, chain)
}

// enrollAnew makes this machine a new node with the name and labels of the former one, unless the user gives others.
func (s *service) enrollAnew(ctx context.Context) error {
	m := *s.node
	if about, err := s.folder.ReadMembership(); err == nil {
		if m.Name == "" {
			m.Name = about.Node
		}
		if about.Requested != nil && len(m.Labels) == 0 {
			m.Labels = about.Requested.Labels
		}
	}
	err := s.enrollOwnNode(ctx, m)
	s.folder.FormerNode = "" // it need not be removed
	return err
}

// enrollOwnNode asks the cluster, as the server of this process, to make this machine a node.
func (s *service) enrollOwnNode(ctx context.Context, m local.Machine) error {
	me := s.plane.server.Membership().PeerConfig()
	return enroll.OwnNode(ctx, s.folder, enroll.OwnNodeOptions{
		Request: requestOf(m), Address: spec.LoopbackAddress(s.plane.server.Address()), Trust: me.Trust, Certificate: me.Certificate,
		Progress: s.Progress, Logger: s.logger,
	})
}

// readyMessage says that server and node are ready.
func (s *service) readyMessage(m *member, context string) string {
	if !s.folder.Founds() {
		return fmt.Sprintf("server is ready at %s (node %s); after a restart of the machine, run: %s", s.plane.server.Address(), m.name, s.startAgain())
	}
	return fmt.Sprintf("cloudless is ready at %s (node %s)\n%s\n%s", s.plane.server.Address(), m.name, context, whatNext(s.folder))
}

// whatNext is the most useful command after a start.
func whatNext(f *datadir.Folder) string {
	if f.FormerNode != "" {
		return fmt.Sprintf("this machine was node %s, whose key is lost: remove that one with: cloudless node rm %s", f.FormerNode, f.FormerNode)
	}
	return "run something with: cloudless run ./hello --name web --publish 8080:8080"
}
