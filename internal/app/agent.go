package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/agent/chunks"
	workload "github.com/cloudless/cloudless/internal/agent/identity"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/agent/origin"
	"github.com/cloudless/cloudless/internal/agent/secrets"
	"github.com/cloudless/cloudless/internal/agent/storage"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/identity"
	way "github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/logind"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/peering"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// member is an agent's parts, opened and ready to run.
type member struct {
	agent   *agent.Agent
	rotator *identity.Rotator
	chunks  *chunks.Chunks
	origin  *origin.Relay
	// name and uid are those of the node.
	name, uid string
	// refusal is why the last attempt to open a session failed; nil if none has failed yet.
	refusal atomic.Pointer[string]
	// progress shows refusals until there is a session; may be nil.
	progress func(doing string)
}

// noSession notes why there is no session.
func (m *member) noSession(err error) {
	why := client.Message(err)
	m.refusal.Store(&why)
	if m.progress != nil && !m.accepted() {
		m.progress("waiting for a session with a server: " + why)
	}
}

// ending shows that the replicas of the removed node have to stop before the machine becomes a new node.
func (m *member) ending(replicas int, atMost time.Duration) {
	if m.progress != nil && !m.accepted() {
		m.progress(fmt.Sprintf("waiting for %s of removed node %s to stop (up to %s)", spec.Count(replicas, "replica"), m.name, spec.FormatDuration(atMost)))
	}
}

// accepted reports whether a server has accepted this node since the process began.
func (m *member) accepted() bool { return closed(m.agent.Ready()) }

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// clusterLink is a node's identity and server list, used for sessions and for pulling images. It may be created before
// the machine has joined, and is filled in afterwards.
type clusterLink struct {
	rotator *identity.Rotator
	trust   *identity.Trust
	servers *peering.ServerList
}

// registryClient reaches the cluster's registry at the server's address.
func (l *clusterLink) registryClient() *http.Client {
	transport := &http.Transport{
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     time.Minute,
		// Pings detect a server that hangs but keeps its connections open.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			config := identity.ClientTLS(l.trust, l.rotator.Certificate)
			config.NextProtos = []string{"h2", "http/1.1"}
			return l.servers.DialTLS(ctx, config)
		},
	}
	return &http.Client{Transport: transport}
}

// dialOrigin reaches the object store at a server that answers, for the ingress of this node.
func (l *clusterLink) dialOrigin(ctx context.Context) (net.Conn, error) {
	config := identity.ClientTLS(l.trust, l.rotator.Certificate)
	config.NextProtos = []string{way.Protocol}
	return l.servers.DialTLS(ctx, config)
}

// outputAge is how long the output of a replica is kept at most.
const outputAge = 30 * 24 * time.Hour

// openMember connects a machine that has joined.
func openMember(ctx context.Context, f *datadir.Folder, link *clusterLink, d driver.Driver, version string, i *instruments, logger *slog.Logger, u *undo) (*member, error) {
	about, err := f.ReadMembership()
	if err != nil {
		return nil, err
	}
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	if err != nil {
		return nil, err
	}
	if err := f.BindCluster(creds.Trust().Cluster()); err != nil {
		return nil, err
	}
	p := &member{name: about.Node, uid: creds.ID().Name()}
	link.servers = peering.NewServerList(about, func(servers []string) error {
		about.Servers = servers
		return f.WriteMembership(about)
	})
	conn, err := grpc.NewClient(link.servers.Target(), append(append(agent.DialOptions(), link.servers.Options()...),
		grpc.WithTransportCredentials(credentials.NewTLS(identity.Resume(identity.ClientTLS(creds.Trust(), func() (*tls.Certificate, error) {
			return p.rotator.Certificate()
		})))))...)
	if err != nil {
		return nil, err
	}
	u.add(func() { logError(logger, "close connection", conn.Close()) })
	p.rotator, err = identity.NewRotator(identity.RotatorOptions{
		Current: creds, Path: f.CredentialsPath(), Log: logger, Renew: renewer(conn),
		Renewed: func() { p.agent.ReplaceMeshKey() }, // the agent is there before the rotator runs
	})
	if err != nil {
		return nil, err
	}
	link.rotator, link.trust = p.rotator, p.rotator.Trust()
	facts, err := machine.New(machine.Options{DataDir: f.Path(), Version: version})
	if err != nil {
		return nil, err
	}
	options := enroll.NetworkOptions(f, logger)
	options.APIPort = portOf(about.Servers)
	network, err := nodenet.Open(options)
	if err != nil {
		return nil, err
	}
	u.add(network.Close)
	connected, setup, err := enroll.OpenMesh(f, string(creds.ID().Kind())+"/"+creds.ID().Name(), logger)
	if err != nil {
		return nil, err
	}
	kept, err := openSecrets(f, facts, logger)
	if err != nil {
		return nil, err
	}
	inMesh := chunks.NewAddresses()
	if p.chunks, err = openChunks(f, link, facts, inMesh, i, logger); err != nil {
		return nil, err
	}
	u.add(func() { logError(logger, "close the store of chunks", p.chunks.Close()) })
	if p.origin, err = origin.New(origin.Options{Dir: f.RunDir(), Dial: link.dialOrigin, Logger: logger}); err != nil {
		return nil, err
	}
	p.agent, err = agent.New(agent.Options{
		DataDir: f.Path(), Client: v1.NewAgentServiceClient(conn), Drivers: []driver.Driver{d}, Machine: facts, Network: network, Mesh: connected, MeshBase: setup, Ingress: enroll.OpenIngress(f, logger), Secrets: kept, Logger: logger,
		Identity: workload.New(workload.Options{
			Dir: filepath.Join(f.RunDir(), "identity"), Client: v1.NewIdentityServiceClient(conn),
			Cluster: creds.Trust().Cluster(), Authorities: creds.Trust().DERs(), Logger: logger,
		}),
		Metrics: i.agent(), Tracing: i.tracing, GoingDown: f.GoingDown, Departures: departures(logger),
		LogLimits: driver.LogLimits{MaxAge: outputAge},
		Servers: func(addresses []string) {
			logError(logger, "keep the servers' addresses", link.servers.Learn(addresses))
		},
		Trust: nodeTrust{p.rotator}, Leave: link.servers.Leave, Quiet: link.servers.Quiet,
		Moved: link.servers.Moved, InMesh: inMesh.Set,
		NoSession: p.noSession, Ending: p.ending,
	})
	if err != nil {
		return nil, err
	}
	u.add(p.agent.Observe(i.registry))
	return p, nil
}

// openChunks opens what the object store keeps on this machine's disk.
func openChunks(f *datadir.Folder, link *clusterLink, facts *machine.Machine, inMesh *chunks.Addresses, i *instruments, logger *slog.Logger) (*chunks.Chunks, error) {
	disk, err := facts.Disk()
	if err != nil {
		return nil, err
	}
	return chunks.Open(chunks.Options{
		Dir: f.Path("agent", "chunks"), Reserve: disk.Reserve(storage.DefaultHighPercent), Logger: logger, Metrics: i.agent(),
		Trust: link.trust, Certificate: link.rotator.Certificate, Servers: link.servers.Follow, Dial: link.servers.Dial,
		Mesh: inMesh, Port: nodenet.ChunkPort, Others: facts.Others(),
	})
}

// openSecrets opens the memory in which this machine keeps secrets. A machine without any still runs replicas that use none.
func openSecrets(f *datadir.Folder, facts *machine.Machine, logger *slog.Logger) (*secrets.Keeper, error) {
	memory, _, err := facts.Memory()
	if err != nil {
		return nil, err
	}
	broken := secrets.Mount(f.SecretsDir(), secrets.Size(memory.Total))
	logError(logger, "keep secrets in memory", broken)
	return secrets.Open(secrets.Options{Dir: f.SecretsDir(), Broken: broken, Log: logger})
}

// nodeTrust lets the agent follow a rotation of the cluster's authority.
type nodeTrust struct{ *identity.Rotator }

// Set implements agent.Trust.
func (t nodeTrust) Set(authorities [][]byte, renew bool) error {
	if err := t.SetTrust(authorities...); err != nil {
		return err
	}
	if renew {
		t.WantIssuer(t.Trust().Fingerprint())
	}
	return nil
}

// Report implements agent.Trust.
func (t nodeTrust) Report() *v1.TrustUp {
	up := &v1.TrustUp{Issuer: t.Issuer().String()}
	for _, one := range t.Trust().Fingerprints() {
		up.Trusted = append(up.Trusted, one.String())
	}
	return up
}

// busPause is how long to wait before trying again to reach the system bus.
const busPause = time.Minute

// departures hears from logind when the machine is about to shut down or to sleep. Without logind, nothing is announced.
func departures(logger *slog.Logger) func(ctx context.Context, leave func(context.Context, string), stay func()) {
	return func(ctx context.Context, leave func(context.Context, string), stay func()) {
		for ctx.Err() == nil {
			err := logind.Watch(ctx, "", logind.Handler{Leave: leave, Stay: stay})
			if err != nil {
				logger.Debug("the machine cannot announce that it shuts down or sleeps", "error", err)
			}
			_ = sleep.For(ctx, busPause)
		}
	}
}

// portOf is the port of the first server with one, 0 if there is none.
func portOf(servers []string) uint16 {
	for _, s := range servers {
		if _, text, err := net.SplitHostPort(s); err == nil {
			if port, err := strconv.ParseUint(text, 10, 16); err == nil {
				return uint16(port)
			}
		}
	}
	return 0
}

func renewer(conn *grpc.ClientConn) func(context.Context, []byte) ([][]byte, error) {
	client := v1.NewEnrollmentServiceClient(conn)
	return func(ctx context.Context, csr []byte) ([][]byte, error) {
		answer, err := client.Renew(ctx, &v1.RenewRequest{Csr: csr})
		return answer.GetCertificates(), err
	}
}

// checkServers refuses to start if servers of another cluster answer at the node's addresses and a user waits until the
// node is ready. Otherwise the node retries, because replicas need no server.
func checkServers(ctx context.Context, f *datadir.Folder, process local.Process) error {
	if !process.Attended {
		return nil
	}
	return peering.CheckServers(ctx, f)
}

// nodeProcess is a process with a node and no server, ready to run.
type nodeProcess struct {
	local.Process
	folder      *datadir.Folder
	instruments *instruments
	link        *clusterLink
	member      *member
}

// reportNoServer says that the node runs without a server, if none accepts it for long.
func (n *nodeProcess) reportNoServer(ctx context.Context) error {
	sayAlone(ctx, n.member.agent.Ready(), n.member.agent.Removed(), func() {
		n.Ready(withoutServer(n.member, n.folder.Path(), n.link.servers.Addresses()))
	})
	return nil
}

// serveNode runs an agent in a process of its own.
func serveNode(ctx context.Context, process local.Process, m local.Machine, admit func(*datadir.Folder, *slog.Logger) (func() error, error)) error {
	if err := mayRunContainers(); err != nil {
		return err
	}
	logger := telemetry.NewLogger(process.Log, process.LogLevel, process.LogFormat)
	protect(logger)
	var u undo
	defer u.run()
	i, err := openInstruments(ctx, process, "cloudless-agent", logger, &u)
	if err != nil {
		return err
	}
	f, err := openFolder(ctx, process)
	if err != nil {
		return err
	}
	u.add(f.Release)
	if err := f.UpdateHolder(func(h *datadir.Holder) { h.Node = true }); err != nil {
		return err
	}
	if err := f.NoticeMove(datadir.MachineMark("/"), process.Progress, logger); err != nil {
		return err
	}
	enrolls, err := admit(f, logger)
	if err != nil {
		f.RemoveIfNew()
		return err
	}
	process.Progress("starting the container runtime")
	link := &clusterLink{}
	d, err := openNodeDriver(ctx, f, m, link, enrolls, logger, &u)
	if err != nil {
		return err
	}
	leaves := clearNetworkIfRemoved(ctx, f, logger, &u)
	p, err := openMember(ctx, f, link, d, process.Version, i, logger, &u)
	if err != nil {
		return err
	}
	// Before the node is ready, because its cluster may be unreachable for long.
	if err := f.MarkStarted(ctx); err != nil {
		return err
	}
	process.Progress("waiting for the cluster")
	p.progress = process.Progress
	n := &nodeProcess{Process: process, folder: f, instruments: i, link: link, member: p}
	err = together(ctx, n.parts()...)
	if errors.Is(err, agent.ErrCopy) {
		// The containers that this process has adopted belong to the original node.
		return errors.Join(err, restCopy(context.WithoutCancel(ctx), f, d, logger))
	}
	if errors.Is(err, agent.ErrRemoved) {
		leaves()
		return command.ForGood(wasRemoved(f, p))
	}
	return endedByContext(err)
}

// serverHope is how long a user waits before reportNoServer says that the node runs without a server.
const serverHope = 15 * time.Second

// sayAlone calls say if no server accepts the node in time. Replicas need no server, and the next process that the user
// starts may be one.
func sayAlone(ctx context.Context, ready, removed <-chan struct{}, say func()) {
	select {
	case <-ready:
	case <-removed: // the process ends and says so itself
	case <-ctx.Done():
	case <-time.After(serverHope):
		say()
	}
}

func withoutServer(m *member, dataDir string, servers []string) string {
	why := ""
	if refusal := m.refusal.Load(); refusal != nil {
		why = " (" + *refusal + ")"
	}
	return fmt.Sprintf("node %s keeps its replicas running and retries the servers at %s%s: start them; "+
		"if all servers have moved, stop the agent and join again through one of them: cloudless join ADDRESS --token-file FILE --data-dir %s",
		m.name, strings.Join(servers, ", "), why, dataDir)
}

// restCopy stops what a copy of a node has begun to run.
func restCopy(ctx context.Context, f *datadir.Folder, d driver.Driver, logger *slog.Logger) error {
	facts, err := machine.New(machine.Options{DataDir: f.Path()})
	if err != nil {
		return err
	}
	return agent.Down(ctx, agent.DownOptions{DataDir: f.Path(), Drivers: []driver.Driver{d}, BootID: facts.BootID(), Logger: logger})
}
