package app

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/cloudless/cloudless/internal/checkup"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/authority"
	"github.com/cloudless/cloudless/internal/control/certificates"
	"github.com/cloudless/cloudless/internal/control/cron"
	"github.com/cloudless/cloudless/internal/control/gossipkey"
	"github.com/cloudless/cloudless/internal/control/images"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/control/retention"
	"github.com/cloudless/cloudless/internal/control/secrets"
	"github.com/cloudless/cloudless/internal/control/servers"
	"github.com/cloudless/cloudless/internal/control/services"
	"github.com/cloudless/cloudless/internal/control/workloadkeys"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/maintenance"
	"github.com/cloudless/cloudless/internal/spec"
)

// This file shows everything that runs: the roles of the command line, and what runs in the process of each.

// Roles are what the command line can start. The first four run until they are stopped; the others return.
func Roles() local.Roles {
	return local.Roles{
		Up: up, Server: runServer, Agent: runAgent, Join: join,
		Down: maintenance.Down, Recover: maintenance.Recover, Install: maintenance.Install, Uninstall: maintenance.Uninstall, Doctor: checkup.Examine,
	}
}

// part runs until its context ends. If it fails, all parts beside it end.
type part func(context.Context) error

// parts run in a process with a server: up, server, and join --role server.
func (s *service) parts() []part {
	if s.node == nil {
		return []part{s.runPlane, s.reportServer, s.keepContext}
	}
	return []part{s.runPlane, s.runNode, s.reportNoLeader, s.keepContext}
}

// parts run in every server.
func (p *controlPlane) parts() []part {
	return []part{
		p.peers.Run,         // finds the other servers by gossip
		p.server.Run,        // serves the API, agents, images and the other servers
		p.announceOnNetwork, // lets machines of this network find the server
		func(ctx context.Context) error { return p.consensus.Lead(ctx, p.lead) },
		p.runNames,      // replicates the names of objects
		p.collector.Run, // paces Go's garbage collector
		gcpacer.Rest,    // returns memory after work
		func(ctx context.Context) error { return watch(ctx, p.consensus) },
		func(ctx context.Context) error { return watch(ctx, p.names) },
	}
}

// leaderParts run in the server that leads.
func (p *controlPlane) leaderParts() []part {
	replicaLoop := replicas.Loop{
		Store: p.store, Proposer: p.consensus, Metrics: p.metrics, Tracing: p.tracing, Decisions: p.decisions, Pause: p.collector.Pause,
		Leases: p.server.Sessions().Leases(), Traffic: p.traffic,
	}
	cronLoop := cron.Loop{Store: p.store, Proposer: p.consensus}
	secretLoop := secrets.Loop{Store: p.store, Proposer: p.consensus}
	serviceLoop := services.Loop{Store: p.store, Proposer: p.consensus}
	serverLoop := servers.Loop{
		Store: p.store, Proposer: p.consensus, Self: p.peers.Self, Term: p.consensus.Stats().Term, Seen: p.peers.Seen, Wake: p.peers.Changed(),
	}
	certificateLoop := certificates.New(certificates.Options{
		Store: p.store, Proposer: p.server, CA: p.ca, Sealer: p.sealer, Metrics: p.metrics, Logger: p.logger,
	})
	workloadKeyLoop := workloadkeys.Loop{Proposer: p.server, Cluster: p.ca.Trust().Cluster(), Sealer: p.sealer}
	authorityLoop := authority.Loop{
		Keys: p.server.Membership().Keys(), Store: p.store, Proposer: p.server, Logger: p.logger, Self: p.folder.ServerUID,
		Reports: p.server.KeyReports, Changed: p.server.Sessions().TrustChanged(),
	}
	keyLoop := gossipkey.Loop{Proposer: p.server, Cluster: p.ca.Trust().Cluster(), Sealer: p.sealer}
	imageLoop := images.Loop{Store: p.store, Consensus: p.consensus, Images: p.server.Images(), Logger: p.logger}
	pilot := consensus.PilotOptions{
		Voters:  func() int { return spec.VotersOf(p.store.Snapshot().Cluster().GetSpec()) },
		Members: p.peers.Members, Progress: p.server.Membership().Progress,
	}
	return []part{
		p.nodes.Run,         // decides which nodes are online
		replicaLoop.Run,     // creates, places and stops replicas
		cronLoop.Run,        // starts the jobs of crons
		secretLoop.Run,      // rolls out and removes versions of secrets
		p.autoscale.Run,     // decides how many replicas autoscaled services have
		serviceLoop.Run,     // gives workloads with ports a service
		p.traffic.Run,       // forgets the traffic of routes that are gone
		certificateLoop.Run, // makes, renews and removes the certificates of routes
		serverLoop.Run,      // records the servers
		func(ctx context.Context) error { return p.consensus.Pilot(ctx, pilot) }, // decides which servers vote
		p.foundNames,        // lets a server found the group that keeps the names of objects
		authorityLoop.Run,   // replaces the certificate authority and the key-encryption key
		keyLoop.Run,         // gives the gossip a key
		workloadKeyLoop.Run, // makes and rotates the keys of workloads' tokens
		imageLoop.Run,       // copies images to every server
		func(ctx context.Context) error { return retention.Run(ctx, p.store, p.consensus) }, // deletes what is old
	}
}

// parts run in every node. ready is called once it has its first assignments.
func (m *member) parts(ready func()) []part {
	return []part{
		m.agent.Run,   // runs replicas
		m.rotator.Run, // renews the node's certificate
		m.chunks.Run,  // stores chunks of objects for the servers
		m.origin.Run,  // leads routes for buckets to the servers
		func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-m.agent.Ready():
				ready()
			}
			return nil
		},
	}
}

// parts run in a process with a node alone: agent, and join --role node.
func (n *nodeProcess) parts() []part {
	all := []part{
		func(ctx context.Context) error {
			return serveAgentMetrics(ctx, n.folder.RunDir(), n.instruments, n.member.agent)
		},
		gcpacer.Rest,
		func(ctx context.Context) error {
			return endedByContext(together(ctx, n.member.parts(func() { n.Ready(fmt.Sprintf("node %s is ready", n.member.name)) })...))
		},
	}
	if n.Attended {
		all = append(all, n.reportNoServer)
	}
	return all
}

// together runs parts until one of them fails or ctx ends, and waits for all of them.
func together(ctx context.Context, parts ...part) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range parts {
		g.Go(func() error { return run(ctx) })
	}
	return g.Wait()
}
