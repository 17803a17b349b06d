package consensus_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// A server is added whose part of the log is gone, while writes go on: it must end up with the same state as the
// others.
func TestNewServerIsInstalledFromASnapshot(t *testing.T) {
	members := cluster(t, 1, func(o *consensus.Options) { o.SnapshotThreshold = 64 })
	leader := members[0]
	propose(t, leader.Consensus, 0, 500)
	bulk(t, leader.Consensus)
	if err := leader.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first := leader.FirstLogIndex(t); first < 100 {
		t.Fatalf("the log still begins at %d", first)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	written := 500
	writing.Go(func() {
		for ctx.Err() == nil {
			if _, err := leader.Propose(t.Context(), numbered(written)); err != nil {
				t.Error(err)
				return
			}
			written++
		}
	})
	fresh := join(t, leader, 2)
	for fresh.Stale().Count(state.KindNode) < 500 {
		nextChange(t, fresh)
	}
	cancel()
	writing.Wait()
	if written == 500 {
		t.Error("nothing was written meanwhile")
	}
	if err := fresh.WaitApplied(t.Context(), leader.Stale().Index()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(numbers(fresh.Stale()), upTo(written)) {
		t.Errorf("the new server knows %d of %d", fresh.Stale().Count(state.KindNode), written)
	}
	if fresh.Stats().SnapshotIndex == 0 {
		t.Error("the new server received the log, not a snapshot")
	}
	// It is just as complete after a restart.
	closed(t, fresh.Consensus)
	again := newMember(t, 2, leader.addresses)
	again.options.Dir = fresh.options.Dir
	again.open(t)
	if err := again.WaitApplied(t.Context(), leader.Stale().Index()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(numbers(again.Stale()), upTo(written)) {
		t.Errorf("after a restart the new server knows %d of %d", again.Stale().Count(state.KindNode), written)
	}
}

// bulk writes so much that the oldest file of the log is no longer needed.
func bulk(t *testing.T, c *consensus.Consensus) {
	t.Helper()
	for n := range 400 {
		var b state.Batch
		b.Put(&v1.Token{Metadata: &v1.Metadata{Uid: "bulk", Name: "bulk", Annotations: map[string]string{"bulk": strings.Repeat("x", 64<<10)}}})
		if _, err := c.Propose(t.Context(), b.Transaction(time.Unix(1_700_000_000, int64(n)))); err != nil {
			t.Fatal(err)
		}
	}
}

// nextChange waits for any next change of a server's state.
func nextChange(t *testing.T, m *member) {
	t.Helper()
	before := m.Stale()
	_, feed := m.Store().Subscribe()
	if m.Stale().Index() != before.Index() {
		return
	}
	if _, err := feed.Next(t.Context()); err != nil && !errors.Is(err, state.ErrLagged) {
		t.Fatal(err)
	}
}

// When a leader stops in order, another one takes over at once, and it leaves a snapshot behind.
func TestLeaveHandsLeadershipOver(t *testing.T) {
	members := cluster(t, 3)
	propose(t, members[0].Consensus, 0, 20)
	members[0].Leave(t.Context())
	if members[0].IsLeader() {
		t.Fatal("it still leads")
	}
	if members[0].Stats().SnapshotIndex == 0 {
		t.Error("it left no snapshot")
	}
	var leader *member
	for leader == nil {
		for _, m := range members[1:] {
			if m.IsLeader() {
				leader = m
			}
		}
		select {
		case <-members[1].Changed():
		case <-members[2].Changed():
		case <-time.After(time.Millisecond):
		}
	}
	propose(t, leader.Consensus, 20, 21)
	read, err := leader.Read(t.Context())
	if err != nil || !slices.Equal(numbers(read), upTo(21)) {
		t.Fatalf("got %v, %v", numbers(read), err)
	}
}

// join adds one more server to a cluster.
func join(t *testing.T, leader *member, number int) *member {
	t.Helper()
	fresh := newMember(t, number, leader.addresses)
	fresh.options.Bootstrap = false
	fresh.open(t)
	if err := leader.Raft().AddNonvoter(raft.ServerID(fresh.id), raft.ServerAddress(fresh.options.Address), 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	return fresh
}

// A server dies after it has stored a snapshot from another one and still has its own log, which ends long before: the
// log continues after the snapshot.
func TestKilledWhileASnapshotIsInstalled(t *testing.T) {
	ahead, behind := t.TempDir(), t.TempDir()
	c := open(t, lone(ahead))
	propose(t, c, 0, 10)
	closed(t, c)
	if err := os.CopyFS(behind, os.DirFS(ahead)); err != nil {
		t.Fatal(err)
	}
	c = open(t, lone(ahead))
	propose(t, c, 10, 50)
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed(t, c)
	if err := os.CopyFS(filepath.Join(behind, "snapshots"), os.DirFS(filepath.Join(ahead, "snapshots"))); err != nil {
		t.Fatal(err)
	}
	for n := 50; n < 70; n += 10 { // the second time with a log of its own again
		c = open(t, lone(behind))
		if err := c.WaitLeader(t.Context()); err != nil {
			t.Fatal(err)
		}
		propose(t, c, n, n+10)
		if got := numbers(c.Stale()); !slices.Equal(got, upTo(n+10)) {
			t.Errorf("it knows %v", got)
		}
		closed(t, c)
	}
}
