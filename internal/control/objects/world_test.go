package objects_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/spec"
)

var photos = object.Bucket{UID: "bucket-1", Name: "photos", Namespace: "shop", NamespaceUID: "namespace-1", Replicas: 2}

// world is a store with its loops, over real names and nodes in memory.
type world struct {
	t     testing.TB
	names *objecttest.Names
	disks *objecttest.Disks
	store *object.Store
	loops *objects.Loops

	mu      sync.Mutex
	removed map[string]bool
	events  []objects.Event
	stop    context.CancelFunc
	ended   chan struct{}
}

// inWorld runs a test in a world whose clock is artificial.
func inWorld(t *testing.T, nodes []string, test func(*world)) {
	t.Helper()
	// Outside of the bubble: the database has goroutines that tick ten times a second.
	names := objecttest.NewNames(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, names, nodes...)
		w.lead()
		test(w)
	})
}

func newWorld(t testing.TB, names *objecttest.Names, nodes ...string) *world {
	t.Helper()
	w := &world{t: t, names: names, disks: objecttest.NewDisks(nodes...), removed: map[string]bool{}}
	var err error
	logger := slog.New(slog.DiscardHandler)
	if w.store, err = object.New(object.Options{Names: w.names, Disks: w.disks, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	w.loops, err = objects.New(objects.Options{
		Names: w.names, Disks: w.disks, Logger: logger, Settings: settings, Removed: w.isRemoved, Tell: w.tell,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.resign)
	return w
}

// settings are the defaults.
func settings() spec.Storage { return spec.StorageOf(nil) }

func (w *world) isRemoved(uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.removed[uid]
}

func (w *world) tell(e objects.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// told is whether an event with a reason was announced.
func (w *world) told(reason string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e objects.Event) bool { return e.Reason == reason })
}

// lead begins to run the loops, and resign ends them.
func (w *world) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.ended = cancel, make(chan struct{})
	go func() {
		defer close(w.ended)
		_ = w.loops.Run(ctx)
	}()
	synctest.Wait()
}

func (w *world) resign() {
	if w.stop != nil {
		w.stop()
		<-w.ended
		w.stop = nil
	}
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// cut lets a node not answer any more, and join lets it answer again.
func (w *world) cut(node string) {
	w.disks.Break("uid-"+node, objecttest.Faults{Gone: true})
	w.disks.Change("uid-"+node, func(n *object.Node) { n.Connected = false })
	synctest.Wait()
}

func (w *world) join(node string) {
	w.disks.Break("uid-"+node, objecttest.Faults{})
	w.disks.Change("uid-"+node, func(n *object.Node) { n.Connected = true })
	synctest.Wait()
}

func (w *world) remove(node string) {
	w.mu.Lock()
	w.removed["uid-"+node] = true
	w.mu.Unlock()
	w.cut(node)
}

func (w *world) put(key string, size int, seed uint64) {
	w.t.Helper()
	w.putFrom(key, bytes.NewReader(content(size, seed)))
}

func (w *world) putFrom(key string, body io.Reader) {
	w.t.Helper()
	if _, err := w.store.Put(context.Background(), photos, object.PutRequest{Key: key, Body: body, Size: -1}); err != nil {
		w.t.Fatalf("putting %s: %v", key, err)
	}
	synctest.Wait()
}

func (w *world) delete(key string) {
	w.t.Helper()
	if _, err := w.store.Delete(context.Background(), photos, key, "", object.Condition{}); err != nil {
		w.t.Fatalf("deleting %s: %v", key, err)
	}
}

// has fails the test unless the object has this content.
func (w *world) has(key string, size int, seed uint64) {
	w.t.Helper()
	_, r, err := w.store.Open(context.Background(), photos, key, "")
	if err != nil {
		w.t.Fatalf("opening %s: %v", key, err)
	}
	defer r.Close()
	g := r.ReadRange(context.Background(), 0, -1)
	defer g.Close()
	if data, err := io.ReadAll(g); err != nil || !bytes.Equal(data, content(size, seed)) {
		w.t.Errorf("%s has %d bytes, which are not those that were put: %v", key, len(data), err)
	}
}

// content returns bytes that differ with the seed.
func content(size int, seed uint64) []byte {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = source.Read(data)
	return data
}

// view reads the names.
func (w *world) view(f func(*names.View) error) {
	w.t.Helper()
	view := w.names.Store.View()
	defer view.Close()
	if err := f(view); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) totals() (totals names.Totals) {
	w.t.Helper()
	w.view(func(v *names.View) (err error) {
		totals, err = v.Totals()
		return err
	})
	return totals
}

// places returns the chunks that names list on each node, by UID.
func (w *world) places() map[string][]object.Hash {
	w.t.Helper()
	places := map[string][]object.Hash{}
	w.view(func(v *names.View) error {
		nodes, err := v.Nodes()
		for uid, number := range nodes {
			found, err := v.ChunksOn(number, names.Hash{}, 100_000)
			if err != nil {
				return err
			}
			for _, one := range found {
				places[uid] = append(places[uid], one.Hash)
			}
		}
		return err
	})
	return places
}

// copies returns how many nodes have each chunk with the right bytes, according to the names.
func (w *world) copies() map[object.Hash]int {
	w.t.Helper()
	copies := map[object.Hash]int{}
	for uid, hashes := range w.places() {
		for _, hash := range hashes {
			if copies[hash] += 0; w.disks.Has(uid, hash) {
				copies[hash]++
			}
		}
	}
	return copies
}

// on is how many chunks the names list on a node.
func (w *world) on(node string) int { return len(w.places()["uid-"+node]) }

// all fails the test unless each of so many chunks has so many good copies.
func (w *world) all(chunks, copies int) {
	w.t.Helper()
	found := w.copies()
	for hash, count := range found {
		if count != copies {
			w.t.Errorf("chunk %x has %d copies and should have %d", hash[:4], count, copies)
		}
	}
	if len(found) != chunks {
		w.t.Errorf("%d chunks are on nodes, and should be %d", len(found), chunks)
	}
}

// agrees fails the test unless nodes have exactly what the names say.
func (w *world) agrees(nodes ...string) {
	w.t.Helper()
	places := w.places()
	for _, node := range nodes {
		listed := places["uid-"+node]
		if count := w.disks.Count("uid-" + node); count != len(listed) {
			w.t.Errorf("node %s has %d chunks, and the names list %d", node, count, len(listed))
		}
		for _, hash := range listed {
			if !w.disks.Has("uid-"+node, hash) {
				w.t.Errorf("node %s does not have chunk %x as the names say", node, hash[:4])
			}
		}
	}
}
