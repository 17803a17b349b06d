package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/cli"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/containerd"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/telemetry"
	"github.com/cloudless/cloudless/internal/wholefile"
)

// membership is what a node keeps of its cluster besides its certificate.
type membership struct {
	Servers []string `json:"servers"`
	// Via is the address by which the machine joined.
	Via  string `json:"via,omitempty"`
	Node string `json:"node"`
	// Wished is what was said of the node when it joined; nil if that is not known.
	Wished *wishes `json:"wished,omitempty"`
}

// wishes are what a machine may say of the node that it becomes.
type wishes struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// sameNode refuses wishes for a node that there is already: what a node is called
// and which labels it has is changed in the cluster. Who repeats a command says
// nothing new.
func (f *folder) sameNode(m cli.Machine) error {
	if m.Name == "" && len(m.Labels) == 0 {
		return nil
	}
	about, err := f.readMembership()
	if err != nil || about.Wished == nil {
		return nil // there is none, or whoever needs it will say what is wrong with it
	}
	switch said := about.Wished; {
	case m.Name != "" && m.Name != about.Node && m.Name != said.Name:
		return fmt.Errorf("this machine is node %s already, which --name cannot change: leave it out", about.Node)
	case len(m.Labels) > 0 && !maps.Equal(m.Labels, said.Labels):
		return fmt.Errorf("this machine is node %s already, which --label cannot change: leave it out, and change the node with: cloudless node label %s KEY=VALUE", about.Node, about.Node)
	}
	return nil
}

func (f *folder) credentialsPath() string { return f.sub("agent", "identity.pem") }
func (f *folder) joiningKeyPath() string  { return f.sub("agent", "joining.pem") }
func (f *folder) membershipPath() string  { return f.sub("agent", "membership.json") }

func (f *folder) readMembership() (membership, error) {
	var m membership
	data, err := os.ReadFile(f.membershipPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, fmt.Errorf("%s is missing: restore it, or delete %s to make this machine another node: %w",
			f.membershipPath(), f.credentialsPath(), fs.ErrNotExist)
	case err != nil:
		return m, fmt.Errorf("read membership: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil || len(m.Servers) == 0 {
		return m, fmt.Errorf("%s is damaged: restore it, or delete %s to make this machine another node", f.membershipPath(), f.credentialsPath())
	}
	return m, nil
}

func (f *folder) writeMembership(m membership) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Replace(f.membershipPath(), data)
}

// reach tries the address, because gRPC tells what is wrong with it only in
// words of its own.
func reach(ctx context.Context, address string, config *tls.Config) error {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("nothing listens there: check the address, and that the server runs")
	case err != nil:
		return err
	}
	return conn.Close()
}

// nodeName is the wished name, or the host's brought into the form of a name.
func nodeName(m cli.Machine) string {
	name := m.Name
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

// member is an agent's parts, opened and ready to run.
type member struct {
	agent   *agent.Agent
	rotator *identity.Rotator
	name    string
}

// openDriver starts the container runtime. It needs nothing from the cluster,
// so it may start before the machine has joined.
func openDriver(ctx context.Context, f *folder, m cli.Machine, registry *http.Client, logger *slog.Logger) (*containerd.Driver, error) {
	if err := f.holdMachine(); err != nil {
		return nil, err
	}
	address, err := f.containerd(ctx, m.ContainerdAddress)
	if err != nil {
		return nil, err
	}
	d, err := containerd.Open(ctx, driverOptions(f, address, registry, logger))
	if err != nil || address == f.ContainerdAddress {
		return d, err
	}
	if err := f.remember(func(id *folderID) { id.ContainerdAddress = address }); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// containerd is the address of the one that is wished, or else of the one that was
// used before. It cannot be another than that: what runs, and all images, would be
// left behind in the old one.
func (f *folder) containerd(ctx context.Context, wished string) (string, error) {
	_, err := os.Stat(f.sub("agent"))
	used := err == nil
	if !used && wished != "" { // later it may come after us when the machine starts
		if err := answers(ctx, wished); err != nil {
			return "", fmt.Errorf("no containerd answers at %s (%w): start it, or leave --containerd-address out for the built-in one", wished, err)
		}
	}
	if !used || wished == "" || wished == f.ContainerdAddress {
		return cmp.Or(wished, f.ContainerdAddress), nil
	}
	have := "the built-in containerd"
	if f.ContainerdAddress != "" {
		have = "the containerd at " + f.ContainerdAddress
	}
	return "", fmt.Errorf("what runs on data folder %s is in %s, which --containerd-address cannot change: leave it out, or begin anew after: cloudless down --purge --data-dir %s",
		f.path, have, f.path)
}

// answers dials a socket.
func answers(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		if cause := errors.Unwrap(errors.Unwrap(err)); cause != nil {
			return cause // the address was named
		}
		return err
	}
	return conn.Close()
}

// mayRunContainers refuses what would fail somewhere in the middle.
func mayRunContainers() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can run containers: use sudo; a server alone, cloudless server, runs as any user")
	}
	return nil
}

func driverOptions(f *folder, address string, registry *http.Client, logger *slog.Logger) containerd.Options {
	return containerd.Options{
		ID: f.ID, DataDir: f.path, RunDir: f.runDir(), Address: address, Log: logger,
		Registries: map[string]*http.Client{image.ClusterRegistry: registry},
	}
}

// clusterLink is a node's way to its cluster: one identity, one address, used
// for sessions and for pulling images. It can be made before the machine has
// joined and is filled in afterwards.
type clusterLink struct {
	rotator *identity.Rotator
	trust   *identity.Trust
	servers *serverList
}

// registryClient reaches the cluster's registry at the server's address.
func (l *clusterLink) registryClient() *http.Client {
	transport := &http.Transport{
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     time.Minute,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			config := identity.ClientTLS(l.trust, l.rotator.Certificate)
			config.NextProtos = []string{"h2", "http/1.1"}
			return l.servers.dialTLS(ctx, config)
		},
	}
	return &http.Client{Transport: transport}
}

// outputAge is when the output of a replica is removed at the latest.
const outputAge = 30 * 24 * time.Hour

// openMember connects a machine that has joined.
func openMember(ctx context.Context, f *folder, link *clusterLink, d driver.Driver, version string, i *instruments, logger *slog.Logger, u *undo) (*member, error) {
	about, err := f.readMembership()
	if err != nil {
		return nil, err
	}
	creds, err := identity.LoadCredentials(f.credentialsPath())
	if err != nil {
		return nil, err
	}
	if err := f.belongTo(creds.Trust().Cluster()); err != nil {
		return nil, err
	}
	p := &member{name: about.Node}
	link.servers = newServerList(about, func(servers []string) error {
		about.Servers = servers
		return f.writeMembership(about)
	})
	conn, err := grpc.NewClient(link.servers.target(), append(append(agent.DialOptions(), link.servers.options()...),
		grpc.WithTransportCredentials(credentials.NewTLS(identity.Resume(identity.ClientTLS(creds.Trust(), func() (*tls.Certificate, error) {
			return p.rotator.Certificate()
		})))))...)
	if err != nil {
		return nil, err
	}
	u.add(func() { logError(logger, "close connection", conn.Close()) })
	p.rotator, err = identity.NewRotator(identity.RotatorOptions{
		Current: creds, Path: f.credentialsPath(), Log: logger, Renew: renewer(conn),
	})
	if err != nil {
		return nil, err
	}
	link.rotator, link.trust = p.rotator, creds.Trust()
	facts, err := machine.New(machine.Options{DataDir: f.path, Version: version})
	if err != nil {
		return nil, err
	}
	network, err := nodenet.Open(networkOptions(f, logger))
	if err != nil {
		return nil, err
	}
	u.add(network.Close)
	p.agent, err = agent.New(agent.Options{
		DataDir: f.path, Client: v1.NewAgentServiceClient(conn), Drivers: []driver.Driver{d}, Machine: facts, Network: network, Logger: logger,
		Metrics: telemetry.NewAgent(i.registry), Tracing: i.tracing, Resting: func() bool { return rests(f.path) },
		LogLimits: driver.LogLimits{MaxAge: outputAge},
		Servers: func(addresses []string) {
			logError(logger, "keep the servers' addresses", link.servers.learn(addresses))
		},
		Leave: link.servers.moveOn, Quiet: link.servers.quiet,
	})
	if err != nil {
		return nil, err
	}
	p.agent.Observe(i.registry)
	return p, nil
}

func renewer(conn *grpc.ClientConn) func(context.Context, []byte) ([][]byte, error) {
	client := v1.NewEnrollmentServiceClient(conn)
	return func(ctx context.Context, csr []byte) ([][]byte, error) {
		answer, err := client.Renew(ctx, &v1.RenewRequest{Csr: csr})
		return answer.GetCertificates(), err
	}
}

// Run runs the agent until ctx ends, and calls ready once it has its first
// assignments.
func (m *member) Run(ctx context.Context, ready func()) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.agent.Run(ctx) })
	g.Go(func() error { return m.rotator.Run(ctx) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-m.agent.Ready():
			ready()
		}
		return nil
	})
	return endedByContext(g.Wait())
}

// runAgent is the role of a machine that has joined before.
func runAgent(ctx context.Context, o cli.AgentOptions) error {
	return serveNode(ctx, o.Process, o.Machine, func(f *folder, logger *slog.Logger) (enrollment, error) {
		if _, err := os.Stat(f.credentialsPath()); errors.Is(err, fs.ErrNotExist) {
			return nil, notJoined(f.path)
		}
		if err := f.notAmongStrangers(ctx, o.Process); err != nil {
			return nil, err
		}
		if err := f.stillMember(ctx, o.Process); err != nil {
			return nil, err
		}
		return nil, f.sayExpired(logger)
	})
}

func notJoined(dataDir string) error {
	return fmt.Errorf("this machine has not joined a cluster with data folder %s: run cloudless join ADDRESS --token TOKEN", dataDir)
}

// join is the role of a machine that becomes a node now. On a machine that has
// joined already it goes on as that node and leaves the token unused, unless
// it was removed or its certificate has expired: then it becomes a new node.
func join(ctx context.Context, o cli.JoinOptions) error {
	if o.Role == "server" {
		return joinServer(ctx, o)
	}
	err := serveNode(ctx, o.Process, o.Machine, func(f *folder, logger *slog.Logger) (enrollment, error) {
		return becomeNode(ctx, f, o, logger)
	})
	if held, ok := errors.AsType[*cli.AlreadyRunningError](err); ok {
		return joinedAs(ctx, held, o)
	}
	return err
}

// enrollment makes this machine a node, which spends a use of its token. It is
// nil on one that is a node already.
type enrollment func() error

// becomeNode is how this folder's node is enrolled, unless it is one of that
// cluster.
func becomeNode(ctx context.Context, f *folder, o cli.JoinOptions, logger *slog.Logger) (enrollment, error) {
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

// stillMember refuses to begin as a node that was removed, if a person waits for
// it: nothing would ever get ready. Whom nobody waits for goes on with what runs
// here, and says why it has no session.
func (f *folder) stillMember(ctx context.Context, process cli.Process) error {
	if !process.Attended {
		return nil
	}
	about, err := f.readMembership()
	if err != nil {
		return err
	}
	creds, err := identity.LoadCredentials(f.credentialsPath())
	if err != nil || !expelled(ctx, f.serversToAsk(""), creds) {
		return err
	}
	return fmt.Errorf("this machine was node %s of cluster %s and has been removed from it: make it a new one with a new token and: cloudless join ADDRESS --data-dir %s; or clear it with: cloudless down --purge --data-dir %s",
		about.Node, creds.Trust().Cluster(), f.path, f.path)
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
func joinedAs(ctx context.Context, held *cli.AlreadyRunningError, o cli.JoinOptions) error {
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
func nodeNoMore(held *cli.AlreadyRunningError, why string) error {
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

// serveNode runs an agent in a process of its own.
func serveNode(ctx context.Context, process cli.Process, m cli.Machine, admit func(*folder, *slog.Logger) (enrollment, error)) error {
	if err := mayRunContainers(); err != nil {
		return err
	}
	logger := telemetry.NewLogger(process.Log, process.LogLevel, process.LogFormat)
	var u undo
	defer u.run()
	i, err := openInstruments(ctx, process, "cloudless-agent", logger, &u)
	if err != nil {
		return err
	}
	f, err := openFolderFor(ctx, process)
	if err != nil {
		return err
	}
	u.add(f.release)
	if err := f.noticeMove(machineMark("/"), process.Progress, logger); err != nil {
		return err
	}
	enrolls, err := admit(f, logger)
	if err != nil {
		f.forsake()
		return err
	}
	process.Progress("starting the container runtime")
	link := &clusterLink{}
	d, err := openNodeDriver(ctx, f, m, link, enrolls, logger, &u)
	if err != nil {
		return err
	}
	p, err := openMember(ctx, f, link, d, process.Version, i, logger, &u)
	if err != nil {
		return err
	}
	// Not when it is ready: its cluster may be away for long.
	if err := f.settle(ctx); err != nil {
		return err
	}
	process.Progress("waiting for the cluster")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveAgentMetrics(ctx, f.runDir(), i, p.agent) })
	g.Go(func() error {
		return p.Run(ctx, func() { process.Ready(fmt.Sprintf("node %s is ready", p.name)) })
	})
	err = g.Wait()
	if errors.Is(err, agent.ErrCopy) {
		// What was taken up from the folder runs on the node itself.
		return errors.Join(err, restCopy(context.WithoutCancel(ctx), f, d, logger))
	}
	return endedByContext(err)
}

// openNodeDriver starts the container runtime and then enrolls the machine if it
// is not a node yet: one that cannot run anything spends no token. A folder that
// was made for nothing is left as it was found.
func openNodeDriver(ctx context.Context, f *folder, m cli.Machine, link *clusterLink, enrolls enrollment, logger *slog.Logger, u *undo) (*containerd.Driver, error) {
	undone := f.forsakeDriver(logger)
	d, err := openDriver(ctx, f, m, link.registryClient(), logger)
	if err != nil {
		undone()
		return nil, err
	}
	if enrolls != nil {
		if err := enrolls(); err != nil {
			logError(logger, "close driver", d.Close())
			undone()
			return nil, err
		}
		f.keep()
	}
	u.add(func() { logError(logger, "close driver", d.Close()) })
	return d, nil
}

// forsakeDriver returns what forsakes a folder in which a container runtime has
// been started, unless something of that name was there before.
func (f *folder) forsakeDriver(logger *slog.Logger) func() {
	there := false
	for _, name := range []string{"containerd", "shim"} {
		_, err := os.Lstat(f.sub(name))
		there = there || err == nil
	}
	return func() {
		if !f.fresh {
			return
		}
		if !there {
			logError(logger, "remove what the container runtime has left", containerd.Purge(context.Background(), driverOptions(f, "", nil, logger)))
			logError(logger, "remove what the container runtime has left", os.RemoveAll(f.runDir()))
			_ = os.Remove(filepath.Dir(f.runDir())) // succeeds when this was the last cloud
		}
		f.forsake()
	}
}

// restCopy stops what a copy of a node has begun to run.
func restCopy(ctx context.Context, f *folder, d driver.Driver, logger *slog.Logger) error {
	facts, err := machine.New(machine.Options{DataDir: f.path})
	if err != nil {
		return err
	}
	return agent.Rest(ctx, agent.RestOptions{DataDir: f.path, Drivers: []driver.Driver{d}, BootID: facts.BootID(), Logger: logger})
}
