package names_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	objectnames "github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/state"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		writeUntilKilled(dir)
	}
	os.Exit(m.Run())
}

// cluster is several servers in this process, with real logs and connections.
type cluster struct {
	t     *testing.T
	store *state.Store // of the control group

	mu      sync.Mutex
	index   uint64          // of the control group
	watch   func(id string) // called for each connection to a server; may be nil
	members []consensus.Member
	servers map[string]*server
}

// server is one of them.
type server struct {
	*names.Group
	id, dir  string
	network  *network
	grpc     *grpc.Server
	listener net.Listener
	stop     func()
}

// network carries the log of a server until it is cut.
type network struct {
	net.Listener
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the network is cut")

func (n *network) keep(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		_ = conn.Close()
		return nil, errCut
	}
	n.conns = append(n.conns, conn)
	return conn, nil
}

func (n *network) Accept() (net.Conn, error) {
	for {
		conn, err := n.keep(n.Listener.Accept())
		if !errors.Is(err, errCut) {
			return conn, err
		}
	}
}

func (n *network) Dial(_, address string, timeout time.Duration) (net.Conn, error) {
	return n.keep(net.DialTimeout("tcp", address, timeout))
}

func (n *network) setCut(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	n.conns = nil
}

// newCluster starts servers, the first of which founds the group, and returns when all of them vote.
func newCluster(t *testing.T, size int) *cluster {
	t.Helper()
	c := emptyCluster(t, "server-1")
	for i := range size {
		c.start(fmt.Sprintf("server-%d", i+1), filepath.Join(t.TempDir(), "names"))
	}
	c.waitVoters(size)
	return c
}

// emptyCluster has no servers yet. founder is the one that the state of the control group names.
func emptyCluster(t *testing.T, founder string) *cluster {
	t.Helper()
	c := &cluster{t: t, store: state.New(), servers: map[string]*server{}}
	c.change(func(b *state.Batch) {
		b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: "cluster", Name: "cloudless"}, Status: &v1.ClusterStatus{NamesFounder: founder}})
	})
	return c
}

// change changes the state of the control group.
func (c *cluster) change(build func(*state.Batch)) {
	c.t.Helper()
	var b state.Batch
	build(&b)
	if _, err := c.Propose(c.t.Context(), b.Transaction(time.Unix(1, 0))); err != nil {
		c.t.Fatal(err)
	}
}

// Propose implements names.Proposer.
func (c *cluster) Propose(_ context.Context, tx *statev1.Transaction) (state.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	return c.store.Apply(c.index, tx)
}

// start starts a server, which becomes a member.
func (c *cluster) start(id, dir string) *server {
	c.t.Helper()
	raft, err := net.Listen("tcp", "127.0.0.1:0")
	must(c.t, err)
	s := &server{id: id, dir: dir, network: &network{Listener: raft}, grpc: grpc.NewServer()}
	s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	must(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s.Group, err = names.Open(ctx, names.Options{
		Dir: dir, Reached: dir + ".reached", ServerID: id, Address: raft.Addr().String(), Network: s.network, Addresses: c.addressOf, Conn: c.connOf(s),
		SnapshotThreshold: 30, ElectionTimeout: 2 * consensus.MinElectionTimeout, Logger: slog.New(slog.DiscardHandler),
	})
	must(c.t, err)
	v1.RegisterNamesServiceServer(s.grpc, s.Group)
	var running sync.WaitGroup
	running.Go(func() { _ = s.grpc.Serve(s.listener) })
	running.Go(func() {
		_ = s.Run(ctx, names.Control{Store: c.store, Members: c.list, Voters: func() int { return 3 }})
	})
	s.stop = sync.OnceFunc(func() {
		cancel()
		s.grpc.Stop()
		if err := s.Close(); err != nil {
			c.t.Error(err)
		}
		running.Wait()
	})
	c.t.Cleanup(s.stop)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[id] = s
	c.members = slices.DeleteFunc(c.members, func(m consensus.Member) bool { return m.ID == id })
	c.members = append(c.members, consensus.Member{ID: id, Name: id, Address: raft.Addr().String(), Alive: true})
	return s
}

func (c *cluster) list() []consensus.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.members)
}

// leave makes a server no member any more.
func (c *cluster) leave(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = slices.DeleteFunc(c.members, func(m consensus.Member) bool { return m.ID == id })
}

func (c *cluster) addressOf(id string) string {
	for _, m := range c.list() {
		if m.ID == id {
			return m.Address
		}
	}
	return ""
}

// connOf connects to a server for each call, so that a cut is noticed at once.
func (c *cluster) connOf(from *server) func(context.Context, string) (*grpc.ClientConn, error) {
	return func(ctx context.Context, id string) (*grpc.ClientConn, error) {
		c.mu.Lock()
		to, watch := c.servers[id], c.watch
		c.mu.Unlock()
		if watch != nil {
			watch(id)
		}
		if to == nil {
			return nil, errors.New("unknown server")
		}
		conn, err := grpc.NewClient("passthrough:///"+to.listener.Addr().String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				if to.network.isCut() {
					return nil, errCut
				}
				return from.network.keep((&net.Dialer{}).DialContext(ctx, "tcp", address))
			}))
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		conn.Connect()
		for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
			if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
				return nil, errors.Join(errors.New("not connected"), conn.Close())
			}
		}
		return conn, nil
	}
}

func (n *network) isCut() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut
}

// leader is the server that leads.
func (c *cluster) leader() *server {
	c.t.Helper()
	var leader *server
	eventually(c.t, "a server leads", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.servers {
			if s.IsLeader() && !s.network.isCut() {
				leader = s
			}
		}
		return leader != nil
	})
	return leader
}

func (c *cluster) waitVoters(n int) {
	c.t.Helper()
	leader := c.leader()
	eventually(c.t, fmt.Sprintf("%d servers vote", n), func() bool {
		voters := 0
		for _, s := range leader.Servers() {
			if s.Voter {
				voters++
			}
		}
		return voters == n
	})
}

func (c *cluster) all() []*server {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*server
	for _, m := range c.members {
		all = append(all, c.servers[m.ID])
	}
	return all
}

// putOf creates an object, and is refused if there is one already: a proposal that was applied twice would be noticed.
func putOf(key string) *objectv1.Entry {
	return &objectv1.Entry{Operations: []*objectv1.Operation{{Time: 1, What: &objectv1.Operation_Put{Put: &objectv1.Put{
		Target: &objectv1.Target{Bucket: "photos", Namespace: "default", Copies: 1}, Key: key,
		Version:   &objectv1.Version{Id: fmt.Appendf(nil, "%016d", time.Now().UnixNano())[:16], Etag: key},
		Condition: &objectv1.Condition{IfNoneMatch: "*"}, Epoch: 1,
	}}}}}
}

func put(ctx context.Context, g *names.Group, key string) error {
	results, err := g.Propose(ctx, putOf(key))
	if err != nil {
		return err
	}
	if len(results.GetResults()) != 1 || results.GetIndex() == 0 {
		return fmt.Errorf("got %v", results)
	}
	if why := results.GetResults()[0].GetRefused(); why != "" {
		return fmt.Errorf("%s is refused: %s", key, why)
	}
	return nil
}

func has(t *testing.T, view *objectnames.View, key string) bool {
	t.Helper()
	version, err := view.Current("photos", key)
	if err != nil {
		t.Error(err)
	}
	return version.GetEtag() == key
}

// sees reports whether a server finds an object.
func sees(t *testing.T, g *names.Group, key string) bool {
	t.Helper()
	view, err := g.View(t.Context())
	if err != nil {
		t.Errorf("read %s: %v", key, err)
		return false
	}
	defer view.Close()
	return has(t, view, key)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !yes(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: never", what)
		}
	}
}
