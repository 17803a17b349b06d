package disks_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/chunks"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/disks"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func TestChunksAreReadAsTheyWerePut(t *testing.T) {
	c := newCluster(t)
	c.start("a")
	var tasks sync.WaitGroup
	for i, size := range []int{0, 1, 4096, 64 << 10, 64<<10 + 1, 300_000, 4 << 20, 4<<20 + 64<<10} {
		tasks.Go(func() {
			data, hash := random(uint64(i), size)
			if err := c.Put(t.Context(), "a", hash, data, 3); err != nil {
				t.Errorf("put %d bytes: %v", size, err)
				return
			}
			prefix := []byte("before it")
			if got, err := c.Get(t.Context(), "a", hash, 0, 0, slices.Clone(prefix)); err != nil || !bytes.Equal(got, append(prefix, data...)) {
				t.Errorf("of %d bytes, %d are read: %v", size, len(got)-len(prefix), err)
			}
			if size < 300_000 {
				return
			}
			if got, err := c.Get(t.Context(), "a", hash, 200_000, 50_000, nil); err != nil || !bytes.Equal(got, data[200_000:250_000]) {
				t.Errorf("of 50,000 bytes in the middle, %d are read: %v", len(got), err)
			}
		})
	}
	tasks.Wait()
}

func TestManyChunksAreUnderWayAtOnce(t *testing.T) {
	c := newCluster(t)
	c.start("a")
	var tasks sync.WaitGroup
	for i := range 600 {
		tasks.Go(func() {
			size := 2000
			if i%100 == 0 {
				size = 3 << 20
			}
			data, hash := random(uint64(i), size)
			if err := c.Put(t.Context(), "a", hash, data, 1); err != nil {
				t.Error(err)
			}
			if got, err := c.Get(t.Context(), "a", hash, 0, uint32(size), nil); err != nil || !bytes.Equal(got, data) {
				t.Errorf("chunk %d of %d bytes: %d are read: %v", i, size, len(got), err)
			}
		})
	}
	tasks.Wait()
	n := c.await("a", func(n object.Node) bool { return n.Used > 0 })
	if n.Capacity <= 0 || n.Free <= 0 || n.Class == "" || n.Problem != "" {
		t.Errorf("the node is %+v", n)
	}
}

func TestListAndDeleteKeepWhatIsNewer(t *testing.T) {
	c := newCluster(t)
	c.start("a")
	var hashes []object.Hash
	for i := range uint64(10) {
		data, hash := random(i, 1000)
		must(t, c.Put(t.Context(), "a", hash, data, i))
		hashes = append(hashes, hash)
	}
	sorted := slices.SortedFunc(slices.Values(hashes), func(a, b object.Hash) int { return bytes.Compare(a[:], b[:]) })
	var listed []object.Held
	for after, last := (object.Hash{}), false; !last; {
		page, end, err := c.List(t.Context(), "a", after, 3)
		must(t, err)
		listed, last = append(listed, page...), end
		if len(page) > 0 {
			after = page[len(page)-1].Hash
		}
	}
	for i, one := range listed {
		if one.Hash != sorted[i] || one.Epoch != uint64(slices.Index(hashes, one.Hash)) {
			t.Errorf("item %d of the list is %x of epoch %d", i, one.Hash, one.Epoch)
		}
	}
	if len(listed) != len(hashes) {
		t.Errorf("%d chunks are listed, want %d", len(listed), len(hashes))
	}
	_, never := random(99, 1000)
	gone, err := c.Delete(t.Context(), "a", append(hashes, never), 4)
	must(t, err)
	if len(gone) != 6 || slices.Contains(gone, hashes[5]) || !slices.Contains(gone, hashes[4]) || !slices.Contains(gone, never) {
		t.Errorf("%d chunks are gone, want those of epochs 0 to 4, and the one that never was", len(gone))
	}
	if _, err := c.Get(t.Context(), "a", hashes[0], 0, 0, nil); !errors.Is(err, object.ErrChunkMissing) {
		t.Errorf("a deleted chunk is read with %v", err)
	}
	if _, err := c.Get(t.Context(), "a", hashes[9], 0, 0, nil); err != nil {
		t.Errorf("a newer chunk: %v", err)
	}
}

// fetch has a node get chunks, and returns what it says of each.
func (c *cluster) fetch(node string, wanted ...object.Fetch) map[object.Hash]error {
	c.t.Helper()
	answers := map[object.Hash]error{}
	if err := c.Fetch(c.t.Context(), node, wanted, 5, func(hash object.Hash, err error) { answers[hash] = err }); err != nil {
		c.t.Errorf("fetch: %v", err)
	}
	return answers
}

func TestNodesFetchOverTheMesh(t *testing.T) {
	c := newCluster(t)
	c.start("a")
	c.start("b")
	data, hash := random(1, 4<<20)
	must(t, c.Put(t.Context(), "a", hash, data, 1))
	_, unknown := random(2, 10)
	// The source is connected to no server, so the chunk comes over the mesh.
	c.cut("a", true)
	c.await("a", func(n object.Node) bool { return !n.Connected })
	answers := c.fetch("b", object.Fetch{Hash: hash, Size: uint32(len(data)), Nodes: []string{"a"}}, object.Fetch{Hash: unknown, Size: 10, Nodes: []string{"a"}})
	if err := answers[hash]; err != nil {
		t.Errorf("fetch: %v", err)
	}
	if err := answers[unknown]; !errors.Is(err, object.ErrChunkMissing) {
		t.Errorf("a chunk that the source does not have: %v", err)
	}
	if got, err := c.Get(t.Context(), "b", hash, 0, 0, nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes of the fetched chunk: %v", len(got), err)
	}
}

// Nodes that do not reach each other get chunks through the server.
func TestChunksGoThroughTheServerWithoutAMesh(t *testing.T) {
	c := newCluster(t)
	for _, uid := range []string{"a", "b"} {
		c.add(uid, "")
		o := c.options(uid)
		o.Mesh = chunks.NewAddresses()
		node, err := chunks.Open(o)
		must(t, err)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = node.Run(ctx)
		}()
		t.Cleanup(func() {
			stop()
			<-ended
			must(t, node.Close())
		})
		c.await(uid, func(n object.Node) bool { return n.Connected })
	}
	data, hash := random(1, 1<<20)
	must(t, c.Put(t.Context(), "a", hash, data, 1))
	answers := c.fetch("b", object.Fetch{Hash: hash, Size: uint32(len(data)), Nodes: []string{"nobody", "a"}})
	if err := answers[hash]; err != nil {
		t.Errorf("fetch: %v", err)
	}
	if got, err := c.Get(t.Context(), "b", hash, 0, 0, nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes of the fetched chunk: %v", len(got), err)
	}
	_, unknown := random(2, 10)
	if err := c.fetch("b", object.Fetch{Hash: unknown, Size: 10, Nodes: []string{"a"}})[unknown]; !errors.Is(err, object.ErrChunkMissing) {
		t.Errorf("a chunk that nobody has: %v", err)
	}
}

func TestErrorsOfNodesAreKnownToCallers(t *testing.T) {
	c := newCluster(t)
	c.start("a")
	c.add("full", "")
	o := c.options("full")
	o.Reserve = 1 << 60
	c.run(o, "full")
	data, hash := random(1, 4096)
	if err := c.Put(t.Context(), "full", hash, data, 1); !errors.Is(err, object.ErrDiskFull) {
		t.Errorf("put on a full disk: %v", err)
	}
	if n := c.node("full"); n.Problem == "" {
		t.Error("nothing says that the disk is full")
	}
	if _, err := c.Get(t.Context(), "a", hash, 0, 0, nil); !errors.Is(err, object.ErrChunkMissing) {
		t.Errorf("get a chunk that is not there: %v", err)
	}
	if err := c.Put(t.Context(), "a", hash, data[1:], 1); !errors.Is(err, object.ErrChunkDamaged) {
		t.Errorf("put with another digest: %v", err)
	}
	if err := c.Put(t.Context(), "nobody", hash, data, 1); !errors.Is(err, disks.ErrNotConnected) {
		t.Errorf("put on a node that is not there: %v", err)
	}
}

func TestScrubTellsItsProgress(t *testing.T) {
	c := newCluster(t)
	c.start("a")
	for i := range uint64(5) {
		data, hash := random(i, 10_000)
		must(t, c.Put(t.Context(), "a", hash, data, 1))
	}
	var checked, damaged int64
	must(t, c.Scrub(t.Context(), "a", 1<<40, func(c, _, d int64) { checked, damaged = c, d }))
	if checked == 0 || damaged != 0 {
		t.Errorf("checked %d, %d damaged", checked, damaged)
	}
}

// The node that connects again replaces its first connection, and what was under way fails.
func TestSecondConnectionReplacesTheFirst(t *testing.T) {
	c := newCluster(t)
	c.add("a", "")
	stuck := c.fake("a", false)
	<-stuck.watched
	c.await("a", func(n object.Node) bool { return n.Connected })
	data, hash := random(1, 4096)
	failed := make(chan error, 1)
	go func() { failed <- c.Put(t.Context(), "a", hash, data, 1) }()
	<-stuck.received
	o := c.options("a")
	c.run(o, "a")
	if err := <-failed; !errors.Is(err, disks.ErrGone) {
		t.Errorf("what was under way on the first connection: %v", err)
	}
	if err := c.Put(t.Context(), "a", hash, data, 1); err != nil {
		t.Errorf("put on the second connection: %v", err)
	}
}

func TestRemovedNodeIsCutOff(t *testing.T) {
	c := newCluster(t)
	c.start("a")
	c.cut("a", true)
	n := c.await("a", func(n object.Node) bool { return !n.Connected })
	if n.Problem == "" || n.Capacity == 0 {
		t.Errorf("a node without a connection is %+v, want its last known disk and a problem", n)
	}
	if err := c.dial("a", identity.KindNode); err == nil {
		t.Error("a removed node may connect again")
	}
	var b state.Batch
	b.Delete(state.KindNode, "a")
	c.change(&b)
	if all := c.Nodes(); len(all) != 0 {
		t.Errorf("a removed node is still one: %+v", all)
	}
}

func TestOnlyNodesOfferDisks(t *testing.T) {
	c := newCluster(t)
	if err := c.dial("a", identity.KindNode); err != nil {
		t.Errorf("a node: %v", err)
	}
	for _, kind := range []identity.Kind{identity.KindServer, identity.KindUser} {
		if err := c.dial("a", kind); err == nil {
			t.Errorf("a %s offers a disk", kind)
		}
	}
}

// A context ends its own call only, even while the node takes nothing.
func TestCancelledCallDisturbsNoOther(t *testing.T) {
	c := newCluster(t)
	c.add("a", "")
	slow := c.fake("a", false)
	<-slow.watched
	c.await("a", func(n object.Node) bool { return n.Connected })
	data, hash := random(1, 4<<20)
	small, hashSmall := random(2, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	for range 20 {
		tasks.Go(func() {
			if err := c.Put(ctx, "a", hash, data, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("a put that was cancelled: %v", err)
			}
		})
		tasks.Go(func() {
			if err := c.Put(ctx, "a", hashSmall, small, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("a small put that was cancelled: %v", err)
			}
		})
	}
	<-slow.received
	cancel()
	tasks.Wait()
	close(slow.proceed)
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			if err := c.Put(t.Context(), "a", hash, data, 1); err != nil {
				t.Errorf("a put after those that were cancelled: %v", err)
			}
		})
		others.Go(func() {
			if err := c.Put(t.Context(), "a", hashSmall, small, 1); err != nil {
				t.Errorf("a small put after those that were cancelled: %v", err)
			}
		})
	}
	others.Wait()
}

// A small chunk does not wait for the large ones that the node does not take.
func TestSmallChunkPassesLargeOnes(t *testing.T) {
	c := newCluster(t)
	c.add("a", "")
	slow := c.fake("a", true)
	<-slow.watched
	c.await("a", func(n object.Node) bool { return n.Connected })
	data, hash := random(1, 4<<20)
	ctx, cancel := context.WithCancel(t.Context())
	var large sync.WaitGroup
	for range 20 {
		large.Go(func() { _ = c.Put(ctx, "a", hash, data, 1) })
	}
	<-slow.received
	small, hashSmall := random(2, 4096)
	if err := c.Put(t.Context(), "a", hashSmall, small, 1); err != nil {
		t.Errorf("a small chunk: %v", err)
	}
	cancel()
	large.Wait()
}

func TestNodesJoinWhatIsKnownOfThem(t *testing.T) {
	c := newCluster(t)
	c.add("a", "eu-1")
	c.add("b", "eu-2")
	c.run(c.options("a"), "a")
	c.SetLocal("a")
	a, b := c.node("a"), c.node("b")
	if !a.Connected || !a.Local || a.Zone != "eu-1" || a.Name != "node-a" || a.Problem != "" || a.Address == "" {
		t.Errorf("a is %+v", a)
	}
	if b.Connected || b.Local || b.Zone != "eu-2" || b.Problem == "" {
		t.Errorf("b is %+v", b)
	}
	changed := c.Changed()
	stored := c.store.Snapshot().Node("a")
	var draining state.Batch
	draining.Update(&v1.Node{
		Metadata: stored.GetMetadata(), Spec: &v1.NodeSpec{Availability: spec.NodeDraining},
	}, stored.GetMetadata().GetVersion())
	c.change(&draining)
	<-changed
	if !c.node("a").Draining {
		t.Error("nothing says that the node is being drained")
	}
}
