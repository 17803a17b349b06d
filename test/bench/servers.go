package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

const (
	leaderLosses = 20
	lossWriters  = 4
)

// trio is three servers as separate processes on this machine.
type trio struct {
	*cloud  // the first one
	members map[string]*cloud
	api     *client.Client
}

// newTrio starts them and waits until all vote. Its close leaves nothing behind.
func (l *lab) newTrio(ctx context.Context, name string) (_ *trio, err error) {
	t := &trio{members: map[string]*cloud{}}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	for i := range 3 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		id := fmt.Sprintf("s%d", i+1)
		c := &cloud{
			lab: l, address: listener.Addr().String(),
			data: filepath.Join(l.dir, name+"-"+id), config: filepath.Join(l.dir, name+".yaml"),
		}
		if err := listener.Close(); err != nil {
			return nil, err
		}
		t.members[id] = c
		if i == 0 {
			t.cloud = c
			err = t.begin(ctx, c, id)
		} else {
			err = t.add(ctx, c, id)
		}
		if err != nil {
			return nil, err
		}
	}
	return t, t.until(ctx, func(all []*v1.ServerStatus) bool { return len(all) == 3 && allHealthy(all) })
}

func (t *trio) begin(ctx context.Context, c *cloud, name string) (err error) {
	if err := c.run(ctx, "server", "--detach", "--data-dir", c.data, "--api-addr", c.address, "--name", name); err != nil {
		return err
	}
	t.api, err = c.dial(ctx)
	return err
}

func (t *trio) add(ctx context.Context, c *cloud, name string) error {
	token, err := t.api.Tokens().CreateToken(ctx, &v1.CreateTokenRequest{Role: "server"})
	if err != nil {
		return err
	}
	path := filepath.Join(c.lab.dir, "join-token")
	if err := os.WriteFile(path, []byte(token.GetSecret()), 0o600); err != nil {
		return err
	}
	return c.run(ctx, "join", t.address, "--role", "server", "--no-node", "--detach", "--token-file", path,
		"--data-dir", c.data, "--api-addr", c.address, "--name", name)
}

func allHealthy(all []*v1.ServerStatus) bool {
	return !slices.ContainsFunc(all, func(s *v1.ServerStatus) bool { return !s.GetVoter() || !s.GetHealthy() })
}

// until waits until the servers are as wanted.
func (t *trio) until(ctx context.Context, met func([]*v1.ServerStatus) bool) error {
	for {
		cluster, err := t.api.Cluster().GetCluster(ctx, &v1.GetClusterRequest{})
		if err == nil && met(cluster.GetStatus().GetServers()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (t *trio) leader(ctx context.Context) (leader string, err error) {
	err = t.until(ctx, func(all []*v1.ServerStatus) bool {
		for _, s := range all {
			if s.GetLeader() {
				leader = s.GetName()
			}
		}
		return leader != ""
	})
	return leader, err
}

func (t *trio) close() {
	if t.api != nil {
		_ = t.api.Close()
	}
	for _, c := range t.members {
		if _, err := os.Stat(c.data); err == nil {
			c.close()
		}
	}
}

// kill9 kills the process of a cloud.
func (c *cloud) kill9() error {
	data, err := os.ReadFile(filepath.Join(c.data, "lock"))
	if err != nil {
		return err
	}
	var holder struct{ PID int }
	if err := json.Unmarshal(data, &holder); err != nil {
		return err
	}
	return syscall.Kill(holder.PID, syscall.SIGKILL)
}

func measureLeaderLossMedian(ctx context.Context, l *lab) (result, error) {
	lost, err := measureLosses(ctx, l)
	if err != nil {
		return result{}, err
	}
	return result{value: lost.median(), notes: []string{lost.spread("kill to next write")}}, nil
}

func measureLeaderLossMax(ctx context.Context, l *lab) (result, error) {
	lost, err := measureLosses(ctx, l)
	if err != nil {
		return result{}, err
	}
	return result{value: lost.quantile(1)}, nil
}

// measureLosses repeatedly kills the leader while clients write, and records when the first
// write is acknowledged that began after the kill.
func measureLosses(ctx context.Context, l *lab) (sample, error) {
	if l.losses != nil {
		return l.losses, nil
	}
	t, err := l.newTrio(ctx, "loss")
	if err != nil {
		return nil, err
	}
	defer t.close()
	var lost sample
	for i := range leaderLosses {
		took, err := t.lose(ctx, i)
		if err != nil {
			return nil, err
		}
		lost = append(lost, float64(took.Milliseconds()))
	}
	l.losses = lost
	return lost, nil
}

func (t *trio) lose(ctx context.Context, round int) (time.Duration, error) {
	leader, err := t.leader(ctx)
	if err != nil {
		return 0, err
	}
	writing, cancel := context.WithCancel(ctx)
	defer cancel()
	var killed atomic.Int64 // nanoseconds since the epoch
	acknowledged := make(chan time.Time, lossWriters)
	var writers sync.WaitGroup
	defer writers.Wait()
	for w := range lossWriters {
		api, err := t.dial(ctx)
		if err != nil {
			return 0, err
		}
		writers.Go(func() {
			defer func() { _ = api.Close() }()
			for n := 0; writing.Err() == nil; n++ {
				begun := time.Now()
				_, err := api.Tokens().CreateToken(writing, &v1.CreateTokenRequest{Role: "viewer", Ttl: "1m", Name: fmt.Sprintf("l-%d-%d-%d", round, w, n)})
				at := killed.Load()
				if err == nil && at != 0 && begun.UnixNano() > at {
					acknowledged <- time.Now()
					return
				}
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // clients are writing, not waiting for anything
	if err := t.members[leader].kill9(); err != nil {
		return 0, err
	}
	at := time.Now()
	killed.Store(at.UnixNano())
	var took time.Duration
	select {
	case first := <-acknowledged:
		took = first.Sub(at)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	cancel()
	writers.Wait()
	c := t.members[leader]
	if err := c.run(ctx, "server", "--detach", "--data-dir", c.data, "--api-addr", c.address); err != nil {
		return 0, err
	}
	return took, t.until(ctx, allHealthy)
}
