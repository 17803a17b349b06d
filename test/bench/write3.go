package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/cloudless/cloudless/client"
)

// measureWrites3 lets 64 clients, spread over three servers, do one thing at a
// time, in turns.
func measureWrites3(ctx context.Context, l *lab) (result, error) {
	t, err := l.newTrio(ctx, "write3")
	if err != nil {
		return result{}, err
	}
	defer t.close()
	image, err := t.pushed(ctx)
	if err != nil {
		return result{}, err
	}
	clients, hangUp, err := t.dialAll(ctx, writeClients)
	if err != nil {
		return result{}, err
	}
	defer hangUp()
	bare, err := openBareTrio(ctx, filepath.Join(l.dir, "bare-trio"))
	if err != nil {
		return result{}, err
	}
	return l.compareWrites(ctx, clients, image, bare)
}

// dialAll spreads clients over the servers. Package client finds the leader and calls it
// directly.
func (t *trio) dialAll(ctx context.Context, n int) (callers []caller, hangUp func(), err error) {
	var all []*client.Client
	hangUp = func() {
		for _, one := range all {
			_ = one.Close()
		}
	}
	where, err := t.context()
	if err != nil {
		return nil, nil, err
	}
	members := slices.Collect(maps.Values(t.members))
	for i := range n {
		where.Addresses = []string{members[i%len(members)].address}
		one, err := client.Dial(ctx, where)
		if err != nil {
			hangUp()
			return nil, nil, err
		}
		all, callers = append(all, one), append(callers, one)
	}
	return callers, hangUp, nil
}

// bareTrio is three hashicorp/rafts in this process, over loopback.
type bareTrio struct {
	rafts []*raft.Raft
	logs  []*wal.WAL
	data  []byte
}

func openBareTrio(ctx context.Context, dir string) (_ *bareTrio, err error) {
	b := &bareTrio{data: make([]byte, raftEntry)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start three bare rafts: %w", err), b.close())
		}
	}()
	quiet := hclog.NewNullLogger()
	var configuration raft.Configuration
	var transports []*raft.NetworkTransport
	for i := range 3 {
		transport, err := raft.NewTCPTransportWithConfig("127.0.0.1:0", nil, &raft.NetworkTransportConfig{MaxPool: 3, Timeout: 5 * time.Second, Logger: quiet})
		if err != nil {
			return nil, err
		}
		transports = append(transports, transport)
		configuration.Servers = append(configuration.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(i)), Address: transport.LocalAddr()})
	}
	for i, transport := range transports {
		if err := b.add(filepath.Join(dir, fmt.Sprint(i)), raft.ServerID(fmt.Sprint(i)), transport, configuration, quiet); err != nil {
			return nil, err
		}
	}
	for {
		for i, r := range b.rafts {
			if r.State() == raft.Leader {
				b.rafts[0], b.rafts[i] = b.rafts[i], b.rafts[0]
				return b, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (b *bareTrio) add(dir string, id raft.ServerID, transport *raft.NetworkTransport, configuration raft.Configuration, quiet hclog.Logger) error {
	logs := filepath.Join(dir, "log")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return err
	}
	log, err := wal.Open(logs, wal.WithLogger(quiet), wal.WithSegmentSize(raftSegment))
	if err != nil {
		return err
	}
	b.logs = append(b.logs, log)
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, 1, quiet)
	if err != nil {
		return err
	}
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = id, quiet
	config.MaxAppendEntries, config.BatchApplyCh, config.NoLegacyTelemetry = raftBatch, true, true
	if err := raft.BootstrapCluster(config, log, log, snapshots, transport, configuration); err != nil {
		return err
	}
	r, err := raft.NewRaft(config, forgetful{}, log, log, snapshots, transport)
	if err == nil {
		b.rafts = append(b.rafts, r)
	}
	return err
}

func (b *bareTrio) name() string { return "three bare rafts" }

// write returns when the entry is on the disks of a majority and applied.
func (b *bareTrio) write() error { return b.rafts[0].Apply(b.data, 0).Error() }

func (b *bareTrio) close() error {
	var errs []error
	for _, r := range b.rafts {
		errs = append(errs, r.Shutdown().Error())
	}
	for _, log := range b.logs {
		errs = append(errs, log.Close())
	}
	return errors.Join(errs...)
}
