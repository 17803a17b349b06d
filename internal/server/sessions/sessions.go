package sessions

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/control/lease"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Nodes receives what the agents' sessions report. Its methods must not block.
type Nodes interface {
	// Connected gets the address that the session came from, if it is known.
	Connected(uid string, machine netip.Addr, status *v1.NodeStatus)
	Heartbeat(uid string, beat *v1.Heartbeat)
	// Answered gets the time that an agent took to answer a ping.
	Answered(uid string, took time.Duration)
	// Goodbye gets the reason why an agent will not be back soon.
	Goodbye(uid, reason string)
	Disconnected(uid string)
	// AgentLost says that a node's agent has ended, and whether any of its replicas still runs.
	AgentLost(uid string, running bool)
}

// Sessions implements the AgentService: it holds the sessions of all agents with this server.
type Sessions struct {
	v1.UnsafeAgentServiceServer
	*core.Core
	nodes      Nodes
	collector  *gcpacer.Collector // may be nil
	login      func(*state.Snapshot, *v1.Revision) *v1.RegistryLogin
	addresses  func() []string
	duplicates *core.Duplicates

	connected   *table
	encoded     *encodedRevisions
	attachments *attachments
	reports     *reports
	progress    *progress
	network     *network
	meshKeys    *meshKeys
	leases      *lease.Table

	trustChanged chan struct{}

	ingress     *ingress
	traffic     Traffic
	wakeService func(service string)
	unseal      func(sealed []byte, use string) ([]byte, error)
	deliveries  deliveries
	metrics     *telemetry.Server
}

// Options is what Sessions are made of.
type Options struct {
	Core  *core.Core
	Nodes Nodes
	// Collector makes sessions wait during garbage collection. It may be nil.
	Collector *gcpacer.Collector
	// Login returns the login that a node needs to pull the image of a revision, or nil.
	Login func(*state.Snapshot, *v1.Revision) *v1.RegistryLogin
	// Addresses returns the addresses of all servers.
	Addresses func() []string
	// Duplicates remembers agents that were refused because they run on a copied data folder.
	Duplicates *core.Duplicates
	// Traffic receives what nodes report of routes. It may be nil.
	Traffic Traffic
	// Wake is called for a service that is scaled to zero and has requests waiting. It must not block, and may be nil.
	Wake func(service string)
	// Unseal opens the keys of certificates and of secrets, which were sealed for a use.
	Unseal func(sealed []byte, use string) ([]byte, error)
	// Metrics counts delivered secrets. It may be nil.
	Metrics *telemetry.Server
}

// New returns Sessions without any session.
func New(o Options) *Sessions {
	s := &Sessions{
		Core: o.Core, nodes: o.Nodes, collector: o.Collector, login: o.Login, addresses: o.Addresses, duplicates: o.Duplicates,
		connected: newTable(o.Collector.Pause), encoded: newEncodedRevisions(),
		attachments: &attachments{waiting: map[string]*attachment{}}, reports: newReports(), progress: newProgress(), network: newNetwork(),
		meshKeys: &meshKeys{byNode: map[string]string{}, nodes: map[string]string{}}, leases: &lease.Table{},
		trustChanged: make(chan struct{}, 1),
		ingress:      newIngress(), traffic: o.Traffic, wakeService: o.Wake, unseal: o.Unseal, metrics: o.Metrics,
	}
	if s.traffic == nil {
		s.traffic = noTraffic{}
	}
	if s.wakeService == nil {
		s.wakeService = func(string) {}
	}
	return s
}

// Leases are those that this server grants to singletons.
func (s *Sessions) Leases() *lease.Table { return s.leases }

// Run writes the agents' reports and gives sessions their turns until ctx ends.
func (s *Sessions) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.connected.turns.run(ctx) })
	g.Go(func() error { return s.writeReports(ctx) })
	g.Go(func() error { return s.spreadNetwork(ctx) })
	g.Go(func() error { return s.spreadIngress(ctx) })
	return g.Wait()
}

// Count returns the number of connected agents.
func (s *Sessions) Count() int { return s.connected.count() }

// Connected reports whether a node's agent is connected. The channel is closed when
// that may have changed.
func (s *Sessions) Connected(node string) (connected bool, changed <-chan struct{}) {
	current, changed := s.connected.look(node)
	return current != nil, changed
}

// Route marks the sessions that a change concerns, so that their agents learn of it.
func (s *Sessions) Route(c state.Change) {
	s.network.route(c)
	s.ingress.route(c)
	switch {
	case c.Kind == state.KindServer:
		s.connected.each(func(one *session) {
			one.markServers()
			one.markPace() // a lone server sends no keepalives
		})
	case c.Kind == state.KindAuthority:
		s.connected.each(func(one *session) { one.raise(&one.trustDue) })
	case c.Kind == state.KindPassword:
		s.connected.each((*session).markAll) // any node may need the new password for its pulls
	case c.Kind == state.KindCluster:
		s.connected.each((*session).markPace)
	case c.Kind == state.KindSecret:
		changed, _ := c.New.(*v1.Secret)
		if changed == nil {
			changed, _ = c.Old.(*v1.Secret)
		}
		s.routeSecret(changed)
	case c.Kind == state.KindSecretValue && c.New == nil: // it has expired
		old, _ := c.Old.(*statev1.SecretValue)
		if of := s.Store.Snapshot().Secret(old.GetSecretUid()); of != nil {
			s.routeSecret(of)
		}
	case c.Kind == state.KindNode && c.New != nil:
		s.routeNode(c)
	case c.Kind == state.KindWorkload:
		before, _ := c.Old.(*v1.Workload)
		after, _ := c.New.(*v1.Workload)
		if assignment.WorkloadChanged(before, after) {
			s.routeReplicas(after.GetMetadata().GetUid())
		}
	case c.Kind == state.KindReplica:
		before, _ := c.Old.(*v1.Replica)
		after, _ := c.New.(*v1.Replica)
		uid, nodes := assignment.Concerned(before, after)
		if after == nil {
			s.progress.forget(uid)
		}
		secrets := len(nodes) > 0 && s.mayUseSecrets(before, after)
		for _, node := range nodes {
			if current := s.connected.get(node); current != nil {
				if secrets {
					current.markSecrets()
				}
				current.mark(uid)
			}
		}
	}
}

// routeReplicas marks all replicas of a workload, so that their nodes learn what is new about it.
func (s *Sessions) routeReplicas(workloadUID string) {
	for r := range s.Store.Snapshot().ReplicasOf(workloadUID) {
		if current := s.connected.get(r.GetSpec().GetNodeUid()); current != nil {
			current.mark(r.GetMetadata().GetUid())
		}
	}
}

// CatchUp does what Route would have done for all changes that the server missed.
func (s *Sessions) CatchUp(snap *state.Snapshot) {
	s.ingress.forget()
	s.connected.each(func(one *session) {
		one.markServers()
		one.markPace()
		one.markAll()
		one.raise(&one.networkFull)
		one.markIngress()
		one.markSecrets()
		one.raise(&one.trustDue)
		if snap.Node(one.node).GetStatus().GetState() == spec.NodeOffline {
			one.cancel(errSilent)
		}
	})
	s.progress.forgetMissing(snap)
}
