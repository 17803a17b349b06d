package consensus_test

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/internal/consensus"
)

// writers is the number of clients of both benchmarks.
const writers = 64

// together runs f b.N times in all, from as many goroutines as there are writers.
func together(b *testing.B, f func(n int) error) {
	b.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	b.ResetTimer()
	for range writers {
		group.Go(func() {
			for n := int(next.Add(1)); n <= b.N; n = int(next.Add(1)) {
				if err := f(n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}

func BenchmarkPropose(b *testing.B) {
	c := open(b, lone(b.TempDir()))
	together(b, func(n int) error {
		_, err := c.Propose(b.Context(), numbered(n))
		return err
	})
}

func BenchmarkRead(b *testing.B) {
	c := open(b, lone(b.TempDir()))
	together(b, func(int) error {
		_, err := c.Read(b.Context())
		return err
	})
}

// BenchmarkBareRaft is the baseline of BenchmarkPropose: entries of the same size in the same log store, and a state
// machine that does nothing.
func BenchmarkBareRaft(b *testing.B) {
	dir := b.TempDir()
	log, err := wal.Open(dir, wal.WithLogger(consensus.Silent()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = log.Close() })
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = "server-1", consensus.Silent()
	config.MaxAppendEntries, config.BatchApplyCh = 256, true
	_, transport := raft.NewInmemTransport("")
	snapshots := raft.NewInmemSnapshotStore()
	alone := raft.Configuration{Servers: []raft.Server{{ID: config.LocalID, Address: transport.LocalAddr()}}}
	if err := raft.BootstrapCluster(config, log, log, snapshots, transport, alone); err != nil {
		b.Fatal(err)
	}
	bare, err := raft.NewRaft(config, nothing{}, log, log, snapshots, transport)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = bare.Shutdown().Error() })
	<-bare.LeaderCh()
	data, err := proto.Marshal(numbered(1))
	if err != nil {
		b.Fatal(err)
	}
	together(b, func(int) error { return bare.Apply(data, 0).Error() })
}

type nothing struct{}

func (nothing) Apply(*raft.Log) any                 { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error) { return nothing{}, nil }
func (nothing) Restore(io.ReadCloser) error         { return nil }
func (nothing) Persist(sink raft.SnapshotSink) error {
	return sink.Close()
}
func (nothing) Release() {}

// BenchmarkOpen is the time from the start of a server with an existing log to its leadership.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	c := open(b, lone(dir))
	propose(b, c, 0, 1000)
	closed(b, c)
	for b.Loop() {
		c, err := consensus.Open(b.Context(), lone(dir))
		if err != nil {
			b.Fatal(err)
		}
		if err := c.WaitLeader(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		closed(b, c)
		b.StartTimer()
	}
}
