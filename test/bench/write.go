package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	writeClients = 64
	// Many short rounds: temporary load of others affects all loads alike.
	writeRounds = 15
	writeTime   = 700 * time.Millisecond
	writeWarm   = time.Second
)

// load is something that all clients do as fast as they can.
type load struct {
	name string
	call func(ctx context.Context, client int) error
	rate sample
}

// measureWrites lets 64 clients, each with its own connection, do one thing at a time, in
// turns.
func measureWrites(ctx context.Context, l *lab) (result, error) {
	c, err := l.newCloud(ctx, "write")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	image, err := c.pushed(ctx)
	if err != nil {
		return result{}, err
	}
	clients, hangUp, err := c.connectMany(ctx, writeClients)
	if err != nil {
		return result{}, err
	}
	defer hangUp()
	bare, err := openBareRaft(ctx, filepath.Join(l.dir, "bare-raft"))
	if err != nil {
		return result{}, err
	}
	updated := &load{name: "labels of a workload updated", call: updateWorkload(clients, image)}
	return l.compareWrites(ctx, clients, image, bare, updated)
}

// agreement is raft without anything around it.
type agreement interface {
	name() string
	write() error
	close() error
}

// compareWrites measures the creation of workloads, beside the empty call and the bare
// agreement, which it closes, and further loads.
func (l *lab) compareWrites(ctx context.Context, clients []caller, image string, bare agreement, more ...*load) (result, error) {
	defer func() {
		if err := bare.close(); err != nil {
			l.say("close %s: %v", bare.name(), err)
		}
	}()
	empty := &load{name: "empty authenticated call", call: emptyCall(clients)}
	agreed := &load{name: bare.name(), call: func(context.Context, int) error { return bare.write() }}
	created := &load{name: "workload created", call: createWorkload(clients, image)}
	all := append([]*load{empty, agreed, created}, more...)
	if err := takeTurns(ctx, all); err != nil {
		return result{}, err
	}
	r := result{value: created.rate.median(), floor: inSeries(empty.rate.median(), agreed.rate.median())}
	for _, one := range all {
		r.notes = append(r.notes, one.rate.spread(one.name))
	}
	return r, nil
}

// inSeries is how many times a second two things can be done one after the other.
func inSeries(a, b float64) float64 { return 1 / (1/a + 1/b) }

// takeTurns measures every load once in each round.
func takeTurns(ctx context.Context, loads []*load) error {
	for _, one := range loads {
		if _, err := one.run(ctx, writeWarm); err != nil {
			return err
		}
	}
	for range writeRounds {
		for _, one := range loads {
			rate, err := one.run(ctx, writeTime)
			if err != nil {
				return err
			}
			one.rate = append(one.rate, rate)
		}
	}
	return nil
}

// run returns how many calls a second all clients together finish.
func (o *load) run(ctx context.Context, length time.Duration) (float64, error) {
	var finished atomic.Int64
	errs := make([]error, writeClients)
	var clients sync.WaitGroup
	began := time.Now()
	for client := range writeClients {
		clients.Go(func() {
			for time.Since(began) < length && errs[client] == nil {
				errs[client] = o.call(ctx, client)
				finished.Add(1)
			}
		})
	}
	clients.Wait()
	rate := float64(finished.Load()) / time.Since(began).Seconds()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("%s: %w", o.name, err)
	}
	return rate, nil
}

func emptyCall(clients []caller) func(context.Context, int) error {
	return func(ctx context.Context, client int) error {
		_, err := clients[client].Cluster().WhoAmI(ctx, &v1.WhoAmIRequest{})
		return err
	}
}

// createWorkload creates one after the other, without replicas: only the write is measured.
func createWorkload(clients []caller, image string) func(context.Context, int) error {
	var made atomic.Int64
	return func(ctx context.Context, client int) error {
		request := &v1.CreateWorkloadRequest{Workload: workload(fmt.Sprintf("write-%d", made.Add(1)), image, 0)}
		_, err := clients[client].Workloads().CreateWorkload(ctx, request)
		return err
	}
}

// updateWorkload changes a label of a workload that each client has for itself.
func updateWorkload(clients []caller, image string) func(context.Context, int) error {
	current := make([]*v1.Workload, len(clients))
	return func(ctx context.Context, client int) (err error) {
		api := clients[client].Workloads()
		if current[client] == nil {
			request := &v1.CreateWorkloadRequest{Workload: workload(fmt.Sprintf("update-%d", client), image, 0)}
			current[client], err = api.CreateWorkload(ctx, request)
			return err
		}
		next := proto.CloneOf(current[client])
		next.Status = nil
		next.Metadata.Labels["version"] = strconv.FormatUint(next.GetMetadata().GetVersion(), 10)
		current[client], err = api.UpdateWorkload(ctx, &v1.UpdateWorkloadRequest{Workload: next})
		return err
	}
}
