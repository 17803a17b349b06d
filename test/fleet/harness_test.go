package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/app"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/test/fleet/simulated"
)

// cluster is real servers in this process, with their own folders, TLS and fsync.
type cluster struct {
	t      *testing.T
	ctx    context.Context // ends a while after a hanging test should have passed
	config string
	api    *client.Client
	// servers are their addresses and how to stop them, by name.
	servers map[string]*server
}

type server struct {
	address string
	stop    func()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for a fleet of nodes; make test runs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	c := &cluster{t: t, ctx: ctx, config: filepath.Join(t.TempDir(), "config.yaml"), servers: map[string]*server{}}
	c.start("s1", "")
	contexts, err := client.LoadConfig(c.config)
	must(t, err)
	where, err := contexts.Context("")
	must(t, err)
	c.api, err = client.Dial(ctx, where)
	must(t, err)
	t.Cleanup(func() { must(t, c.api.Close()) })
	return c
}

// start runs a server until the test ends; it joins if there is a token.
func (c *cluster) start(name, token string) {
	c.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(c.t, err)
	s := &server{address: listener.Addr().String()}
	must(c.t, listener.Close())
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	ready, ended := make(chan struct{}), make(chan error, 1)
	process := local.Process{
		DataDir: c.t.TempDir(), Version: "test", Log: c.log(), Progress: func(string) {}, Ready: func(string) { close(ready) },
		ElectionTimeout: consensus.MaxElectionTimeout, // the tests' machines may be slow
	}
	reach := local.Reach{APIAddr: s.address, Name: name}
	go func() {
		if token != "" {
			ended <- app.Roles().Join(ctx, local.JoinOptions{Process: process, Address: c.servers["s1"].address, Token: token, Role: "server", NoNode: true, Reach: reach})
			return
		}
		ended <- app.Roles().Server(ctx, local.ServerOptions{Process: process, Reach: reach, ConfigPath: c.config})
	}()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("server %s ended with %v", name, err)
		}
	}
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		c.t.Fatalf("server %s ended before it was ready: %v", name, err)
	case <-c.ctx.Done():
		cancel()
		c.t.Fatalf("server %s is not ready in time", name)
	}
	c.t.Cleanup(s.stop)
	c.servers[name] = s
}

func (c *cluster) log() io.Writer {
	if os.Getenv("CLOUDLESS_TEST_LOG") != "" {
		return c.t.Output()
	}
	return io.Discard
}

func (c *cluster) token(role string, uses int32) string {
	c.t.Helper()
	made, err := c.api.Tokens().CreateToken(c.ctx, &v1.CreateTokenRequest{Role: role, Uses: uses})
	must(c.t, err)
	return made.GetSecret()
}

// fleet runs one until the test ends.
func (c *cluster) fleet(o simulated.Options) *simulated.Fleet {
	c.t.Helper()
	o.Join, o.Token = []string{c.servers["s1"].address}, c.token("node", int32(o.Nodes))
	f, err := simulated.Enroll(c.ctx, o, nil)
	must(c.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		must(c.t, <-done)
	})
	return f
}

// untilNodes waits until the states of the nodes are as wanted.
func (c *cluster) untilNodes(met func(states map[string]string) bool) {
	c.t.Helper()
	c.rewatching(func(ctx context.Context) error {
		watch, err := c.api.Nodes().WatchNodes(ctx, &v1.WatchNodesRequest{})
		must(c.t, err)
		states, synced := map[string]string{}, false
		for !synced || !met(states) {
			change, err := watch.Recv()
			if err != nil {
				return fmt.Errorf("the nodes are not yet as wanted, but %v: %w", states, err)
			}
			if n := change.GetNode(); n != nil {
				states[n.GetMetadata().GetName()] = n.GetStatus().GetState()
			} else {
				synced = true
			}
		}
		return nil
	})
}

// rewatching restarts a watch whenever a change of the leader ends it.
func (c *cluster) rewatching(watch func(context.Context) error) {
	c.t.Helper()
	for {
		ctx, cancel := context.WithCancel(c.ctx)
		err := watch(ctx)
		cancel()
		if err == nil {
			return
		}
		if status.Code(err) != codes.Unavailable {
			c.t.Fatal(err)
		}
	}
}

// untilReplicas waits until the replicas of a workload are as wanted.
func (c *cluster) untilReplicas(workload string, met func(phases map[string]int) bool) {
	c.t.Helper()
	c.rewatching(func(ctx context.Context) error {
		watch, err := c.api.Workloads().WatchReplicas(ctx, &v1.WatchReplicasRequest{Workload: workload})
		must(c.t, err)
		phase, synced := map[string]string{}, false
		for {
			count := map[string]int{}
			for _, p := range phase {
				count[p]++
			}
			if synced && met(count) {
				return nil
			}
			change, err := watch.Recv()
			if err != nil {
				return fmt.Errorf("the replicas are not yet as wanted, but %v: %w", count, err)
			}
			switch r := change.GetReplica(); {
			case r == nil:
				synced = true
			case change.GetChange() == "removed":
				delete(phase, r.GetMetadata().GetUid())
			default:
				phase[r.GetMetadata().GetUid()] = r.GetStatus().GetPhase()
			}
		}
	})
}

// until waits for what the fleet itself knows.
func (c *cluster) until(met func() bool) {
	c.t.Helper()
	for !met() {
		select {
		case <-c.ctx.Done():
			c.t.Fatal("the fleet never was as wanted")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func all(states map[string]string, n int, want string) bool {
	for _, s := range states {
		if s != want {
			return false
		}
	}
	return len(states) == n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
