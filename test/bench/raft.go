package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// The same settings as the server's: entries that share a disk write, the size of the log's
// files, and about the size of an entry.
const (
	raftBatch   = 256
	raftSegment = 16 << 20
	raftEntry   = 1 << 10
)

// bareRaft is hashicorp/raft alone with itself: it agrees on entries, writes them to disk
// and does nothing with them.
type bareRaft struct {
	raft *raft.Raft
	log  *wal.WAL
	data []byte
}

func openBareRaft(ctx context.Context, dir string) (_ *bareRaft, err error) {
	logs := filepath.Join(dir, "log")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	quiet := hclog.NewNullLogger()
	b := &bareRaft{data: make([]byte, raftEntry)}
	if b.log, err = wal.Open(logs, wal.WithLogger(quiet), wal.WithSegmentSize(raftSegment)); err != nil {
		return nil, fmt.Errorf("open a bare log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start bare raft: %w", err), b.log.Close())
		}
	}()
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, 1, quiet)
	if err != nil {
		return nil, err
	}
	leading := make(chan bool, 1)
	config := raft.DefaultConfig()
	config.LocalID = "bare"
	config.Logger = quiet
	config.MaxAppendEntries = raftBatch
	config.BatchApplyCh = true
	config.NoLegacyTelemetry = true
	config.NotifyCh = leading
	address, transport := raft.NewInmemTransport("")
	alone := raft.Configuration{Servers: []raft.Server{{ID: config.LocalID, Address: address}}}
	if err := raft.BootstrapCluster(config, b.log, b.log, snapshots, transport, alone); err != nil {
		return nil, err
	}
	if b.raft, err = raft.NewRaft(config, forgetful{}, b.log, b.log, snapshots, transport); err != nil {
		return nil, err
	}
	select {
	case <-leading: // alone, it elects itself
		return b, nil
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), b.raft.Shutdown().Error())
	}
}

func (b *bareRaft) name() string { return "bare raft" }

// write returns when the entry is on disk and applied.
func (b *bareRaft) write() error { return b.raft.Apply(b.data, 0).Error() }

func (b *bareRaft) close() error {
	return errors.Join(b.raft.Shutdown().Error(), b.log.Close())
}

// forgetful is a state machine without state.
type forgetful struct{}

func (forgetful) Apply(*raft.Log) any                  { return nil }
func (forgetful) ApplyBatch(logs []*raft.Log) []any    { return make([]any, len(logs)) }
func (forgetful) Snapshot() (raft.FSMSnapshot, error)  { return forgetful{}, nil }
func (forgetful) Restore(saved io.ReadCloser) error    { return saved.Close() }
func (forgetful) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (forgetful) Release()                             {}
