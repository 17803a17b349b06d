package object_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

func TestEveryRangeHasItsBytes(t *testing.T) {
	c := newCluster(t, "a", "b")
	data := content(9*object.ChunkSize+100, 1) // its blocks are in a list
	c.put("long", data)
	c.put("short", data[:object.ChunkSize+100])
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"long", "short"}).Draw(t, "key")
		o, r, err := c.store.Open(c.t.Context(), photos, key, "")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		size := o.Version.GetSize()
		near := rapid.SampledFrom([]int64{0, object.ChunkSize, size}).Draw(t, "near")
		offset := min(max(near+rapid.Int64Range(-70_000, 70_000).Draw(t, "offset"), 0), size)
		length := rapid.SampledFrom([]int64{-1, 0, 1, 100, 64 << 10, 3 << 20, 5 << 20, 1 << 62}).Draw(t, "length")
		want := data[offset:size]
		if length >= 0 && length < size-offset {
			want = want[:length]
		}
		g := r.ReadRange(c.t.Context(), offset, length)
		defer g.Close()
		var got []byte
		if rapid.Bool().Draw(t, "by WriteTo") {
			var all bytes.Buffer
			_, err = g.(io.WriterTo).WriteTo(&all)
			got = all.Bytes()
		} else {
			got, err = io.ReadAll(iotest.HalfReader(g))
		}
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes from %d of %s: %d bytes and %v, which is not what was put", length, offset, key, len(got), err)
		}
	})
}

func TestRangeOutsideOfTheObjectIsRefused(t *testing.T) {
	c := newCluster(t, "a")
	c.put("k", []byte("12345"))
	_, r, err := c.store.Open(t.Context(), photos, "k", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, offset := range []int64{-1, 6} {
		g := r.ReadRange(t.Context(), offset, 1)
		if _, err := io.ReadAll(g); !errors.Is(err, object.ErrBadRange) {
			t.Errorf("from %d: %v, want ErrBadRange", offset, err)
		}
		g.Close()
	}
}

func TestDamagedChunkIsServedFromElsewhereAndReplaced(t *testing.T) {
	for name, spoil := range map[string]func(*cluster, object.Hash){
		"damaged":              func(c *cluster, hash object.Hash) { c.disks.Corrupt("uid-a", hash) },
		"missing":              func(c *cluster, hash object.Hash) { c.disks.Lose("uid-a", hash) },
		"damaged and not said": func(c *cluster, hash object.Hash) { c.disks.Corrupt("uid-a", hash); lie(c) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "a", "b", "c")
				data := content(6<<20, 1)
				c.put("k", data)
				synctest.Wait()
				for _, p := range c.pieces("k") {
					spoil(c, p.Hash)
				}
				c.has("k", data)
				synctest.Wait()
				for _, p := range c.pieces("k") {
					if !c.disks.Has("uid-a", p.Hash) || !slices.Contains(p.Nodes, "uid-a") {
						t.Error("the damaged chunk was not replaced")
					}
				}
			})
		})
	}
}

func lie(c *cluster) { c.disks.Break("uid-a", objecttest.Faults{Lies: true}) }

func TestDamageOfTheOnlyCopyIsAnError(t *testing.T) {
	c := newCluster(t, "a")
	c.put("k", content(6<<20, 1))
	for _, p := range c.pieces("k")[1:] {
		c.disks.Corrupt("uid-a", p.Hash)
	}
	lie(c)
	_, r, err := c.store.Open(t.Context(), photos, "k", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g := r.ReadRange(t.Context(), 0, -1)
	defer g.Close()
	got, err := io.ReadAll(g)
	if !errors.Is(err, object.ErrUnreachable) || !errors.Is(err, object.ErrChunkDamaged) || len(got) != object.ChunkSize {
		t.Errorf("read %d bytes and %v, want the first chunk and then the damage", len(got), err)
	}
}

func TestNodesThatAreGoneAreReplacedByOthers(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	b := photos
	b.Replicas = 2
	data := content(20<<20, 1)
	c.putInto(b, "k", data)
	c.disks.Break("uid-a", objecttest.Faults{Gone: true})
	c.has("k", data)
	c.disks.Change("uid-a", func(n *object.Node) { n.Connected = false })
	c.has("k", data)
}

func TestObjectWhoseNodesAreAllGoneIsUnreachable(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.put("k", []byte("data"))
	for _, uid := range []string{"uid-a", "uid-b"} {
		c.disks.Change(uid, func(n *object.Node) { n.Connected = false })
	}
	if _, err := c.read(photos, "k", ""); !errors.Is(err, object.ErrUnreachable) {
		t.Errorf("read returns %v, want ErrUnreachable", err)
	}
}

func TestSlowNodeIsHedged(t *testing.T) {
	for name, fault := range map[string]objecttest.Faults{"slow": {Delay: 10 * time.Second}, "stalled": {Stalled: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "a", "b")
				data := content(6<<20, 1)
				c.put("k", data)
				c.disks.Break("uid-a", fault)
				began := time.Now()
				c.has("k", data)
				if took := time.Since(began); took == 0 || took > 100*time.Millisecond {
					t.Errorf("reading took %s, want a little more than the time after which another node is asked", took)
				}
			})
		})
	}
}

func TestLocalNodeIsReadFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // on a busy machine, another node would be asked as well
		c := newCluster(t, "a", "b", "c")
		c.put("k", content(20<<20, 1))
		time.Sleep(time.Minute) // a put does not wait for the last copy of each chunk, which may be the local one
		c.get("k")
		for _, uid := range []string{"uid-b", "uid-c"} {
			if gets, _ := c.disks.Calls(uid); gets != 0 {
				t.Errorf("%s was read from %d times, want only the local node", uid, gets)
			}
		}
	})
}

func TestSmallRangesDoNotMoveWholeChunks(t *testing.T) {
	c := newCluster(t, "a")
	data := content(object.ChunkSize, 1)
	c.put("k", data)
	_, r, err := c.store.Open(t.Context(), photos, "k", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g := r.ReadRange(t.Context(), 1000, 100)
	defer g.Close()
	got := make([]byte, 100)
	if _, err := io.ReadFull(g, got); err != nil || !bytes.Equal(got, data[1000:1100]) {
		t.Error(err)
	}
	if used := c.store.Buffered(); used > 64<<10 {
		t.Errorf("100 bytes are in %d bytes of memory", used)
	}
}

func TestObjectStaysReadableWhileItIsOverwritten(t *testing.T) {
	c := newCluster(t, "a", "b")
	old := content(40<<20, 1)
	c.put("k", old)
	_, r, err := c.store.Open(t.Context(), photos, "k", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.put("k", []byte("new"))
	if _, err := c.store.Delete(t.Context(), photos, "k", "", object.Condition{}); err != nil {
		t.Fatal(err)
	}
	g := r.ReadRange(t.Context(), 0, -1)
	defer g.Close()
	if got, err := io.ReadAll(g); err != nil || !bytes.Equal(got, old) {
		t.Errorf("read %d bytes of the old object and %v", len(got), err)
	}
}

func TestReaderThatIsGivenUpLeavesNothing(t *testing.T) {
	c := newCluster(t, "a") // the end of the test looks for what is left
	c.put("k", content(20<<20, 1))
	for _, bytesRead := range []int64{0, 1, 5 << 20} {
		_, r, err := c.store.Open(t.Context(), photos, "k", "")
		if err != nil {
			t.Fatal(err)
		}
		g := r.ReadRange(t.Context(), 0, -1)
		if _, err := io.CopyN(io.Discard, g, bytesRead); err != nil {
			t.Error(err)
		}
		g.Close()
		r.Close()
	}
}
