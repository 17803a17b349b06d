package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	startTimes = 20
	startWarm  = 3 // starts of each kind that are not counted
)

// measureStart alternates between the API and the containerd client.
func measureStart(ctx context.Context, l *lab) (result, error) {
	c, err := l.newStage(ctx, "start")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	ours := func(n int) (float64, error) {
		name := fmt.Sprintf("start-%d", n)
		took, err := startWorkload(ctx, c.api, name, c.image)
		return milliseconds(took), errors.Join(err, removeWorkload(ctx, c.api, name))
	}
	if _, err := ours(-1); err != nil { // brings the image to the node
		return result{}, err
	}
	stock, err := c.openStock(ctx)
	if err != nil {
		return result{}, err
	}
	defer stock.close()
	var through, direct sample
	for n := range startWarm + startTimes {
		took, err := ours(n)
		if err != nil {
			return result{}, err
		}
		floor, err := stock.startAndRemove(ctx, fmt.Sprintf("start-%d", n))
		if err != nil {
			return result{}, err
		}
		if n >= startWarm {
			through, direct = append(through, took), append(direct, floor)
		}
	}
	return result{
		value: through.median(), floor: direct.median(),
		notes: []string{through.spread("through the API"), direct.spread("containerd client, stock shim")},
	}, nil
}

// startWorkload creates a workload of one replica and waits until it runs.
func startWorkload(ctx context.Context, api *client.Client, name, image string) (time.Duration, error) {
	return startThis(ctx, api, workload(name, image, 1))
}

// startThis creates a workload and waits until an already open watch shows that all of its
// programs run. Whether they serve is another question: a program without ports has to run for
// a while until then.
func startThis(ctx context.Context, api *client.Client, w *v1.Workload) (time.Duration, error) {
	return startUntil(ctx, api, w, func(s *v1.ReplicaStatus) bool { return s.GetPhase() == spec.PhaseRunning })
}

// startUntil creates a workload and waits until an already open watch shows that all of its replicas are as wanted.
func startUntil(ctx context.Context, api *client.Client, w *v1.Workload, reached func(*v1.ReplicaStatus) bool) (time.Duration, error) {
	name := w.GetMetadata().GetName()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := api.Workloads().WatchReplicas(ctx, &v1.WatchReplicasRequest{Workload: name})
	if err != nil {
		return 0, err
	}
	if _, err := await(watch.Recv, func(c *v1.ReplicaChange) bool { return c.GetChange() == "synced" }); err != nil {
		return 0, fmt.Errorf("watch replicas of %s: %w", name, err)
	}
	began := time.Now()
	_, err = api.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: w})
	if err != nil {
		return 0, err
	}
	running, want := map[string]bool{}, max(1, int(w.GetSpec().GetReplicas()))
	last, err := await(watch.Recv, func(c *v1.ReplicaChange) bool {
		status := c.GetReplica().GetStatus()
		if reached(status) {
			running[c.GetReplica().GetMetadata().GetUid()] = true
		}
		return status.GetPhase() == spec.PhaseFailed || len(running) == want
	})
	if err != nil {
		return 0, fmt.Errorf("watch replicas of %s: %w", name, err)
	}
	took := time.Since(began)
	if status := last.GetReplica().GetStatus(); status.GetPhase() != spec.PhaseRunning {
		return 0, fmt.Errorf("replica %s is %s: %s", last.GetReplica().GetMetadata().GetName(), status.GetPhase(), status.GetReason())
	}
	return took, nil
}

// await receives until one matches.
func await[T any](receive func() (T, error), right func(T) bool) (T, error) {
	for {
		one, err := receive()
		if err != nil || right(one) {
			return one, err
		}
	}
}

func removeWorkload(ctx context.Context, api *client.Client, name string) error {
	if _, err := api.Workloads().DeleteWorkload(ctx, &v1.DeleteWorkloadRequest{Name: name}); err != nil {
		return err
	}
	_, err := api.WaitWorkload(ctx, "default", name, func(w *v1.Workload) (bool, error) { return w == nil, nil })
	return err
}

// workload has its own network namespace, as the containers of the containerd client have
// by default.
func workload(name, image string, replicas int32) *v1.Workload {
	return &v1.Workload{
		Metadata: &v1.Metadata{Name: name, Labels: map[string]string{"app": "bench"}},
		Spec:     &v1.WorkloadSpec{Image: image, Replicas: proto.Int32(replicas), Network: "none"},
	}
}
