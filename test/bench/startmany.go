package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent"
)

const (
	manyReplicas = 100
	manyTimes    = 5
	manyWarm     = 1
)

// measureStartMany alternates between a workload of many replicas and as many containers of
// the containerd client, with the same number of parallel starts as the agent.
func measureStartMany(ctx context.Context, l *lab) (_ result, err error) {
	c, err := l.newStage(ctx, "many")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	if _, err := startWorkload(ctx, c.api, "first", c.image); err != nil { // brings the image to the node
		return result{}, err
	}
	if err := removeWorkload(ctx, c.api, "first"); err != nil {
		return result{}, err
	}
	stock, err := c.openStock(ctx)
	if err != nil {
		return result{}, err
	}
	defer stock.close()
	bridge, err := newBareBridge(filepath.Join(l.dir, "netns"))
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, bridge.close()) }()
	var through, direct sample
	for n := range manyWarm + manyTimes {
		name := fmt.Sprintf("many-%d", n)
		took, err := startThis(ctx, c.api, &v1.Workload{
			Metadata: &v1.Metadata{Name: name},
			Spec:     &v1.WorkloadSpec{Image: c.image, Replicas: proto.Int32(manyReplicas)},
		})
		if err := errors.Join(err, removeWorkload(ctx, c.api, name)); err != nil {
			return result{}, err
		}
		floor, err := stock.startMany(ctx, bridge, manyReplicas)
		if err != nil {
			return result{}, err
		}
		if n >= manyWarm {
			through, direct = append(through, took.Seconds()), append(direct, floor.Seconds())
		}
	}
	return result{
		value: through.median(), floor: direct.median(),
		notes: []string{through.spread("through the API"), direct.spread("containerd client, stock shim")},
	}, nil
}

// startMany starts containers, each on the bridge, and removes them again.
func (s *stock) startMany(ctx context.Context, bridge *bareBridge, n int) (time.Duration, error) {
	errs := make([]error, n)
	undo := make([]func() error, n)
	var all sync.WaitGroup
	places := make(chan struct{}, agent.StartsAtOnce())
	began := time.Now()
	for i := range n {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			undo[i], errs[i] = s.startOn(ctx, bridge, i)
		})
	}
	all.Wait()
	took := time.Since(began)
	for i := range n {
		if undo[i] != nil {
			errs = append(errs, undo[i]())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("start containers directly: %w", err)
	}
	return took, nil
}

func (s *stock) startOn(ctx context.Context, bridge *bareBridge, i int) (func() error, error) {
	space, err := bridge.join(i)
	if err != nil {
		return nil, err
	}
	_, remove, err := s.start(ctx, fmt.Sprintf("many-%d", i), withNetwork(space))
	if err != nil {
		return func() error { return bridge.leave(i) }, err
	}
	return func() error { return errors.Join(remove(), bridge.leave(i)) }, nil
}
