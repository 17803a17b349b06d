package client

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Update is one event of Follow.
type Update struct {
	// Workload, Replica or Deployment is the current object or, if Removed, the removed one.
	Workload   *cloudlessv1.Workload
	Replica    *cloudlessv1.Replica
	Deployment *cloudlessv1.Deployment
	Removed    bool
	// Reset says to forget everything: all objects come again.
	Reset bool
	// Synced says that all existing objects have come.
	Synced bool
}

// Follow calls see with the workloads of a namespace, their replicas and deployments, and with every change after that, until ctx
// ends or see returns an error. With a name it follows only that workload. Calls of see are not concurrent. Follow
// survives short absences of the cluster, and starts over after them.
func (c *Client) Follow(ctx context.Context, namespace, name string, see func(Update) error) error {
	return again(ctx, see, func() error { return c.followOnce(ctx, namespace, name, see) })
}

// FollowReplicasOn is Follow for the replicas on one node, of any workload.
func (c *Client) FollowReplicasOn(ctx context.Context, node string, see func(Update) error) error {
	return again(ctx, see, func() error {
		g, ctx := errgroup.WithContext(ctx)
		updates := make(chan Update)
		g.Go(func() error { return c.watchReplicas(ctx, &cloudlessv1.WatchReplicasRequest{Node: node}, updates) })
		g.Go(func() error { return collect(ctx, 1, updates, see) })
		return g.Wait()
	})
}

// again follows until something else than a short absence of the cluster ends it.
func again(ctx context.Context, see func(Update) error, follow func() error) error {
	for {
		err := see(Update{Reset: true})
		if err == nil {
			err = follow()
		}
		if status.Code(err) != codes.Unavailable {
			return err
		}
		select {
		case <-time.After(rewatchPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *Client) followOnce(ctx context.Context, namespace, name string, see func(Update) error) error {
	g, ctx := errgroup.WithContext(ctx)
	updates := make(chan Update)
	selection := &cloudlessv1.Selection{Namespace: namespace}
	g.Go(func() error {
		stream, err := c.Workloads().WatchWorkloads(ctx, &cloudlessv1.WatchWorkloadsRequest{Selection: selection, Name: name}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		return pump(ctx, stream, updates, func(change *cloudlessv1.WorkloadChange) Update {
			return Update{Workload: change.GetWorkload(), Removed: change.GetChange() == "removed", Synced: change.GetChange() == "synced"}
		})
	})
	g.Go(func() error {
		return c.watchReplicas(ctx, &cloudlessv1.WatchReplicasRequest{Selection: selection, Workload: name}, updates)
	})
	g.Go(func() error {
		stream, err := c.Deployments().WatchDeployments(ctx, &cloudlessv1.WatchDeploymentsRequest{Selection: selection, Workload: name}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		err = pump(ctx, stream, updates, func(change *cloudlessv1.DeploymentChange) Update {
			return Update{Deployment: change.GetDeployment(), Removed: change.GetChange() == "removed", Synced: change.GetChange() == "synced"}
		})
		if status.Code(err) == codes.Unimplemented { // a server of an older release has no deployments
			return pass(ctx, updates, Update{Synced: true})
		}
		return err
	})
	g.Go(func() error { return collect(ctx, 3, updates, see) })
	return g.Wait()
}

func (c *Client) watchReplicas(ctx context.Context, request *cloudlessv1.WatchReplicasRequest, updates chan<- Update) error {
	stream, err := c.Workloads().WatchReplicas(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	return pump(ctx, stream, updates, func(change *cloudlessv1.ReplicaChange) Update {
		return Update{Replica: change.GetReplica(), Removed: change.GetChange() == "removed", Synced: change.GetChange() == "synced"}
	})
}

// pump passes on the events of a watch. A watch never ends by itself.
func pump[T any](ctx context.Context, stream grpc.ServerStreamingClient[T], to chan<- Update, read func(*T) Update) error {
	for {
		change, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the watch ended")
		}
		if err != nil {
			return err
		}
		if err := pass(ctx, to, read(change)); err != nil {
			return err
		}
	}
}

func pass(ctx context.Context, to chan<- Update, update Update) error {
	select {
	case to <- update:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// collect calls see with one update after the other, and with one Synced for all watches.
func collect(ctx context.Context, watches int, updates <-chan Update, see func(Update) error) error {
	unsynced := watches
	for {
		var update Update
		select {
		case update = <-updates:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if update.Synced {
			if unsynced--; unsynced > 0 {
				continue
			}
			update = Update{Synced: true}
		}
		if err := see(update); err != nil {
			return err
		}
	}
}
