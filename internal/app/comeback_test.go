package app

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/must"
)

// segment rewrites the log of a server that does not run.
func segment(t *testing.T, folder string, change func(data []byte)) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(folder, "server", "raft", "log", "*.wal"))
	must.Succeed(t, err)
	if len(all) != 1 {
		t.Fatalf("the segments are %v", all)
	}
	data, err := os.ReadFile(all[0])
	must.Succeed(t, err)
	change(data)
	must.Succeed(t, os.WriteFile(all[0], data, 0o600))
}

// TestTornLogOfOneServer: the power fails while a server writes. The server drops entries that were never acknowledged,
// and catches up.
func TestTornLogOfOneServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	torn := s.join("s3")
	must.Succeed(t, s.write(s.client, "before"))
	s.stop("s3")
	segment(t, torn.path, func(data []byte) {
		at := (len(bytes.TrimRight(data, "\x00")) + 7) / 8 * 8
		copy(data[at:], bytes.Repeat([]byte{1, 0, 0, 0, 40, 0, 0, 0, 'x', 'y', 'z', 'x'}, 10))
	})
	must.Succeed(t, s.write(s.client, "meanwhile"))
	s.start("s3", torn.path, torn.address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool { return all["s3"].GetHealthy() && all["s3"].GetVoter() })
	if all := tokenNames(t, s.at(s.running["s3"]), s.ctx); !slices.Contains(all, "before") || !slices.Contains(all, "meanwhile") {
		t.Errorf("it knows %v", all)
	}
}

// TestDamagedLogOfOneServer: a server that has lost acknowledged entries refuses to start. The others continue, and the
// commands in the error make the machine a server again.
func TestDamagedLogOfOneServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	damaged := s.join("s3")
	must.Succeed(t, s.write(s.client, "before"))
	s.stop("s3")
	segment(t, damaged.path, func(data []byte) {
		at := bytes.Index(data, []byte("s2"))
		if at < 0 {
			t.Fatal("the entry is not there")
		}
		data[at] ^= 1
	})
	err := runServer(s.ctx, local.ServerOptions{
		Process: local.Process{DataDir: damaged.path, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) { t.Error("it is ready") }},
		Reach:   local.Reach{APIAddr: damaged.address},
	})
	for _, want := range []string{"the log is damaged", "cloudless server rm", "cloudless down --purge", "join again with a new token"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it ends with %v, and does not say %q", err, want)
		}
	}
	must.Succeed(t, s.write(s.client, "meanwhile"))
	_, err = s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s3"})
	must.Succeed(t, err)
	s.join("s3-again")
	if all := tokenNames(t, s.at(s.running["s3-again"]), s.ctx); !slices.Contains(all, "before") || !slices.Contains(all, "meanwhile") {
		t.Errorf("it knows %v", all)
	}
}

// TestServerBackAfterAWeek: while a server was away, the others truncated their logs beyond its last entry, one of them
// was replaced, and the other one moved. The others find it, send it a snapshot, and it votes again.
func TestServerBackAfterAWeek(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	away := s.join("s3")
	must.Succeed(t, s.write(s.client, "before"))
	s.stop("s3")

	s.maxLogGrowth = 1 << 20 // for servers that start from now on
	s.join("s4")
	if s.leader() == "s1" {
		_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{})
		must.Succeed(t, err)
	}
	// A new leader must first check the health of the others itself.
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s2"].GetHealthy() && all["s4"].GetHealthy() && all["s2"].GetVoter() && all["s4"].GetVoter()
	})
	_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s1"})
	must.Succeed(t, err)
	s.removed("s1")
	moved := s.running["s2"]
	s.stop("s2")
	address := freeAddress(t)
	s.start("s2", moved.path, address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s2"].GetHealthy() && all["s2"].GetAddress() == address
	})
	missed := s.writeUntilLogsAreShort("s2", "s4")
	if all := snapshotsIn(t, away.path); slices.Max(append(all, 0)) >= missed {
		t.Fatalf("the server that is away has the snapshots %v already", all)
	}

	s.maxLogGrowth = 0 // it takes no snapshot by itself
	s.start("s3", away.path, away.address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s3"].GetHealthy() && all["s3"].GetVoter() && all["s1"] == nil
	})
	if all := snapshotsIn(t, away.path); slices.Max(append(all, 0)) < missed {
		t.Errorf("it has the snapshots %v, none of which can have brought it the entry %d", all, missed)
	}
	after := s.at(s.running["s3"])
	if all := tokenNames(t, after, s.ctx); !slices.Contains(all, "before") || !slices.Contains(all, "meanwhile") {
		t.Errorf("it knows %v", all)
	}
	want, err := s.client.Workloads().GetWorkload(s.ctx, &v1.GetWorkloadRequest{Name: "large"})
	must.Succeed(t, err)
	got, err := after.Workloads().GetWorkload(s.ctx, &v1.GetWorkloadRequest{Name: "large"})
	must.Succeed(t, err)
	if got.GetMetadata().GetVersion() != want.GetMetadata().GetVersion() {
		t.Errorf("it knows version %d of the workload, the others %d", got.GetMetadata().GetVersion(), want.GetMetadata().GetVersion())
	}
}

// writeUntilLogsAreShort writes until the logs of these servers no longer hold the first entry that it has written, and
// returns the index of that.
func (s *testCluster) writeUntilLogsAreShort(servers ...string) (first uint64) {
	s.t.Helper()
	must.Succeed(s.t, s.write(s.client, "meanwhile"))
	s.pushTo("large:1")
	large := &v1.Workload{Metadata: &v1.Metadata{Name: "large"}, Spec: &v1.WorkloadSpec{Image: "large:1", Replicas: new(int32)}}
	large, err := s.client.Workloads().CreateWorkload(s.ctx, &v1.CreateWorkloadRequest{Workload: large})
	must.Succeed(s.t, err)
	first = large.GetMetadata().GetVersion()
	filler := strings.Repeat("x", 120<<10)
	for n := 0; slices.ContainsFunc(servers, func(name string) bool { return oldestEntry(s.t, s.running[name].path) <= first }); n++ {
		large.Status, large.Spec.Env = nil, map[string]string{"FILLER": fmt.Sprint(n, filler)}
		large, err = s.client.Workloads().UpdateWorkload(s.ctx, &v1.UpdateWorkloadRequest{Workload: large})
		must.Succeed(s.t, err)
	}
	return first
}

// oldestEntry returns the index of the first entry in the oldest segment of a server's log, from the segment's name.
func oldestEntry(t *testing.T, folder string) uint64 {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(folder, "server", "raft", "log", "*.wal"))
	must.Succeed(t, err)
	var indexes []uint64
	for _, path := range all {
		index, _, _ := strings.Cut(filepath.Base(path), "-")
		n, err := strconv.ParseUint(index, 10, 64)
		must.Succeed(t, err)
		indexes = append(indexes, n)
	}
	return slices.Min(indexes)
}

// snapshotsIn returns the indexes of the last entries of a server's snapshots, which are named TERM-INDEX-TIME.
func snapshotsIn(t *testing.T, folder string) (indexes []uint64) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(folder, "server", "raft", "snapshots", "*-*-*"))
	must.Succeed(t, err)
	for _, path := range all {
		if parts := strings.Split(filepath.Base(path), "-"); !strings.HasSuffix(path, ".tmp") {
			n, err := strconv.ParseUint(parts[1], 10, 64)
			must.Succeed(t, err)
			indexes = append(indexes, n)
		}
	}
	return indexes
}
