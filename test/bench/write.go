package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

const (
	writeClients = 64
	writeRounds  = 5
	writeTime    = 2 * time.Second
	writeWarm    = time.Second
)

// measureWrites lets 64 clients, each with a connection of its own, do one of
// three things at a time, in turns.
func measureWrites(ctx context.Context, l *lab) (result, error) {
	c, err := l.newCloud(ctx, "write")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	clients, err := c.dialMany(ctx, writeClients)
	defer closeAll(clients)
	if err != nil {
		return result{}, err
	}
	image, err := c.push(ctx, clients[0])
	if err != nil {
		return result{}, err
	}
	bare, err := openBareRaft(filepath.Join(l.dir, "bare-raft"))
	if err != nil {
		return result{}, err
	}
	defer func() {
		if err := bare.close(); err != nil {
			l.say("close bare raft: %v", err)
		}
	}()
	var made atomic.Int64
	kinds := []struct {
		name string
		call func(ctx context.Context, worker int) error
		rate sample
	}{
		{name: "empty authenticated call", call: func(ctx context.Context, worker int) error {
			_, err := clients[worker].Cluster().WhoAmI(ctx, &v1.WhoAmIRequest{})
			return err
		}},
		{name: "bare raft", call: func(context.Context, int) error { return bare.write() }},
		{name: "workload created", call: func(ctx context.Context, worker int) error {
			name := fmt.Sprintf("write-%d", made.Add(1))
			_, err := clients[worker].Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: workload(name, image, 0)})
			return err
		}},
	}
	for round := range writeRounds {
		for i := range kinds {
			kind := &kinds[i]
			if round == 0 {
				if _, err := rate(ctx, writeWarm, kind.call); err != nil {
					return result{}, fmt.Errorf("%s: %w", kind.name, err)
				}
			}
			measured, err := rate(ctx, writeTime, kind.call)
			if err != nil {
				return result{}, fmt.Errorf("%s: %w", kind.name, err)
			}
			kind.rate = append(kind.rate, measured)
		}
	}
	r := result{floor: min(kinds[0].rate.median(), kinds[1].rate.median()), value: kinds[2].rate.median()}
	for _, kind := range kinds {
		r.notes = append(r.notes, kind.rate.spread(kind.name))
	}
	return r, nil
}

// rate is how many calls a second all workers together finish.
func rate(ctx context.Context, length time.Duration, call func(context.Context, int) error) (float64, error) {
	var finished atomic.Int64
	errs := make([]error, writeClients)
	var workers sync.WaitGroup
	began := time.Now()
	for worker := range writeClients {
		workers.Go(func() {
			for time.Since(began) < length && errs[worker] == nil {
				errs[worker] = call(ctx, worker)
				finished.Add(1)
			}
		})
	}
	workers.Wait()
	return float64(finished.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}

func (c *cloud) dialMany(ctx context.Context, n int) ([]*client.Client, error) {
	var clients []*client.Client
	for range n {
		one, err := c.dial(ctx)
		if err != nil {
			return clients, err
		}
		clients = append(clients, one)
	}
	return clients, nil
}

func closeAll(clients []*client.Client) {
	for _, one := range clients {
		_ = one.Close()
	}
}
