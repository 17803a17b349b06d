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

// marked are the options of a server that keeps how far it has come.
func marked(dir string) consensus.Options {
	o := lone(filepath.Join(dir, "raft"))
	o.Reached, o.Store = filepath.Join(dir, "reached"), state.New()
	return o
}

// A log that ends before what the server had agreed to is refused, however it came to that: raft would take the server
// for one that has always been behind, and let it vote away what others were told is safe.
func TestALogThatHasLostItsEndIsRefused(t *testing.T) {
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
			for range 2 { // the first time leaves it as it was
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

// What was reached is written down while the server runs, too: it may be killed.
func TestWhatIsReachedIsWrittenDown(t *testing.T) {
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

// A snapshot goes as far as the log that it replaces.
func TestASnapshotReachesAsFarAsTheLog(t *testing.T) {
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

// Who is alone and has no backup goes on with what is left, and says so.
func TestRecoverGivesUpWhatTheLogHasLost(t *testing.T) {
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

// A server that has founded a cluster does not found another one where that is gone.
func TestNoSecondClusterIsFounded(t *testing.T) {
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
