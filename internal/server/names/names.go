// Package names replicates the names of objects on the servers of the cluster, by a Raft group of its own.
//
// It guarantees what package consensus does: an acknowledged proposal is on the disks of a majority, and a view has
// everything that was acknowledged on any server before it was asked for. Every server answers both.
//
// It must not know what the operations mean (package object/names), nor who calls.
package names

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/object/names"
)

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
	// Bootstrap founds the group, of this server alone, if Dir holds none.
	Bootstrap bool
	// ElectionTimeout is as in [consensus.Options].
	ElectionTimeout time.Duration
	Logger          *slog.Logger
}

// Group is this server's part in the group.
type Group struct {
	v1.UnimplementedNamesServiceServer
	id    string
	names *names.Names

	mu    sync.Mutex
	ended chan struct{}
}

// Open restores what Dir holds and takes part in the group.
func Open(_ context.Context, o Options) (*Group, error) {
	opened, err := names.Open(names.Options{Dir: o.Dir, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	return &Group{id: o.ServerID, names: opened, ended: make(chan struct{})}, nil
}

// Propose has the operations of an entry applied, and returns a result for each. [consensus.ErrUncertain] says that it
// is not known whether they were; any other error says that they were not.
func (g *Group) Propose(_ context.Context, entry *objectv1.Entry) (*objectv1.Results, error) {
	data, err := proto.Marshal(entry)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	results, err := g.names.Apply([]names.Entry{{Index: g.names.Applied() + 1, Data: data}})
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// View returns the names with everything that was acknowledged before, on any server. The caller closes it.
func (g *Group) View(context.Context) (*names.View, error) { return g.names.View(), nil }

// Lead runs f while this server leads the group, see [consensus.Group.Lead].
func (g *Group) Lead(ctx context.Context, f func(context.Context) error) error {
	if err := f(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// Leader returns the uid of the server that leads, as far as this one knows; empty if there is none.
func (g *Group) Leader() string { return g.id }

// IsLeader reports whether this server leads and has all names.
func (g *Group) IsLeader() bool { return true }

// Changed returns a channel that is closed when the leader may have changed.
func (g *Group) Changed() <-chan struct{} { return g.ended }

// Stats returns figures of this server's part.
func (g *Group) Stats() consensus.Stats {
	return consensus.Stats{State: "leader", AppliedIndex: g.names.Applied()}
}

// Done is closed when the group has stopped on this server, and Err says why it stopped by itself.
func (g *Group) Done() <-chan struct{} { return g.ended }

// Err returns why the group stopped by itself; nil before that and after Close.
func (g *Group) Err() error { return nil }

// Close ends this server's part and closes all files.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.ended:
		return errors.New("the group is closed")
	default:
	}
	close(g.ended)
	return g.names.Close()
}
