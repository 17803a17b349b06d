package consensus_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// marked are the options of a server that records how far it has come.
func marked(dir string) consensus.Options {
	o := lone(filepath.Join(dir, "raft"))
	o.Reached, o.Store = filepath.Join(dir, "reached"), state.New()
	return o
}

// A log that ends before what the server had agreed to is refused: raft would treat the server as one that always
// lagged, and let it vote away acknowledged writes.
func TestTruncatedLogIsRefused(t *testing.T) {
	segment := func(t *testing.T, dir string) string { return only(t, dir, "raft", "log", "*.wal") }
	for name, lose := range map[string]func(t *testing.T, dir string) error{
		"all of it":         func(_ *testing.T, dir string) error { return os.RemoveAll(filepath.Join(dir, "raft")) },
		"the log":           func(_ *testing.T, dir string) error { return os.RemoveAll(filepath.Join(dir, "raft", "log")) },
		"a segment":         func(t *testing.T, dir string) error { return os.Remove(segment(t, dir)) },
		"all of a segment":  func(t *testing.T, dir string) error { return os.Truncate(segment(t, dir), 0) },
		"most of a segment": func(t *testing.T, dir string) error { return os.Truncate(segment(t, dir), 600) },
		"its content": func(t *testing.T, dir string) error {
			change(t, segment(t, dir), func(data []byte) []byte { return make([]byte, len(data)) })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := open(t, marked(dir))
			propose(t, c, 0, 10)
			closed(t, c)
			if err := lose(t, dir); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first time leaves it unchanged
				opened, err := consensus.Open(t.Context(), marked(dir))
				if err == nil {
					closed(t, opened)
					t.Fatal("it was opened")
				}
				if !strings.Contains(err.Error(), "but this server had agreed to") || !strings.Contains(err.Error(), "remove this one there with cloudless server rm") {
					t.Fatal(err)
				}
			}
		})
	}
}

// Progress is recorded while the server runs: it may be killed.
func TestReachedIndexIsRecorded(t *testing.T) {
	dir := t.TempDir()
	c := open(t, marked(dir))
	propose(t, c, 0, 10)
	eventually(t, "ten writes are written down", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "reached"))
		index, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && index > 10
	})
	closed(t, c)
}

// A snapshot counts as far as the log that it replaces.
func TestSnapshotCountsAsReached(t *testing.T) {
	dir := t.TempDir()
	o := marked(dir)
	o.SnapshotThreshold = 1
	c := open(t, o)
	propose(t, c, 0, 20)
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed(t, c)
	c = open(t, marked(dir))
	if !slices.Equal(numbers(c.Stale()), upTo(20)) {
		t.Fatalf("got %v", numbers(c.Stale()))
	}
}

// A lone server without a backup continues with what is left, and says so.
func TestRecoverAcceptsATruncatedLog(t *testing.T) {
	dir := t.TempDir()
	c := open(t, marked(dir))
	propose(t, c, 0, 10)
	closed(t, c)
	if err := os.WriteFile(filepath.Join(dir, "reached"), []byte("1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	was, err := consensus.Recover(marked(dir))
	if err != nil || was.Reached != 1000 || was.Index >= 1000 {
		t.Fatalf("recovered %+v, %v", was, err)
	}
	c = open(t, marked(dir))
	propose(t, c, 10, 20)
	if !slices.Equal(numbers(c.Stale()), upTo(20)) {
		t.Fatalf("got %v", numbers(c.Stale()))
	}
}

// A server that has bootstrapped a cluster does not bootstrap another one after its data is lost.
func TestNoSecondClusterIsBootstrapped(t *testing.T) {
	o := lone(t.TempDir())
	o.Bootstrapped = true
	c, err := consensus.Open(t.Context(), o)
	if err == nil {
		closed(t, c)
		t.Fatal("it was opened")
	}
	if !strings.Contains(err.Error(), "the log is gone: if there are other servers") {
		t.Fatal(err)
	}
}
