package consensus_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// unusual draws transactions that look different in memory than after encoding and decoding: empty maps, lists, bytes
// and messages, messages that are used twice, refusals in the middle.
func unusual(t *rapid.T) *statev1.Transaction {
	uid := rapid.SampledFrom([]string{"u1", "u2", "u3", "u4"})
	name := rapid.SampledFrom([]string{"a", "b", "c"})
	labels := rapid.SampledFrom([]map[string]string{nil, {}, {"": ""}, {"app": "web", "tier": ""}})
	spec := &v1.WorkloadSpec{
		Image: name.Draw(t, "image"), Args: rapid.SampledFrom([][]string{nil, {}, {""}, {"x", "y"}}).Draw(t, "args"),
		Env: labels.Draw(t, "env"), Restart: rapid.SampledFrom([]*v1.Restart{nil, {}, {Policy: "always"}}).Draw(t, "restart"),
	}
	var b state.Batch
	for range rapid.IntRange(1, 4).Draw(t, "changes") {
		m := &v1.Metadata{Uid: uid.Draw(t, "uid"), Name: name.Draw(t, "name"), Namespace: "default", Labels: labels.Draw(t, "labels")}
		switch rapid.IntRange(0, 4).Draw(t, "change") {
		case 0:
			b.Create(&v1.Workload{Metadata: m, Spec: spec, Status: &v1.WorkloadStatus{}})
		case 1:
			b.Put(&v1.Workload{Metadata: m, Spec: spec})
		case 2:
			b.Put(&v1.Revision{Metadata: m, Spec: &v1.RevisionSpec{WorkloadUid: m.GetUid(), Workload: spec}})
		case 3:
			b.Put(&statev1.Credential{Metadata: m, Hash: rapid.SampledFrom([][]byte{nil, {}, {0}}).Draw(t, "hash")})
		case 4:
			b.Delete(state.KindWorkload, m.GetUid())
		}
	}
	tx := b.Transaction(time.Unix(1_700_000_000, 0))
	if rapid.Bool().Draw(t, "whole") {
		tx.Time = &timestamppb.Timestamp{Seconds: 1_700_000_000}
	}
	return tx
}

// A leader keeps the proposed messages. The resulting state equals, byte for byte, a replay of the log and the state of
// followers.
func TestReplayEqualsTheProposedState(t *testing.T) {
	draw := rapid.SliceOfN(rapid.Custom(unusual), 20, 60)
	for seed := range 12 {
		dir := t.TempDir()
		c := open(t, lone(dir))
		var all sync.WaitGroup
		for _, tx := range draw.Example(seed) {
			all.Go(func() { _, _ = c.Propose(t.Context(), tx) }) // refusals are part of it
		}
		all.Wait()
		kept := saved(t, c.Stale())
		closed(t, c)
		again := open(t, lone(dir))
		if !bytes.Equal(kept, saved(t, again.Stale())) {
			t.Errorf("kept     %q\nreplayed %q", kept, saved(t, again.Stale()))
		}
		closed(t, again)
	}
}

// Proposed messages are given to the state as they are, and forgotten here.
func TestLeaderDoesNotDecodeItsOwnProposals(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	tx := numbered(1)
	node := tx.GetChanges()[0].GetPut().GetNode()
	if _, err := c.Propose(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if c.Stale().Node(node.GetMetadata().GetUid()) != node {
		t.Error("the node was decoded again")
	}
	propose(t, c, 2, 20)
	if n := c.OnTheirWay(); n != 0 {
		t.Errorf("%d transactions are still remembered", n)
	}
}

// Followers have messages of their own, with the same content.
func TestFollowersDecodeProposals(t *testing.T) {
	members := cluster(t, 3)
	for n := range 50 {
		if _, err := members[0].Propose(t.Context(), numbered(n)); err != nil {
			t.Fatal(err)
		}
	}
	want := saved(t, members[0].Stale())
	for _, m := range members[1:] {
		follow(t, m, members[0].Stale().Index())
		if !bytes.Equal(saved(t, m.Stale()), want) {
			t.Errorf("%s has another state", m.id)
		}
		if uid := fmt.Sprintf("%08d", 1); m.Stale().Node(uid) == members[0].Stale().Node(uid) {
			t.Errorf("%s shares messages with the leader", m.id)
		}
	}
}

// follow waits until a server has applied an entry.
func follow(t *testing.T, m *member, index uint64) {
	t.Helper()
	for snap, feed := m.Store().Subscribe(); snap.Index() < index; snap = m.Stale() {
		if _, err := feed.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
