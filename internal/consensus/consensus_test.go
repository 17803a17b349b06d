package consensus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// lone are the options of a server that is a cluster of its own.
func lone(dir string) consensus.Options {
	return consensus.Options{
		Dir: dir, ServerID: "server-1", Store: state.New(), Logger: slog.New(slog.DiscardHandler), Bootstrap: true,
	}
}

// open opens a server that leads, and closes it with the test.
func open(t testing.TB, o consensus.Options) *consensus.Consensus {
	t.Helper()
	c, err := consensus.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, c) })
	if err := c.WaitLeader(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func closed(t testing.TB, c *consensus.Consensus) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// numbered is a transaction that creates the node with a number.
func numbered(n int) *statev1.Transaction {
	var b state.Batch
	b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: fmt.Sprintf("%08d", n), Name: fmt.Sprintf("node-%d", n)}})
	return b.Transaction(time.Unix(1_700_000_000, int64(n)))
}

func propose(t testing.TB, c *consensus.Consensus, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if _, err := c.Propose(t.Context(), numbered(n)); err != nil {
			t.Fatal(err)
		}
	}
}

// numbers are those of the existing nodes.
func numbers(s *state.Snapshot) []int {
	var all []int
	for node := range s.Nodes("") {
		var n int
		if _, err := fmt.Sscanf(node.GetMetadata().GetName(), "node-%d", &n); err == nil {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func saved(t testing.TB, s *state.Snapshot) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := s.Save(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestProposalsAreApplied(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	_, feed := c.Store().Subscribe()
	result, err := c.Propose(t.Context(), numbered(1))
	if err != nil {
		t.Fatal(err)
	}
	read, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node := read.NodeByName("node-1")
	if node == nil || node.GetMetadata().GetVersion() != result.Index || result.Objects[0] != state.Object(node) {
		t.Fatalf("proposed %v, read %v", result, node)
	}
	if c.Stale().Index() != result.Index {
		t.Fatalf("the state is at %d, want %d", c.Stale().Index(), result.Index)
	}
	if changes, err := feed.Next(t.Context()); err != nil || len(changes) == 0 || changes[0].New != state.Object(node) {
		t.Fatalf("the feed has %v, %v", changes, err)
	}
}

func TestRefusalsOfTheStateAreReturnedUnchanged(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	propose(t, c, 1, 2)
	_, err := c.Propose(t.Context(), numbered(1))
	if exists, ok := errors.AsType[*state.ExistsError](err); !ok || exists.Name != "node-1" {
		t.Fatalf("got %v", err)
	}
	_, err = c.Propose(t.Context(), &statev1.Transaction{})
	if _, ok := errors.AsType[*state.InvalidError](err); !ok {
		t.Fatalf("got %v", err)
	}
}

func TestLargeTransactionIsRefused(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	tx := numbered(1)
	tx.GetChanges()[0].GetPut().GetNode().Metadata.Annotations = map[string]string{"a": strings.Repeat("x", consensus.MaxTransaction)}
	_, err := c.Propose(t.Context(), tx)
	if _, ok := errors.AsType[*consensus.TooLargeError](err); !ok {
		t.Fatalf("got %v", err)
	}
}

func TestProposeRespectsItsContext(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	reason := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	if _, err := c.Propose(ctx, numbered(1)); !errors.Is(err, reason) {
		t.Fatalf("got %v", err)
	}
}

func TestReopened(t *testing.T) {
	dir := t.TempDir()
	c := open(t, lone(dir))
	propose(t, c, 0, 50)
	before := saved(t, c.Stale())
	closed(t, c)

	c = open(t, lone(dir))
	if !bytes.Equal(saved(t, c.Stale()), before) {
		t.Fatal("the state is another one")
	}
	propose(t, c, 50, 51)
}

// Snapshots between proposals: the snapshot and the log together are the state.
func TestSnapshotShortensTheLog(t *testing.T) {
	dir := t.TempDir()
	o := lone(dir)
	o.SnapshotThreshold = 10
	c := open(t, o)
	for from := 0; from < 100; from += 25 {
		propose(t, c, from, from+25)
		if err := c.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if stats := c.Stats(); stats.SnapshotIndex != stats.LastIndex || stats.State != "leader" {
		t.Fatalf("got %+v", stats)
	}
	if first := c.FirstLogIndex(t); first < 80 {
		t.Fatalf("the log still begins at %d", first)
	}
	propose(t, c, 100, 110)
	before := saved(t, c.Stale())
	closed(t, c)

	o.Store = state.New()
	c = open(t, o)
	if !slices.Equal(numbers(c.Stale()), upTo(110)) || !bytes.Equal(saved(t, c.Stale()), before) {
		t.Fatalf("got %v", numbers(c.Stale()))
	}
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatalf("nothing to do is no error: %v", err)
	}
}

func TestAfterClose(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	leading := make(chan struct{})
	ended := make(chan error)
	go func() {
		ended <- c.Lead(t.Context(), func(ctx context.Context) error {
			close(leading)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-leading
	closed(t, c)
	if err := <-ended; !errors.Is(err, consensus.ErrShutdown) {
		t.Fatalf("Lead returned %v", err)
	}
	if _, err := c.Propose(t.Context(), numbered(1)); !errors.Is(err, consensus.ErrShutdown) {
		t.Fatalf("Propose returned %v", err)
	}
	if _, err := c.Read(t.Context()); err == nil {
		t.Fatal("Read succeeded")
	}
	<-c.Done()
	if err := c.Err(); err != nil {
		t.Fatalf("an orderly end has the error %v", err)
	}
	closed(t, c) // again
	noGoroutines(t)
}

// TestCloseAtOnce closes servers in the middle of their election.
func TestCloseAtOnce(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		c, err := consensus.Open(t.Context(), lone(dir))
		if err != nil {
			t.Fatal(err)
		}
		closed(t, c)
	}
	noGoroutines(t)
}

// noGoroutines waits until all goroutines of raft, its log and this package have ended. If one stays, the test runs
// into the time limit, which prints it.
func noGoroutines(t *testing.T) {
	t.Helper()
	for {
		var stacks bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(stacks.String(), "hashicorp/raft") && !strings.Contains(stacks.String(), "consensus.(*Consensus)") {
			return
		}
		runtime.Gosched()
	}
}

func TestLeadRunsAgainOnlyInANewTerm(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	err := c.Lead(ctx, func(context.Context) error {
		runs++
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || runs != 1 {
		t.Fatalf("%d runs, %v", runs, err)
	}
	broken := errors.New("broken")
	if err := c.Lead(t.Context(), func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
}

func TestOpenRefusals(t *testing.T) {
	used, owned := t.TempDir(), t.TempDir()
	open(t, lone(used))
	closed(t, open(t, lone(owned)))
	for _, c := range []struct {
		name   string
		dir    string
		change func(*consensus.Options)
		want   string
	}{
		{"used by another process", used, func(*consensus.Options) {}, "another process is using it: stop that one first"},
		{"of another server", owned, func(o *consensus.Options) { o.ServerID = "server-2" }, "it belongs to the server server-1"},
		{"empty", t.TempDir(), func(o *consensus.Options) { o.Bootstrap = false }, "it holds no cluster"},
		{"no id", owned, func(o *consensus.Options) { o.ServerID = "" }, "needs the server's id"},
		{"too slow to notice a loss", owned, func(o *consensus.Options) { o.ElectionTimeout = 3 * time.Second }, "cannot be 3s: use 500ms to 2.5s"},
		{"too quick", owned, func(o *consensus.Options) { o.ElectionTimeout = time.Millisecond }, "cannot be 1ms"},
		{"no folder", "", func(*consensus.Options) {}, "needs a folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lone(c.dir)
			c.change(&o)
			if _, err := consensus.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	// A refused Open leaves nothing behind that would keep the right server out.
	open(t, lone(owned))
}

// Raft gets the configured timeout, and a leader steps down before another one leads.
func TestElectionTimeout(t *testing.T) {
	for requested, want := range map[time.Duration]time.Duration{0: 500 * time.Millisecond, 2 * time.Second: 2 * time.Second} {
		config, err := consensus.RaftConfig(consensus.Options{
			Dir: "d", ServerID: "server-1", Store: state.New(), Logger: slog.New(slog.DiscardHandler), ElectionTimeout: requested,
		})
		if err != nil {
			t.Fatal(err)
		}
		if config.HeartbeatTimeout != want || config.ElectionTimeout != want || config.LeaderLeaseTimeout >= want {
			t.Errorf("for %s they are %s, %s and a lease of %s", requested, config.HeartbeatTimeout, config.ElectionTimeout, config.LeaderLeaseTimeout)
		}
	}
}

// The log has an entry that only a newer release understands: the server must stop and say so, rather than skip it.
func TestEntryOfANewerRelease(t *testing.T) {
	dir := t.TempDir()
	c := open(t, lone(dir))
	propose(t, c, 0, 3)
	newer := numbered(3)
	newer.GetChanges()[0].ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 0}) // field 1023, empty
	if err := c.ApplyRaw(newer); !errors.Is(err, consensus.ErrUncertain) {
		t.Fatalf("got %v", err)
	}
	<-c.Done()
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "a newer release must have written it: update this server") {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Propose(t.Context(), numbered(4)); !errors.Is(err, consensus.ErrShutdown) {
		t.Fatalf("got %v", err)
	}
	if !slices.Equal(numbers(c.Stale()), upTo(3)) {
		t.Fatalf("got %v", numbers(c.Stale()))
	}
	closed(t, c)

	again, err := consensus.Open(t.Context(), lone(dir))
	if err != nil {
		t.Fatal(err)
	}
	<-again.Done() // it meets the entry again
	closed(t, again)
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		writeUntilKilled(dir)
	}
	os.Exit(m.Run())
}
