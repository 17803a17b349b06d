package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	massNodes    = 100
	massReplicas = 1000
	massLost     = 20
	massTimes    = 5
)

var massMeasurement = measurement{
	name: "mass_loss", unit: "s", measure: measureMassLoss, target: under(2),
	what:  "1,000 replicas on 100 simulated nodes: from losing 20 nodes at once, with broken connections and nothing left at their addresses, to the last replacement of their 200 replicas acknowledged as a watch of the API sees it, median of 5",
	floor: "none",
}

// measureMassLoss loses nodes several times, each time with a new server and new nodes.
func measureMassLoss(ctx context.Context, l *lab) (result, error) {
	var took sample
	for n := range massTimes {
		err := l.withServer(ctx, fmt.Sprintf("mass-%d", n), func(c *cloud, y *yard, conn *grpc.ClientConn) error {
			one, err := c.massLoss(ctx, y, conn)
			took = append(took, one.Seconds())
			return err
		})
		if err != nil {
			return result{}, err
		}
	}
	return result{value: took.median(), notes: []string{took.spread("loss to the last replacement acknowledged in s")}}, nil
}

func (c *cloud) massLoss(ctx context.Context, y *yard, conn *grpc.ClientConn) (took time.Duration, err error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	f, err := c.startFleet(ctx, fleetPlan{nodes: massNodes, args: []string{"--sources", fleetSources}, inside: y.inside}, conn)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.end()) }()
	if err := f.ready(ctx, conn); err != nil {
		return 0, err
	}
	workloads := v1.NewWorkloadServiceClient(conn)
	watch, err := workloads.WatchReplicas(watching, &v1.WatchReplicasRequest{Workload: lostApp})
	if err != nil {
		return 0, err
	}
	if err := y.inside(func() error { return c.run(ctx, "image", "push", "sleeper:1", c.lab.sleeper) }); err != nil {
		return 0, err
	}
	if _, err := workloads.CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: workload(lostApp, "sleeper:1", massReplicas)}); err != nil {
		return 0, err
	}
	serving := map[string]string{} // nodes of replicas
	take := func(change *v1.ReplicaChange) bool {
		uid := change.GetReplica().GetMetadata().GetUid()
		switch {
		case change.GetChange() == "removed" || !spec.Serves(change.GetReplica()):
			delete(serving, uid)
		default:
			serving[uid] = change.GetReplica().GetSpec().GetNodeUid()
		}
		return len(serving) == massReplicas
	}
	if _, err := await(watch.Recv, take); err != nil {
		return 0, err
	}
	began := time.Now()
	gone, err := f.order(ctx, "kill", massLost)
	if err != nil {
		return 0, err
	}
	lost, addresses := map[string]bool{}, []string{}
	for _, n := range gone {
		lost[n.UID] = true
		addresses = append(addresses, n.Address)
	}
	if err := y.vanish(ctx, addresses); err != nil {
		return 0, err
	}
	before := len(serving)
	for uid, node := range serving {
		if lost[node] {
			delete(serving, uid)
		}
	}
	if missing := before - len(serving); missing != massReplicas/massNodes*massLost {
		return 0, fmt.Errorf("the lost nodes had %d replicas", missing)
	}
	_, err = await(watch.Recv, func(change *v1.ReplicaChange) bool {
		return !lost[change.GetReplica().GetSpec().GetNodeUid()] && take(change)
	})
	return time.Since(began), err
}
