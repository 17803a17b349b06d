package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/autoscale"
	"github.com/cloudless/cloudless/internal/control/nodes"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/control/servers"
	"github.com/cloudless/cloudless/internal/control/traffic"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/discover"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/peering"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// controlPlane is a server's parts, opened and ready to run.
type controlPlane struct {
	store     *state.Store
	consensus *consensus.Consensus
	names     *names.Group
	registry  *registry.Registry
	nodes     *nodes.Loop
	decisions *placement.Decisions
	autoscale *autoscale.Loop
	traffic   *traffic.Book
	server    *server.Server
	ca        *identity.CA
	sealer    *identity.Sealer
	peers     *peering.Peers
	logger    *slog.Logger
	metrics   *telemetry.Server
	tracing   *telemetry.Tracing
	collector *gcpacer.Collector
	folder    *datadir.Folder
	// announcement is the answer to machines that look for servers.
	announcement *discover.AnnounceOptions
}

// openControlPlane opens the replicated state first, because everything else needs it, and the port last, when calls can
// be answered.
func openControlPlane(ctx context.Context, f *datadir.Folder, o planeOptions, i *instruments, logger *slog.Logger, u *undo) (*controlPlane, error) {
	gcpacer.Allow()
	p := &controlPlane{folder: f, store: state.New(), logger: logger, metrics: telemetry.NewServer(i.registry), tracing: i.tracing}
	p.collector = gcpacer.New(gcpacer.Options{Patience: p.patience, Pressed: func() bool { return p.server.Pressed() }})
	if err := os.MkdirAll(f.Path("server"), 0o700); err != nil {
		return nil, err
	}
	if err := p.openAgreement(ctx, f, o, u); err != nil {
		return nil, err
	}
	if err := p.openNames(ctx, f, o, i, u); err != nil {
		return nil, err
	}
	var err error
	p.registry, err = registry.Open(ctx, registry.Options{
		Dir: f.Path("server", "registry"), Logger: logger,
		KeepDeleted: func() time.Duration { return spec.RetentionOf(p.store.Snapshot().Cluster().GetSpec()).Images },
	})
	if err != nil {
		return nil, err
	}
	u.add(func() { logError(logger, "close registry", p.registry.Close()) })
	p.nodes, p.decisions = nodes.New(p.store, p.consensus, nil), &placement.Decisions{}
	p.nodes.Deaf = p.collector.Holds
	p.traffic = traffic.New(p.store)
	u.add(i.registry.CollectRoutes(p.traffic.Figures))
	p.autoscale = autoscale.New(autoscale.Options{Store: p.store, Proposer: p.consensus, Reports: p.nodes, Traffic: p.traffic, Metrics: p.metrics})
	p.server, err = server.New(ctx, server.Options{
		UID: f.ServerUID, Version: o.version, Address: o.address, Advertise: o.advertise, Hosts: hosts(o.address, o.advertise),
		Store: p.store, Consensus: p.consensus, Names: p.names, CA: p.ca, Sealer: p.sealer, KeepAuthority: keeper(f), Addresses: p.peers.AddressOf, Registry: p.registry,
		Nodes: p.nodes, Placement: replicas.Placement{Queries: placement.Queries{Decisions: p.decisions}}, Logger: logger, Clock: o.clock, CertificateTTL: o.certificateTTL,
		Scrape: i.registry, Metrics: p.metrics, Tracing: i.tracing, Collector: p.collector, Scaling: p.autoscale,
		Traffic: p.traffic, TrafficReports: p.traffic, Wake: p.autoscale.Wake,
	})
	if err != nil {
		return nil, err
	}
	u.add(func() { logError(logger, "close port", p.server.Close()) })
	p.nodes.CutOff = p.server.Sessions().CutOff
	if err := p.removeLost(ctx, f); err != nil {
		return nil, err
	}
	err = p.peers.Open(ctx, peering.Options{
		Self: servers.Self{
			Seen: servers.Seen{UID: f.ServerUID, Address: p.server.Membership().Advertised(), Zone: o.zone, Version: o.version},
			Name: enroll.Name(o.name),
		},
		Server: p.server.Membership(), Consensus: p.consensus, Joined: f.Joined, Peer: o.peer,
	})
	if err != nil {
		return nil, wayOut(f, err)
	}
	u.add(func() { logError(logger, "close gossip", p.peers.Close()) })
	p.prepareAnnouncement(f, o)
	return p, f.UpdateHolder(func(h *datadir.Holder) { h.Address = p.server.Address() })
}

// patience is how long heartbeats may be delayed. The leader counts no node as silent meanwhile, and so detects silent
// nodes that much later. It does not know about delays of heartbeats that another server forwards, so enough time must
// remain for a lost one.
func (p *controlPlane) patience() time.Duration {
	silence := spec.ShortestSilence(p.store.Snapshot().Cluster().GetSpec())
	if p.consensus.IsLeader() {
		return silence / 2
	}
	return silence / 4
}

// Run serves, and leads while this server is the leader, until ctx ends. Then it hands over leadership and stops.
func (p *controlPlane) Run(asked context.Context) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(asked))
	defer stop()
	handOver := func(ctx context.Context) error {
		select {
		case <-asked.Done():
			p.leave()
			stop()
		case <-ctx.Done():
		}
		return nil
	}
	return endedByContext(wayOut(p.folder, together(ctx, append(p.parts(), handOver)...)))
}

// group is a group of servers that this one has a part in.
type group interface {
	Done() <-chan struct{}
	Err() error
}

// watch stops the server when its part in a group has stopped by itself.
func watch(ctx context.Context, g group) error {
	select {
	case <-ctx.Done():
		return nil
	case <-g.Done():
		return g.Err()
	}
}

// loopPause is the pause before a failed loop restarts, for example on a full disk.
const loopPause = time.Second

// lead runs what only the leader runs, until another server leads. A loop that fails restarts from the state: that takes
// a moment, while ending the process would interrupt the API.
func (p *controlPlane) lead(ctx context.Context) error {
	for {
		err := together(ctx, p.leaderParts()...)
		if ctx.Err() != nil {
			return nil
		}
		p.logger.Error("control loops begin again", "error", err)
		if pause(ctx, loopPause) != nil {
			return nil
		}
	}
}

// asBefore fills in missing settings with those of the last start.
func asBefore(f *datadir.Folder, o planeOptions, zone *string) planeOptions {
	o.zone = zoneOf(f, zone)
	o.election = cmp.Or(o.election, f.ElectionTimeout)
	return o
}

// startedAs stores the settings of the folder's server.
func startedAs(f *datadir.Folder, o planeOptions) error {
	_, port, err := net.SplitHostPort(o.address)
	if err != nil {
		return err
	}
	return f.Update(func(id *datadir.Record) {
		id.Zone, id.ElectionTimeout = o.zone, o.election
		if port != "0" { // 0 is a random port
			id.Listen, id.Advertise = o.address, o.advertise
		}
	})
}

// adminTTL is the lifetime of the admin token in the client configuration, which its user and this process renew. Older
// releases made tokens that lasted for longestAdmin.
const (
	adminTTL     = "24h"
	longestAdmin = 8760 * time.Hour
)

// writeContext writes a context with admin credentials to the client configuration, unless it has a valid one for this
// cluster, and returns a message about it. It keeps the current context, if there is one. Only the server that founded
// the cluster does so: a server that has joined may not appoint admins.
func (s *service) writeContext(ctx context.Context) (said string, err error) {
	if s.ConfigPath == "" || !s.folder.Founds() {
		return "", nil
	}
	p, preferred := s.plane, cmp.Or(s.Context, "cloudless")
	trust := p.ca.Trust()
	err = client.UpdateConfig(s.ConfigPath, func(config *client.Config) error {
		made := p.adminContext(config, preferred)
		made.Cluster, made.CA, made.Addresses = trust.Cluster(), string(trust.PEM()), p.contextAddresses()
		var outlived string
		if made.Token == "" || made.Due(time.Now()) || p.isLasting(made.Token) {
			token, err := p.createToken(ctx, &v1.CreateTokenRequest{Role: "admin", Ttl: adminTTL, Renewable: true, Purpose: "context " + made.Name + " of cloudless up"})
			if err != nil {
				return fmt.Errorf("create admin token: %w", err)
			}
			if old := p.server.TokenOf(made.Token); old != nil && old.GetSpec().GetRenew() == nil {
				outlived = old.GetMetadata().GetName()
			}
			made.TakeToken(token, time.Now())
			made.From = client.FromUp
		}
		config.Set(made)
		s.context.Store(&made.Name)
		said = fmt.Sprintf("context %s is in %s", made.Name, s.ConfigPath)
		if outlived != "" {
			said += fmt.Sprintf("; its token %s, which lasted a year, was replaced by one that renews itself: revoke it, unless you use it elsewhere, with: cloudless token rm %s", outlived, outlived)
		}
		if config.Current != made.Name {
			said += fmt.Sprintf("; the current context is still %s: change that with: cloudless context use %s", config.Current, made.Name)
		}
		return nil
	})
	if errors.Is(err, consensus.ErrNotLeader) {
		return "no context was written, because another server leads: use that of another machine", nil
	}
	return said, err
}

// A server that has just started may have to win an election first.
const (
	leadPatience = 30 * time.Second
	leadPause    = 100 * time.Millisecond
)

// createToken creates a token as soon as this server leads.
func (p *controlPlane) createToken(ctx context.Context, request *v1.CreateTokenRequest) (*v1.CreateTokenResponse, error) {
	for end := time.Now().Add(leadPatience); ; {
		made, err := p.server.CreateToken(ctx, request)
		if !errors.Is(err, consensus.ErrNotLeader) || time.Now().After(end) || pause(ctx, leadPause) != nil {
			return made, err
		}
	}
}

// adminContext is the configuration's admin context for this cluster. If there is none, it returns a free name and no token.
// It ignores contexts with tokens of other roles.
func (p *controlPlane) adminContext(config *client.Config, preferred string) client.Context {
	cluster := p.ca.Trust().Cluster()
	for _, context := range config.Contexts {
		if context.Cluster != cluster || context.Token == "" {
			continue
		}
		role, known := p.server.RoleOf(context.Token)
		if role == "admin" || !known && !p.consensus.IsLeader() { // a follower may be behind
			return context
		}
	}
	for _, context := range config.Contexts {
		if context.Cluster == cluster && context.From == client.FromUp { // its token has ended
			return client.Context{Name: context.Name}
		}
	}
	return client.Context{Name: config.FreeName(cluster, preferred)}
}

// isLasting reports whether a token is that of an older release.
func (p *controlPlane) isLasting(secret string) bool {
	token := p.server.TokenOf(secret)
	life := token.GetSpec().GetExpireTime().AsTime().Sub(token.GetMetadata().GetCreateTime().AsTime())
	return token != nil && token.GetSpec().GetRenew() == nil && (life-longestAdmin).Abs() < time.Minute
}

// How long to wait between two looks at the context.
const (
	leastRest = 30 * time.Second
	mostRest  = 10 * time.Minute
)

// keepContext renews the token of the context that this process has written, until ctx ends. If the token has ended, which
// happens to a machine that was asleep for long, it gets a new one.
func (s *service) keepContext(ctx context.Context) error {
	for rest := leastRest; pause(ctx, rest) == nil; {
		rest = mostRest
		config, err := client.LoadConfig(cmp.Or(s.ConfigPath, os.DevNull))
		name := s.context.Load()
		if err != nil || name == nil {
			continue
		}
		have, err := config.Context(*name)
		if err != nil || have.From != client.FromUp || have.Cluster != s.plane.ca.Trust().Cluster() {
			continue // the user has changed it
		}
		if have.Due(time.Now()) {
			have, err = client.Renew(ctx, s.ConfigPath, *name)
			if status.Code(err) == codes.Unauthenticated {
				_, err = s.writeContext(ctx)
			}
			if err != nil {
				s.logger.DebugContext(ctx, "the token of the context is renewed later", "error", err)
				rest = leastRest
				continue
			}
		}
		rest = max(leastRest, min(mostRest, time.Until(have.RenewAt())))
	}
	return nil
}

// hosts are the names and addresses of this machine.
func hosts(addresses ...string) []string {
	var names []string
	for _, address := range addresses {
		if host, _, err := net.SplitHostPort(address); err == nil && host != "" && !net.ParseIP(host).IsUnspecified() {
			names = append(names, host)
		}
	}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	interfaces, _ := net.InterfaceAddrs()
	for _, a := range interfaces {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			names = append(names, n.IP.String())
		}
	}
	return names
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func logError(logger *slog.Logger, what string, err error) {
	if err != nil {
		logger.Error(what, "error", err)
	}
}

// endedByContext drops the error of a role that was asked to stop.
func endedByContext(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
