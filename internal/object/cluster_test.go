package object_test

import (
	"bytes"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

var photos = object.Bucket{UID: "bucket-1", Name: "photos", Namespace: "shop", NamespaceUID: "namespace-1"}

// cluster is a store over real names and nodes in memory.
type cluster struct {
	t     testing.TB
	names *objecttest.Names
	disks *objecttest.Disks
	store *object.Store
}

func newCluster(t testing.TB, nodes ...string) *cluster {
	t.Helper()
	return newClusterOver(t, objecttest.NewNames(t), objecttest.NewDisks(nodes...), object.Options{})
}

func newClusterOver(t testing.TB, names *objecttest.Names, disks *objecttest.Disks, o object.Options) *cluster {
	t.Helper()
	c := &cluster{t: t, names: names, disks: disks}
	o.Names, o.Logger = names, slog.New(slog.DiscardHandler)
	if o.Disks == nil {
		o.Disks = disks
	}
	var err error
	if c.store, err = object.New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	return c
}

// end closes the store, and makes sure that it leaves no goroutine and no buffer behind.
func (c *cluster) end() {
	c.t.Helper()
	c.store.Close()
	if buffered := c.store.Buffered(); buffered != 0 {
		c.t.Errorf("%d bytes of buffers are still in use after the end of all requests", buffered)
	}
	// A goroutine that has said that it is done may need a moment to be gone.
	left := ""
	for range 1000 {
		if left = goroutines(); left == "" {
			return
		}
		runtime.Gosched()
	}
	c.t.Errorf("a goroutine outlives the store:\n%s", left)
}

// goroutines returns the stack of a goroutine of the store, if there is one.
func goroutines() string {
	stacks := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(stack, "internal/object.(*") {
			return stack
		}
	}
	return ""
}

func (c *cluster) put(key string, data []byte) object.Object {
	c.t.Helper()
	return c.putInto(photos, key, data)
}

func (c *cluster) putInto(b object.Bucket, key string, data []byte) object.Object {
	c.t.Helper()
	o, err := c.store.Put(c.t.Context(), b, object.PutRequest{Key: key, Body: bytes.NewReader(data), Size: int64(len(data))})
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

func (c *cluster) get(key string) []byte {
	c.t.Helper()
	data, err := c.read(photos, key, "")
	if err != nil {
		c.t.Fatal(err)
	}
	return data
}

func (c *cluster) read(b object.Bucket, key, version string) ([]byte, error) {
	c.t.Helper()
	_, r, err := c.store.Open(c.t.Context(), b, key, version)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	g := r.ReadRange(c.t.Context(), 0, -1)
	defer g.Close()
	return io.ReadAll(g)
}

// has fails the test unless the object has this content.
func (c *cluster) has(key string, want []byte) {
	c.t.Helper()
	if got := c.get(key); !bytes.Equal(got, want) {
		c.t.Errorf("%s has %d bytes, which are not the %d bytes that were put", key, len(got), len(want))
	}
}

// pieces returns where the pieces of an object are.
func (c *cluster) pieces(key string) []object.Piece {
	c.t.Helper()
	pieces, more, err := c.store.Locate(c.t.Context(), photos, key, "", 0, 10_000)
	if err != nil || more {
		c.t.Fatal(more, err)
	}
	return pieces
}

// content returns bytes that differ with the seed.
func content(size int, seed uint64) []byte {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	source.Read(data)
	return data
}
