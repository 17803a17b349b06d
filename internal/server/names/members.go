package names

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// The control group decides who takes part: its state names the server that founds the group, and all servers. The leader
// of the names adds and removes members accordingly, and gives votes, as the leader of the control group does.

// Control is what the group must know of the control group.
type Control struct {
	Store *state.Store
	// Members are the servers that should take part, and Voters how many of them should vote.
	Members func() []consensus.Member
	Voters  func() int
}

// runPause is the pause before the members are looked at again after a failure.
const runPause = time.Second

// Run founds the group if the state says that this server does, and manages its members while this server leads it, until
// ctx ends.
func (g *Group) Run(ctx context.Context, c Control) error {
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return g.found(ctx, c.Store) })
	parts.Go(func() error {
		return g.group.Lead(ctx, func(ctx context.Context) error { return g.manage(ctx, c) })
	})
	return parts.Wait()
}

func (g *Group) manage(ctx context.Context, c Control) error {
	for {
		err := g.group.Pilot(ctx, consensus.PilotOptions{Voters: c.Voters, Members: c.Members, Progress: g.progressOf})
		if ctx.Err() != nil {
			return nil
		}
		g.logger.Error("the members of the group that keeps the names of objects are looked at again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(runPause):
		}
	}
}

// found founds the group as soon as the state says that this server does. It returns when this server knows the group.
func (g *Group) found(ctx context.Context, store *state.Store) error {
	for feed := store.Follow(); ; {
		if g.group.Known() {
			return nil
		}
		if founder(store.Snapshot()) == g.id {
			if err := g.group.Found(ctx, g.address); err != nil && !g.group.Known() {
				return fmt.Errorf("found the group that keeps the names of objects: %w", err)
			}
			g.logger.Info("this server has founded the group that keeps the names of objects")
			return nil
		}
		if _, err := feed.Next(ctx); err != nil {
			return err
		}
	}
}

func founder(snap *state.Snapshot) string { return snap.Cluster().GetStatus().GetNamesFounder() }

// Proposer changes the state of the control group.
type Proposer interface {
	Propose(context.Context, *statev1.Transaction) (state.Result, error)
}

// ChooseFounder lets this server, which leads the control group, found the group if no server has: in a cluster that is
// older than the group, or after the founder was lost with everything that it had. It runs while this server leads the
// control group.
func (g *Group) ChooseFounder(ctx context.Context, store *state.Store, proposer Proposer) error {
	for feed := store.Follow(); ; {
		snap := store.Snapshot()
		missing := needsFounder(snap) && !g.group.Known()
		if missing && g.nobodyKnows(ctx, snap) {
			if err := g.becomeFounder(ctx, snap, proposer); err != nil && !state.MovedOn(err) {
				return err
			}
		}
		wait, cancel := ctx, context.CancelFunc(func() {})
		if missing {
			wait, cancel = context.WithTimeout(ctx, runPause)
		}
		_, err := feed.Next(wait)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// needsFounder reports whether the state names no server that could found the group.
func needsFounder(snap *state.Snapshot) bool {
	uid := founder(snap)
	return snap.Cluster() != nil && (uid == "" || snap.Revocation(uid) != nil)
}

// nobodyKnows reports whether all other servers have said that they know of no group. One that does not answer may.
func (g *Group) nobodyKnows(ctx context.Context, snap *state.Snapshot) bool {
	for s := range snap.Servers("") {
		uid := s.GetMetadata().GetUid()
		if uid == g.id {
			continue
		}
		if p, err := g.progressOf(ctx, uid); err != nil || p.LastIndex > 0 {
			return false
		}
	}
	return true
}

func (g *Group) becomeFounder(ctx context.Context, snap *state.Snapshot, proposer Proposer) error {
	cluster := proto.CloneOf(snap.Cluster())
	if cluster.Status == nil {
		cluster.Status = &v1.ClusterStatus{}
	}
	cluster.Status.NamesFounder = g.id
	var b state.Batch
	b.Update(cluster, snap.Cluster().GetMetadata().GetVersion())
	_, err := proposer.Propose(ctx, b.Transaction(time.Now().UTC()))
	return err
}

// remove takes a server out of the group, as its leader.
func (g *Group) remove(ctx context.Context, server string) error {
	if !g.group.IsLeader() {
		return &consensus.NotLeaderError{}
	}
	if server != g.id {
		return g.group.Remove(ctx, server)
	}
	if err := g.group.Transfer(ctx, ""); err != nil {
		return fmt.Errorf("no other server can lead the group that keeps the names of objects: %w", err)
	}
	return &consensus.NotLeaderError{}
}

// releasePatience bounds how long a removal waits for the others to be ready.
const releasePatience = 5 * time.Second

// Release takes a server that is about to be removed from the cluster out of the group, so that the others can agree
// without it.
func (g *Group) Release(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, releasePatience)
	defer cancel()
	for {
		err := g.withLeader(ctx, func(leader string) error { return g.releaseAt(ctx, leader, server) })
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(leaderPause): // the others may become voters meanwhile
		}
	}
}

func (g *Group) releaseAt(ctx context.Context, leader, server string) error {
	if leader == g.id {
		return g.remove(ctx, server)
	}
	conn, err := g.conn(ctx, leader)
	if err != nil {
		return errors.Join(consensus.ErrNotLeader, err)
	}
	_, err = v1.NewNamesServiceClient(conn).RemoveNamesMember(ctx, &v1.RemoveNamesMemberRequest{Server: server})
	return outcomeOf(err)
}
