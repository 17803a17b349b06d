package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/membership"
)

// freeAddress returns an address that nothing listens on now, for a server that must know its address before it joins.
// It is outside the range that the kernel uses for outgoing connections: one of them could take it first.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		if l, err := net.Listen("tcp", address); err == nil {
			must.Succeed(t, l.Close())
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

// testCluster runs the servers of one cluster in this process: separate folders, real TLS, real fsync.
type testCluster struct {
	t      *testing.T
	config string
	// ctx ends a while after a test should have passed, so that a hanging test fails.
	ctx     context.Context
	running map[string]*testServer
	client  *client.Client
	// off is the error of the servers' clocks.
	off map[string]time.Duration
	// maxLogGrowth is passed to servers that start.
	maxLogGrowth int64
	// peer is the address of another server, passed to servers that start.
	peer string
}

// testServer is one server of a testCluster.
type testServer struct {
	name, path, address string
	stop                func() error
	// ended receives, once, the error if the server ends by itself.
	ended <-chan error
}

// The flag has the same limits as consensus.
func TestElectionTimeoutsAreThoseOfConsensus(t *testing.T) {
	t.Parallel()
	if local.MinElectionTimeout != consensus.MinElectionTimeout || local.MaxElectionTimeout != consensus.MaxElectionTimeout {
		t.Errorf("%s to %s, but for consensus %s to %s", local.MinElectionTimeout, local.MaxElectionTimeout, consensus.MinElectionTimeout, consensus.MaxElectionTimeout)
	}
}

func testLog(t *testing.T) io.Writer {
	if os.Getenv("CLOUDLESS_TEST_LOG") != "" {
		return t.Output()
	}
	return io.Discard
}

// found starts the first server.
func found(t *testing.T) *testCluster {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for elections; make test runs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	s := &testCluster{t: t, ctx: ctx, config: filepath.Join(t.TempDir(), "config.yaml"), running: map[string]*testServer{}}
	s.start("s1", t.TempDir(), freeAddress(t), "")
	contexts, err := client.LoadConfig(s.config)
	must.Succeed(t, err)
	where, err := contexts.Context("")
	must.Succeed(t, err)
	s.client, err = client.Dial(ctx, where)
	must.Succeed(t, err)
	t.Cleanup(func() {
		_ = s.client.Close()
		for _, o := range s.running {
			if err := o.stop(); err != nil {
				t.Errorf("server %s ended with %v", o.name, err)
			}
		}
	})
	return s
}

// start runs a server until it is ready. With a token the server joins.
func (s *testCluster) start(name, path, address, token string) *testServer {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.ctx))
	ready, ended := make(chan struct{}), make(chan error, 1)
	process := local.Process{
		DataDir: path, Version: "test", Log: testLog(s.t), Progress: quiet, Ready: func(string) { close(ready) },
		ElectionTimeout: consensus.MaxElectionTimeout, // the tests' machines may be slow
	}
	process.MaxLogGrowth = s.maxLogGrowth
	if off := s.off[name]; off != 0 {
		process.Clock = func() time.Time { return time.Now().Add(off) }
	}
	reach := local.Reach{APIAddr: address, Name: name, Peer: s.peer}
	go func() {
		if token != "" {
			ended <- join(ctx, local.JoinOptions{Process: process, Address: s.anyAddress(), Token: token, Role: "server", NoNode: true, Reach: reach})
			return
		}
		ended <- runServer(ctx, local.ServerOptions{Process: process, Reach: reach, ConfigPath: s.config})
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		s.t.Fatalf("server %s ended before it was ready: %v", name, err)
	case <-s.ctx.Done():
		cancel()
		s.t.Fatalf("server %s is not ready in time", name)
	}
	o := &testServer{name: name, path: path, address: address, ended: ended, stop: func() error {
		cancel()
		return <-ended
	}}
	s.running[name] = o
	return o
}

func (s *testCluster) anyAddress() string {
	for _, o := range s.running {
		return o.address
	}
	return ""
}

func (s *testCluster) token(role string) string {
	s.t.Helper()
	made, err := s.client.Tokens().CreateToken(s.ctx, &v1.CreateTokenRequest{Role: role})
	must.Succeed(s.t, err)
	return made.GetSecret()
}

// join adds a server and waits until it votes.
func (s *testCluster) join(name string) *testServer {
	s.t.Helper()
	o := s.start(name, s.t.TempDir(), freeAddress(s.t), s.token("server"))
	s.until(func(all map[string]*v1.ServerStatus) bool { return all[name].GetVoter() && all[name].GetHealthy() })
	return o
}

// until waits until the servers satisfy a condition.
func (s *testCluster) until(reached func(map[string]*v1.ServerStatus) bool) {
	s.t.Helper()
	s.untilCluster(func(cluster *v1.ClusterStatus) bool {
		all := map[string]*v1.ServerStatus{}
		for _, one := range cluster.GetServers() {
			all[one.GetName()] = one
		}
		return reached(all)
	})
}

// untilCluster waits for a condition of the whole cluster. On a busy machine a server may miss one health check, so a
// single look at the status proves nothing.
func (s *testCluster) untilCluster(reached func(*v1.ClusterStatus) bool) {
	s.t.Helper()
	for {
		cluster, err := s.client.Cluster().GetCluster(s.ctx, &v1.GetClusterRequest{})
		if err == nil && reached(cluster.GetStatus()) {
			return
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("the cluster never reached the state: %v, %v", cluster.GetStatus(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *testCluster) leader() string {
	s.t.Helper()
	var leader string
	s.until(func(all map[string]*v1.ServerStatus) bool {
		for name, one := range all {
			if one.GetLeader() {
				leader = name
			}
		}
		return leader != ""
	})
	return leader
}

// at returns a client of one server alone.
func (s *testCluster) at(o *testServer) *client.Client {
	s.t.Helper()
	contexts, err := client.LoadConfig(s.config)
	must.Succeed(s.t, err)
	where, err := contexts.Context("")
	must.Succeed(s.t, err)
	where.Addresses = []string{o.address}
	c, err := client.Dial(s.ctx, where)
	must.Succeed(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// login returns the context of a user who logged in at a server with an API token.
func (s *testCluster) login(o *testServer, token string) client.Context {
	s.t.Helper()
	where, err := client.Locate(s.ctx, o.address, token)
	must.Succeed(s.t, err)
	c, err := client.Dial(s.ctx, where)
	must.Succeed(s.t, err)
	defer c.Close()
	_, err = c.Cluster().WhoAmI(s.ctx, &v1.WhoAmIRequest{})
	must.Succeed(s.t, err)
	where.Addresses = c.Addresses()
	return where
}

func (s *testCluster) write(c *client.Client, name string) error {
	_, err := c.Tokens().CreateToken(s.ctx, &v1.CreateTokenRequest{Role: "viewer", Name: name})
	return err
}

func tokenNames(t *testing.T, c *client.Client, ctx context.Context) []string {
	t.Helper()
	tokens, err := client.AllPages(func(page *v1.Page) ([]*v1.Token, string, error) {
		answer, err := c.Tokens().ListTokens(ctx, &v1.ListTokensRequest{Page: page})
		return answer.GetItems(), answer.GetNext(), err
	})
	must.Succeed(t, err)
	var all []string
	for _, token := range tokens {
		all = append(all, token.GetMetadata().GetName())
	}
	return all
}

// TestThreeServers goes from one server to three: every server answers, and acknowledged writes survive the loss of the
// leader.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	s := found(t)
	must.Succeed(t, s.write(s.client, "before"))
	s.join("s2")
	s.join("s3")
	for i, o := range []string{"s1", "s2", "s3"} {
		name := fmt.Sprintf("by-%d", i)
		c := s.at(s.running[o])
		must.Succeed(t, s.write(c, name))
		if all := tokenNames(t, c, s.ctx); !slices.Contains(all, name) || !slices.Contains(all, "before") {
			t.Errorf("server %s does not see what it has just written: %v", o, all)
		}
	}
	s.untilCluster(func(st *v1.ClusterStatus) bool {
		return st.GetToleratedFailures() == 1 && len(st.GetProblems()) == 0
	})

	if got := s.client.Addresses(); len(got) != 3 {
		t.Errorf("the client knows the servers %v", got)
	}
	leader := s.leader()
	viewer := s.login(s.running[leader], s.token("viewer"))
	s.stop(leader)
	must.Succeed(t, s.write(s.client, "after")) // it finds another server by itself
	c, err := client.Dial(s.ctx, viewer)
	must.Succeed(t, err)
	defer c.Close()
	if _, err := c.Nodes().ListNodes(s.ctx, &v1.ListNodesRequest{}); err != nil {
		t.Errorf("who logged in at the server that is gone cannot call: %v", err)
	}
	if all := tokenNames(t, s.client, s.ctx); !slices.Contains(all, "by-0") || !slices.Contains(all, "by-1") || !slices.Contains(all, "after") {
		t.Errorf("after the leader has gone there is %v", all)
	}
	if now := s.leader(); now == leader {
		t.Errorf("%s still leads", now)
	}
}

func (s *testCluster) stop(name string) {
	s.t.Helper()
	o := s.running[name]
	delete(s.running, name)
	must.Succeed(s.t, o.stop())
}

// removed waits for the end of a removed server.
func (s *testCluster) removed(name string) {
	s.t.Helper()
	o := s.running[name]
	delete(s.running, name)
	if err := o.stop(); err != nil && !errors.Is(err, membership.ErrRemoved) {
		s.t.Errorf("server %s ended with %v", name, err)
	}
}

// TestReplacementOfAllServers replaces three servers one by one while a client writes: nothing that was acknowledged
// is lost, and the client finds the new ones by itself.
func TestReplacementOfAllServers(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	s.join("s3")
	ctx, cancel := context.WithCancel(s.ctx)
	acknowledged := make(chan []string)
	go func() {
		var done []string
		for n := 0; ctx.Err() == nil; n++ {
			name := fmt.Sprintf("w-%d", n)
			if s.write(s.client, name) == nil {
				done = append(done, name)
			}
		}
		acknowledged <- done
	}()
	for i, old := range []string{"s1", "s2", "s3"} {
		fresh := fmt.Sprintf("n%d", i+1)
		s.start(fresh, t.TempDir(), freeAddress(t), s.token("server"))
		if s.leader() == old {
			_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{})
			must.Succeed(t, err)
		}
		// A new leader must first check the health of the others itself.
		s.until(func(all map[string]*v1.ServerStatus) bool {
			for _, one := range all {
				if !one.GetHealthy() {
					return false
				}
			}
			return all[fresh] != nil
		})
		_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: old})
		must.Succeed(t, err)
		s.until(func(all map[string]*v1.ServerStatus) bool { return all[old] == nil && all[fresh].GetVoter() })
		s.removed(old)
	}
	cancel()
	done := <-acknowledged
	if len(done) < 10 {
		t.Errorf("only %d writes were acknowledged", len(done))
	}
	all := tokenNames(t, s.client, s.ctx)
	for _, name := range done {
		if !slices.Contains(all, name) {
			t.Errorf("the acknowledged write %s is lost", name)
		}
	}
	var left []string
	s.until(func(all map[string]*v1.ServerStatus) bool {
		left = slices.Sorted(maps.Keys(all))
		return true
	})
	if !slices.Equal(left, []string{"n1", "n2", "n3"}) {
		t.Errorf("the servers are %v", left)
	}
}

// TestRefusedJoins: every refusal says why in one sentence.
func TestRefusedJoins(t *testing.T) {
	t.Parallel()
	s := found(t)
	other := found(t)
	try := func(path, address, advertise, token string) error {
		return join(s.ctx, local.JoinOptions{
			Process: local.Process{DataDir: path, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) {
				t.Error("it is ready")
			}},
			Address: s.running["s1"].address, Token: token, Role: "server", Reach: local.Reach{APIAddr: address, Advertise: advertise, Name: "x"},
		})
	}
	used := other.start("s9", t.TempDir(), freeAddress(t), other.token("server"))
	other.stop("s9")
	for what, c := range map[string]struct {
		path, address, token, want string
	}{
		"a token of another cluster":               {t.TempDir(), freeAddress(t), other.token("server"), "does not belong to the cluster that the token is for"},
		"a token for nodes":                        {t.TempDir(), freeAddress(t), s.token("node"), "join with --role node"},
		"the folder of another cluster":            {used.path, freeAddress(t), s.token("server"), "belongs to a server of another cluster"},
		"the folder that founded another":          {foundedFolder(t), freeAddress(t), s.token("server"), "belongs to a server of another cluster"},
		"the address of another server":            {t.TempDir(), s.running["s1"].address, s.token("server"), "is used by another process: stop that one, or listen on another with --api-addr"},
		"an address that other servers cannot use": {t.TempDir(), "0.0.0.0:0", s.token("server"), "not of the form host:port"},
		"garbage in place of a token":              {t.TempDir(), freeAddress(t), "garbage", "token"},
	} {
		err := try(c.path, c.address, "", c.token)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	err := try(t.TempDir(), freeAddress(t), s.running["s1"].address, s.token("server"))
	if err == nil || !strings.Contains(err.Error(), "choose another with --api-addr") {
		t.Errorf("the advertised address of another server: %v", err)
	}
	founder := other.running["s1"].path
	token := other.token("server")
	other.stop("s1")
	err = try(founder, freeAddress(t), "", token)
	if err == nil || !strings.Contains(err.Error(), "start it with: cloudless server") || !strings.Contains(err.Error(), "if it was removed from the cluster, remove the folder first with: cloudless down --purge") {
		t.Errorf("the server that founded the cluster: %v", err)
	}
	cluster, err := s.client.Cluster().GetCluster(s.ctx, &v1.GetClusterRequest{})
	must.Succeed(t, err)
	if len(cluster.GetStatus().GetServers()) != 1 {
		t.Errorf("refused servers are there: %v", cluster.GetStatus().GetServers())
	}
}

// foundedFolder returns the folder of a server that had its own cluster.
func foundedFolder(t *testing.T) string {
	t.Helper()
	s := found(t)
	path := s.running["s1"].path
	s.stop("s1")
	return path
}

// TestWithoutQuorum: the remaining server says that there is no quorum, answers stale reads, and continues when the
// others are back.
func TestWithoutQuorum(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	s.join("s3")
	must.Succeed(t, s.write(s.client, "before"))
	kept := s.at(s.running["s3"])
	stale := client.WithStale(s.ctx)
	for !slices.Contains(tokenNames(t, kept, stale), "before") {
		time.Sleep(time.Millisecond) // it learns of the commit a moment later
	}
	s1, s2 := s.running["s1"], s.running["s2"]
	s.stop("s1")
	s.stop("s2")
	soon, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	if _, err := kept.Tokens().ListTokens(soon, &v1.ListTokensRequest{}); err == nil {
		t.Error("a read that must be up to date was answered without a majority")
	}
	if all := tokenNames(t, kept, stale); !slices.Contains(all, "before") {
		t.Errorf("the stale read gives %v", all)
	}
	for problems := ""; !strings.Contains(problems, "2 of the 3 voting servers must run"); {
		cluster, err := kept.Cluster().GetCluster(stale, &v1.GetClusterRequest{})
		must.Succeed(t, err)
		problems = strings.Join(cluster.GetStatus().GetProblems(), " ")
	}
	pushing, err := (&http.Client{Transport: kept.HTTPTransport()}).Post("https://registry.cloudless.internal/v2/web/blobs/uploads/", "", nil)
	must.Succeed(t, err)
	_ = pushing.Body.Close()
	if why := pushing.Header.Get("X-Cloudless-Reason"); pushing.StatusCode != http.StatusServiceUnavailable || why != "NO_LEADER" {
		t.Errorf("a push is answered with %s because of %q", pushing.Status, why)
	}
	s.start("s2", s2.path, s2.address, "")
	must.Succeed(t, s.write(kept, "after"))
	s.start("s1", s1.path, s1.address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool { return all["s1"].GetHealthy() && all["s2"].GetHealthy() })
}

// TestServerMoves: a server comes back at another address, and the others and the clients find it.
func TestServerMoves(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	moved := s.join("s3")
	s.stop("s3")
	address := freeAddress(t)
	s.start("s3", moved.path, address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s3"].GetAddress() == address && all["s3"].GetHealthy() && all["s3"].GetVoter()
	})
	must.Succeed(t, s.write(s.at(s.running["s3"]), "moved"))
}

// TestAllServersMove at once, so that no server finds another at its old address. With --peer they find each other, and
// they keep the new addresses.
func TestAllServersMove(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	s.join("s3")
	must.Succeed(t, s.write(s.client, "before"))
	moved := maps.Clone(s.running)
	for name := range moved {
		s.stop(name)
	}
	for _, name := range []string{"s1", "s2", "s3"} {
		o := s.start(name, moved[name].path, freeAddress(t), "")
		s.peer = o.address
	}
	s.client = s.at(s.running["s3"])
	s.until(func(all map[string]*v1.ServerStatus) bool {
		for name, o := range s.running {
			if one := all[name]; one.GetAddress() != o.address || !one.GetHealthy() || !one.GetVoter() {
				return false
			}
		}
		return true
	})
	must.Succeed(t, s.write(s.client, "moved"))
	if all := tokenNames(t, s.client, s.ctx); !slices.Contains(all, "before") {
		t.Errorf("they know %v", all)
	}
}

// TestFounderMovesAfterAKill: until there is a leader, the founder's state is from the time when it was alone. It looks
// for the others all the same, because they do not know its new address.
func TestFounderMovesAfterAKill(t *testing.T) {
	t.Parallel()
	s := found(t)
	founder := s.running["s1"]
	s.stop("s1") // leaves a snapshot of a server without others
	alone, err := os.ReadDir(filepath.Join(founder.path, "server", "raft", "snapshots"))
	must.Succeed(t, err)
	s.start("s1", founder.path, founder.address, "")
	s.join("s2")
	s.join("s3")
	s.client = s.at(s.running["s2"])
	s.stop("s1")
	all, err := os.ReadDir(filepath.Join(founder.path, "server", "raft", "snapshots"))
	must.Succeed(t, err)
	for _, later := range all { // a kill leaves none
		if !slices.ContainsFunc(alone, func(e os.DirEntry) bool { return e.Name() == later.Name() }) {
			must.Succeed(t, os.RemoveAll(filepath.Join(founder.path, "server", "raft", "snapshots", later.Name())))
		}
	}
	must.Succeed(t, s.write(s.client, "without-it")) // so that it cannot be elected
	o := s.start("s1", founder.path, freeAddress(t), "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s1"].GetAddress() == o.address && all["s1"].GetHealthy()
	})
}
