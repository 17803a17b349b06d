package app

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli"
)

// segment rewrites the log of a server that does not run.
func segment(t *testing.T, folder string, change func(data []byte)) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(folder, "server", "raft", "log", "*.wal"))
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("the segments are %v", all)
	}
	data, err := os.ReadFile(all[0])
	must(t, err)
	change(data)
	must(t, os.WriteFile(all[0], data, 0o600))
}

// TestTornLogOfOneServer: the power fails while a server writes. What was never acknowledged is dropped, and it catches
// up by itself.
func TestTornLogOfOneServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	torn := s.join("s3")
	must(t, s.write(s.client, "before"))
	s.stop("s3")
	segment(t, torn.path, func(data []byte) {
		at := (len(bytes.TrimRight(data, "\x00")) + 7) / 8 * 8
		copy(data[at:], bytes.Repeat([]byte{1, 0, 0, 0, 40, 0, 0, 0, 'x', 'y', 'z', 'x'}, 10))
	})
	must(t, s.write(s.client, "meanwhile"))
	s.start("s3", torn.path, torn.address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool { return all["s3"].GetHealthy() && all["s3"].GetVoter() })
	if all := names(t, s.at(s.running["s3"]), s.ctx); !slices.Contains(all, "before") || !slices.Contains(all, "meanwhile") {
		t.Errorf("it knows %v", all)
	}
}

// TestDamagedLogOfOneServer: a server that has lost what it acknowledged refuses to start, in words. The others go on,
// and by these words the machine becomes a server again.
func TestDamagedLogOfOneServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	damaged := s.join("s3")
	must(t, s.write(s.client, "before"))
	s.stop("s3")
	segment(t, damaged.path, func(data []byte) {
		at := bytes.Index(data, []byte("s2"))
		if at < 0 {
			t.Fatal("the entry is not there")
		}
		data[at] ^= 1
	})
	err := runServer(s.ctx, cli.ServerOptions{
		Process: cli.Process{DataDir: damaged.path, Version: "test", Log: io.Discard, Progress: quiet, Ready: func(string) { t.Error("it is ready") }},
		Reach:   cli.Reach{APIAddr: damaged.address},
	})
	for _, want := range []string{"the log is damaged", "cloudless server rm", "cloudless down --purge", "join again with a new token"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it ends with %v, and does not say %q", err, want)
		}
	}
	must(t, s.write(s.client, "meanwhile"))
	_, err = s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s3"})
	must(t, err)
	s.join("s3-again")
	if all := names(t, s.at(s.running["s3-again"]), s.ctx); !slices.Contains(all, "before") || !slices.Contains(all, "meanwhile") {
		t.Errorf("it knows %v", all)
	}
}

// TestServerBackAfterAWeek: while a server was away, the log went on beyond what is kept of it, one of the servers that
// it knew was replaced, and the other one moved. It is found, brought up to date by a snapshot, and votes again.
func TestServerBackAfterAWeek(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	away := s.join("s3")
	must(t, s.write(s.client, "before"))
	s.stop("s3")

	s.join("s4")
	if s.leader() == "s1" {
		_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{})
		must(t, err)
	}
	// Whoever has just begun to lead must see for itself that the others are well.
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s2"].GetHealthy() && all["s4"].GetHealthy() && all["s2"].GetVoter() && all["s4"].GetVoter()
	})
	_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s1"})
	must(t, err)
	s.removed("s1")
	moved := s.running["s2"]
	s.stop("s2")
	address := freeAddress(t)
	s.start("s2", moved.path, address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s2"].GetHealthy() && all["s2"].GetAddress() == address
	})
	var written []string
	for n := range 50 {
		written = append(written, fmt.Sprintf("w-%d", n))
		must(t, s.write(s.client, written[n]))
	}

	s.start("s3", away.path, away.address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s3"].GetHealthy() && all["s3"].GetVoter() && all["s1"] == nil
	})
	all := names(t, s.at(s.running["s3"]), s.ctx)
	for _, name := range append(written, "before") {
		if !slices.Contains(all, name) {
			t.Errorf("%s is missing", name)
		}
	}
}
