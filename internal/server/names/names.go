// Package names replicates the names of objects on the servers of the cluster, by a Raft group of its own.
//
// It guarantees what package consensus does: an acknowledged proposal is on the disks of a majority, and a view has
// everything that was acknowledged on any server before it was asked for. Every server answers both.
//
// The group's members are those of the control group, but its leader may be another server. This package must not know
// what the operations mean (package object/names), nor who calls.
package names

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// reserve is how many bytes must stay free on the disk beside a proposal: more than the control group keeps, so that
// objects never fill the disk up for that one.
const reserve = 160 << 20

// Options configures a server's part in the group.
type Options struct {
	// Dir is created if it does not exist. Reached is a file outside of it, see [consensus.Options].
	Dir, Reached string
	// ServerID is the server's uid, and Address where others reach it.
	ServerID, Address string
	// Network carries the group's log; without one the server is alone. Addresses returns the current address of a
	// server, and Conn a connection for calls to it that is up.
	Network   consensus.Network
	Addresses func(server string) string
	Conn      func(ctx context.Context, server string) (*grpc.ClientConn, error)
	// Bootstrap founds the group, of this server alone, if Dir holds none. Without it, see [Group.Run].
	Bootstrap bool
	// ElectionTimeout, SnapshotThreshold and MaxLogGrowth are as in [consensus.Options].
	ElectionTimeout   time.Duration
	SnapshotThreshold uint64
	MaxLogGrowth      int64
	Metrics           *telemetry.Names // may be nil
	Logger            *slog.Logger
}

func (o Options) consensus() consensus.Options {
	logger := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return consensus.Options{
		Dir: filepath.Join(o.Dir, "raft"), Reached: o.Reached, ServerID: o.ServerID, Address: o.Address, Network: o.Network, Addresses: o.Addresses,
		Bootstrap: o.Bootstrap, ElectionTimeout: o.ElectionTimeout, SnapshotThreshold: o.SnapshotThreshold, MaxLogGrowth: o.MaxLogGrowth,
		Observer: o.Metrics, Reserve: reserve, Logger: logger.With("group", "names"),
	}
}

// Group is this server's part in the group, and its NamesService.
type Group struct {
	v1.UnsafeNamesServiceServer
	id, address string
	conn        func(ctx context.Context, server string) (*grpc.ClientConn, error)
	logger      *slog.Logger
	metrics     *telemetry.Names
	names       *names.Names
	group       *consensus.Group

	// asked are questions for the leader's index, and confirmed those that this server answers as the leader.
	asked, confirmed rounds
	// closing ends the questions.
	closing context.Context
	end     context.CancelFunc
	once    sync.Once
}

// Open restores what Dir holds and takes part in the group.
func Open(ctx context.Context, o Options) (*Group, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	stored, err := names.Open(names.Options{Dir: filepath.Join(o.Dir, "data"), Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	group, err := consensus.OpenGroup(ctx, o.consensus(), machine{stored})
	if err != nil {
		return nil, fmt.Errorf("the names of objects: %w", errors.Join(err, stored.Close()))
	}
	g := &Group{id: o.ServerID, address: o.Address, conn: o.Conn, logger: o.Logger, metrics: o.Metrics, names: stored, group: group}
	g.closing, g.end = context.WithCancel(context.WithoutCancel(ctx))
	g.asked.ask, g.confirmed.ask = g.askIndex, group.Confirm
	g.asked.ctx, g.confirmed.ctx = g.closing, g.closing
	return g, nil
}

// Recover makes this server the only one of the group, with what it has on disk, see [consensus.Recover]. It does nothing
// if this server has no part in a group.
func Recover(o Options) (consensus.Recovered, error) {
	if known, err := consensus.HoldsGroup(o.consensus().Dir); err != nil || !known {
		return consensus.Recovered{}, err
	}
	stored, err := names.Open(names.Options{Dir: filepath.Join(o.Dir, "data"), Logger: o.Logger})
	if err != nil {
		return consensus.Recovered{}, err
	}
	was, err := consensus.RecoverGroup(o.consensus(), machine{stored})
	if err = errors.Join(err, stored.Close()); err != nil {
		return was, fmt.Errorf("the names of objects: %w", err)
	}
	return was, nil
}

// Propose has the operations of an entry applied, and returns a result for each. [consensus.ErrUncertain] says that it
// is not known whether they were; any other error says that they were not.
func (g *Group) Propose(ctx context.Context, entry *objectv1.Entry) (results *objectv1.Results, err error) {
	err = g.withLeader(ctx, func(leader string) (err error) {
		if leader == g.id {
			results, err = g.agree(ctx, entry)
		} else {
			results, err = g.forward(ctx, leader, entry)
		}
		return err
	})
	return results, err
}

// agree proposes as the leader.
func (g *Group) agree(ctx context.Context, entry *objectv1.Entry) (_ *objectv1.Results, err error) {
	began := time.Now()
	defer func() { g.metrics.Proposed(resultOf(err), time.Since(began)) }()
	if err := names.Validate(entry); err != nil {
		return nil, err
	}
	p, err := proposalOf(entry)
	if err != nil {
		return nil, err
	}
	response, err := g.group.Agree(ctx, p)
	if err != nil {
		return nil, err
	}
	return response.(*objectv1.Results), nil
}

func resultOf(err error) string {
	_, large := errors.AsType[*consensus.TooLargeError](err)
	_, full := errors.AsType[*consensus.FullError](err)
	_, invalid := errors.AsType[*names.InvalidError](err)
	switch {
	case err == nil:
		return "accepted"
	case large, full, invalid:
		return "refused"
	}
	return "failed"
}

// View returns the names with everything that was acknowledged before, on any server. The caller closes it.
func (g *Group) View(ctx context.Context) (*names.View, error) {
	index, err := g.asked.index(ctx)
	if err != nil {
		return nil, err
	}
	if err := g.group.WaitApplied(ctx, index); err != nil {
		return nil, err
	}
	return g.names.View(), nil
}

// Stale returns the names as this server has them, which may be behind. The caller closes it.
func (g *Group) Stale() *names.View { return g.names.View() }

// Lead runs f while this server leads the group, see [consensus.Group.Lead].
func (g *Group) Lead(ctx context.Context, f func(context.Context) error) error {
	return g.group.Lead(ctx, f)
}

// Leader returns the uid of the server that leads, as far as this one knows; empty if there is none.
func (g *Group) Leader() string {
	leader, _ := g.group.Leader()
	return leader.ID
}

// Leaderless is for how long there has been no leader, as far as this server knows; 0 while there is one.
func (g *Group) Leaderless() time.Duration { return g.group.Leaderless() }

// IsLeader reports whether this server leads and has all names.
func (g *Group) IsLeader() bool { return g.group.IsLeader() }

// WaitLeader waits until there is a leader.
func (g *Group) WaitLeader(ctx context.Context) error { return g.group.WaitLeader(ctx) }

// Changed returns a channel that is closed when the leader may have changed.
func (g *Group) Changed() <-chan struct{} { return g.group.Changed() }

// Servers are the members of the group.
func (g *Group) Servers() []consensus.Server { return g.group.Servers() }

// Stats returns figures of this server's part. AppliedIndex is that of the names.
func (g *Group) Stats() consensus.Stats {
	stats := g.group.Stats()
	stats.AppliedIndex = g.names.Applied()
	return stats
}

// Snapshot makes the names durable and shortens the log.
func (g *Group) Snapshot(ctx context.Context) error { return g.group.Snapshot(ctx) }

// Leave prepares the stop of this server, see [consensus.Group.Leave].
func (g *Group) Leave(ctx context.Context) { g.group.Leave(ctx) }

// Done is closed when the group has stopped on this server, and Err says why it stopped by itself.
func (g *Group) Done() <-chan struct{} { return g.group.Done() }

// Err returns why the group stopped by itself; nil before that and after Close.
func (g *Group) Err() error { return g.group.Err() }

// Close ends this server's part and closes all files.
func (g *Group) Close() (err error) {
	g.once.Do(func() {
		g.end()
		err = g.group.Close()
		g.asked.wait()
		g.confirmed.wait()
		err = errors.Join(err, g.names.Close())
	})
	return err
}
