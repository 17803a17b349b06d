package replicas

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Proposer agrees on changes with the other servers.
type Proposer interface {
	Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error)
}

// Loop ticks on every relevant change while this server leads.
type Loop struct {
	Store    *state.Store
	Proposer Proposer
	// Metrics and Tracing record the decisions. They may be nil.
	Metrics *telemetry.Server
	Tracing *telemetry.Tracing
	// Decisions remembers why replicas were placed where they are. It may be nil.
	Decisions *placement.Decisions
	// Leases are those of singletons. It may be nil.
	Leases Leases
	// Traffic judges canaries by their requests. It may be nil.
	Traffic Traffic
	// Pause waits while more urgent work is running. It may be nil.
	Pause func(context.Context) bool

	engine Engine
	// feed delivers the changes for the engine; received are those that it has not followed
	// yet.
	feed     *state.Follower
	received []state.Change
}

// Run settles what is due and waits for the next change, until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	l.begin()
	defer l.Metrics.Deferred(0) // only the leader knows
	for {
		if err := l.settle(ctx); err != nil {
			return err
		}
		if err := l.wait(ctx); err != nil {
			return err
		}
	}
}

// begin reads the state.
func (l *Loop) begin() {
	if l.engine.Leases = l.Leases; l.Leases != nil {
		l.Leases.Begin(time.Now())
	}
	l.engine.Traffic = l.Traffic
	l.feed = l.Store.Follow()
	l.follow()
}

// errElapsed ends a wait because something became due.
var errElapsed = errors.New("a time has come")

// wait waits for changes, or until something becomes due without one. An elapsed timer
// counts even if the clock was set back meanwhile.
func (l *Loop) wait(ctx context.Context) error {
	at := l.engine.Next()
	if !at.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, at, errElapsed)
		defer cancel()
	}
	news, err := l.feed.Next(ctx)
	now := time.Now()
	switch {
	case errors.Is(err, errElapsed):
		if now.Before(at) {
			now = at
		}
	case err != nil:
		return err
	}
	l.receive(news)
	l.engine.Elapsed(now)
	return nil
}

// receive queues news for the engine. After a gap, the engine begins again.
func (l *Loop) receive(news state.News) {
	switch {
	case news.Resync:
		l.received = nil
		l.engine.Begin(news.Snapshot)
	case len(l.received) == 0:
		l.received = news.Changes
	case len(news.Changes) > 0:
		l.received = slices.Concat(l.received, news.Changes)
	}
}

// follow brings the engine up to date.
func (l *Loop) follow() *state.Snapshot {
	news := l.feed.Newest()
	l.receive(news)
	changes := l.received
	l.received = nil
	l.engine.Follow(news.Snapshot, changes)
	return news.Snapshot
}

// manyChanges is typical of a cluster that is being filled, where no single change is
// urgent.
const manyChanges = 64

// settle ticks until nothing is due. It tries again after a change between snapshot and
// proposal.
func (l *Loop) settle(ctx context.Context) error {
	for {
		snap := l.follow()
		now := time.Now().UTC()
		step := l.engine.Settle(now, state.NewUID)
		l.Metrics.Deferred(l.engine.Backlog())
		if step == nil {
			return nil
		}
		tx := step.Batch.Transaction(now)
		end := l.decided(ctx, snap, tx, now)
		result, err := l.Proposer.Propose(ctx, tx)
		end(result, err)
		switch {
		case err == nil:
			l.engine.Agreed(step, tx, result)
			l.Decisions.Keep(step.decided)
			if l.Pause != nil && step.Batch.Len() >= manyChanges {
				l.Pause(ctx)
			}
		case !state.MovedOn(err):
			return err
		}
	}
}

func everything(snap *state.Snapshot) Due {
	due := Due{Workloads: map[string]bool{}, Nodes: map[string]bool{}, Placement: true}
	for w := range snap.Workloads("", "") {
		due.Workloads[w.GetMetadata().GetUid()] = true
	}
	for n := range snap.Nodes("") {
		if spec.Drains(n) {
			due.Nodes[n.GetMetadata().GetUid()] = true
		}
	}
	return due
}

// placementMayChange reports whether a node may now accept what it refused before. Its measurements
// change all the time and do not count.
func placementMayChange(before, after *v1.Node) bool {
	was, is := before.GetStatus(), after.GetStatus()
	return after != nil && (before == nil || was.GetState() != is.GetState() ||
		factsChanged(before, after) || !proto.Equal(was.GetCapacity(), is.GetCapacity()) || scheduler.Pressed(was) != scheduler.Pressed(is) ||
		!slices.EqualFunc(before.GetSpec().GetTaints(), after.GetSpec().GetTaints(), func(a, b *v1.Taint) bool { return proto.Equal(a, b) }) ||
		!slices.EqualFunc(was.GetDrivers(), is.GetDrivers(), func(a, b *v1.DriverInfo) bool { return proto.Equal(a, b) }))
}

// factsChanged reports whether a node's labels, facts or link class changed: rules select
// nodes by them.
func factsChanged(before, after *v1.Node) bool {
	was, is := before.GetStatus().GetInfo(), after.GetStatus().GetInfo()
	return !maps.Equal(before.GetMetadata().GetLabels(), after.GetMetadata().GetLabels()) || spec.LinkOf(before) != spec.LinkOf(after) ||
		was.GetHostname() != is.GetHostname() || was.GetOs() != is.GetOs() || was.GetArch() != is.GetArch() ||
		was.GetKernel() != is.GetKernel() || was.GetVersion() != is.GetVersion()
}

// dueAfter returns what the changes make due.
func dueAfter(changes []state.Change) Due {
	due := Due{Workloads: map[string]bool{}, PhaseChanged: map[string]bool{}, Nodes: map[string]bool{}}
	for _, c := range changes {
		switch c.Kind {
		case state.KindWorkload:
			if c.New != nil {
				due.Workloads[c.New.GetMetadata().GetUid()] = true
			}
			before, _ := c.Old.(*v1.Workload)
			after, _ := c.New.(*v1.Workload)
			if owner := cmp.Or(before.GetStatus().GetOwnerUid(), after.GetStatus().GetOwnerUid()); owner != "" {
				due.Workloads[owner] = true // its deployment may wait for a release command
			}
			if before != nil && after != nil && !placement.SameForOthers(before, after) {
				due.Moved, due.Placement = true, true // waiting workloads may preempt it now
			}
		case state.KindDeployment:
			if d, _ := c.New.(*v1.Deployment); d != nil {
				due.Workloads[d.GetSpec().GetWorkloadUid()] = true
			}
		case state.KindCluster:
			due.Placement = due.Placement || capacityChanged(c)
		case state.KindPolicy:
			due.Placement = due.Placement || placement.ChangesPlacement(c)
		case state.KindNamespace:
			due.Placement = due.Placement || quotaChanged(c)
		case state.KindNode:
			before, _ := c.Old.(*v1.Node)
			after, _ := c.New.(*v1.Node)
			due.Placement = due.Placement || placementMayChange(before, after)
			if after == nil || (before.GetStatus().GetState() == spec.NodeOffline) != (after.GetStatus().GetState() == spec.NodeOffline) || departuresChanged(before, after) {
				due.Nodes[cmp.Or(after.GetMetadata().GetUid(), before.GetMetadata().GetUid())] = true
			}
		case state.KindReplica:
			before, _ := c.Old.(*v1.Replica)
			after, _ := c.New.(*v1.Replica)
			if was, is := before.GetStatus(), after.GetStatus(); was.GetPhase() != is.GetPhase() || was.GetRestarts() != is.GetRestarts() ||
				spec.Serves(before) != spec.Serves(after) || spec.Steady(before) != spec.Steady(after) {
				r := after
				if r == nil {
					r = before
				}
				due.PhaseChanged[r.GetSpec().GetWorkloadUid()] = true
			}
			due.Moved = due.Moved || after != nil && (before.GetSpec().GetNodeUid() != after.GetSpec().GetNodeUid() ||
				!spec.Serves(before) && spec.Serves(after))
			if before != nil && spec.Live(before.GetStatus().GetPhase()) && (after == nil || spec.Ended(after.GetStatus().GetPhase())) {
				due.Placement = true // it has made room
			}
			if had := before.GetSpec().GetReservedNodeUid() + before.GetSpec().GetSucceeds(); had != "" && had != after.GetSpec().GetReservedNodeUid()+after.GetSpec().GetSucceeds() {
				due.Placement = true // the room reserved for it may be free
			}
		}
	}
	return due
}
