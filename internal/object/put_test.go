package object_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

func TestObjectsOfEverySizeComeBackAsTheyWerePut(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d")
	for _, size := range []int{
		0, 1, 4 << 10, 64<<10 + 1, object.ChunkSize - 1, object.ChunkSize, object.ChunkSize + 1, 8 * object.ChunkSize, 8*object.ChunkSize + 5,
	} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			data := content(size, 1)
			put := c.put("cat.jpg", data)
			sum := md5.Sum(data)
			if put.Version.GetEtag() != hex.EncodeToString(sum[:]) || put.Version.GetSize() != int64(size) {
				t.Errorf("put says %s and %d bytes", put.Version.GetEtag(), put.Version.GetSize())
			}
			head, err := c.store.Head(t.Context(), photos, "cat.jpg", "")
			if err != nil || !bytes.Equal(head.Version.GetId(), put.Version.GetId()) {
				t.Errorf("head finds %v, %v", head, err)
			}
			c.has("cat.jpg", data)
		})
	}
}

func TestBodyOfUnknownSizeIsTakenToItsEnd(t *testing.T) {
	c := newCluster(t, "a")
	data := content(2*object.ChunkSize, 1)
	body := iotest.HalfReader(bytes.NewReader(data))
	if _, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: body, Size: -1}); err != nil {
		t.Fatal(err)
	}
	c.has("k", data)
}

func TestEveryValidKeyIsAKey(t *testing.T) {
	c := newCluster(t, "a")
	keys := []string{
		"..", "../../etc/passwd", "/", "//", "a//b/", " ", "\x00", "a\x00b", "\n", "%2e%2e", "ключ", "a\u202eb", "\U0010ffff",
		strings.Repeat("k", 1024), strings.Repeat("é", 512),
	}
	for i, key := range keys {
		c.put(key, []byte(fmt.Sprint(i)))
	}
	for i, key := range keys {
		c.has(key, []byte(fmt.Sprint(i)))
	}
	listing, err := c.store.List(t.Context(), photos, names.ListRequest{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	if got := keysOf(listing); !slices.Equal(got, keys) {
		t.Errorf("the list has %q, want %q", got, keys)
	}
}

func TestInvalidKeysAreRefused(t *testing.T) {
	c := newCluster(t, "a")
	for _, key := range []string{"", strings.Repeat("k", 1025), "\xff\xfe"} {
		if _, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: key, Body: strings.NewReader("x"), Size: 1}); !errors.Is(err, object.ErrBadKey) {
			t.Errorf("key %q: %v, want ErrBadKey", key, err)
		}
	}
}

func TestWrongContentIsRefusedAndLeavesNothing(t *testing.T) {
	broken := errors.New("connection reset")
	wrong := md5.Sum([]byte("something else"))
	for name, test := range map[string]struct {
		request object.PutRequest
		want    error
	}{
		"md5":      {object.PutRequest{Body: strings.NewReader("hello"), Size: 5, MD5: wrong[:]}, object.ErrBadDigest},
		"short":    {object.PutRequest{Body: strings.NewReader("hell"), Size: 5}, object.ErrIncomplete},
		"long":     {object.PutRequest{Body: strings.NewReader("hello!"), Size: 5}, object.ErrIncomplete},
		"missing":  {object.PutRequest{Size: 5}, object.ErrIncomplete},
		"cut off":  {object.PutRequest{Body: io.MultiReader(strings.NewReader("he"), iotest.ErrReader(io.ErrUnexpectedEOF)), Size: -1}, io.ErrUnexpectedEOF},
		"fails":    {object.PutRequest{Body: io.MultiReader(strings.NewReader("hello"), iotest.ErrReader(broken)), Size: 5}, broken},
		"fails 2":  {object.PutRequest{Body: io.MultiReader(bytes.NewReader(content(9<<20, 1)), iotest.ErrReader(broken)), Size: 12 << 20}, broken},
		"if match": {object.PutRequest{Body: bytes.NewReader(content(33<<20, 1)), Size: 33 << 20, Condition: object.Condition{IfMatch: "*"}}, object.ErrNoKey},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "a", "b")
			test.request.Key = "k"
			if _, err := c.store.Put(t.Context(), photos, test.request); !errors.Is(err, test.want) {
				t.Errorf("put returns %v, want %v", err, test.want)
			}
			if _, err := c.store.Head(t.Context(), photos, "k", ""); !errors.Is(err, object.ErrNoKey) {
				t.Errorf("head returns %v, want that there is no such object", err)
			}
		})
	}
}

func TestQuotaIsKeptAndNamed(t *testing.T) {
	told := 0
	c := newClusterOver(t, objecttest.NewNames(t), objecttest.NewDisks("a"), object.Options{OverQuota: func(b object.Bucket, q *object.QuotaError) {
		if told++; b.Name != "photos" || q.Scope != "bucket photos" {
			t.Errorf("told of bucket %s and the quota of %s", b.Name, q.Scope)
		}
	}})
	b := photos
	b.Quota = 10
	c.putInto(b, "k", []byte("123456"))
	for _, size := range []int{5, 40 << 20} { // a large one is refused before its body is read
		_, err := c.store.Put(t.Context(), b, object.PutRequest{Key: "k2", Body: bytes.NewReader(content(size, 1)), Size: int64(size)})
		var quota *object.QuotaError
		if !errors.As(err, &quota) || quota.Scope != "bucket photos" || quota.Used != 6 || quota.Wanted != int64(size) || quota.Max != 10 {
			t.Errorf("%d bytes: %v (%+v), want the quota of bucket photos with its figures", size, err, quota)
		}
	}
	if told != 2 {
		t.Errorf("told of %d refusals, want 2", told)
	}
}

// Without somebody's help no node will store anything, and clients that wait would wait for ever.
func TestAPutSaysIfNoNodeWillEverStoreIt(t *testing.T) {
	for name, test := range map[string]struct {
		nodes  []string
		change func(*object.Node)
		want   string // empty if a node may store it later
	}{
		"no nodes":                      {nil, nil, "no node stores data: the cluster has no nodes; add one with: cloudless join"},
		"all are draining":              {[]string{"a", "b"}, func(n *object.Node) { n.Draining = true }, "no node stores data: a is draining; b is draining"},
		"none has a disk for it":        {[]string{"a"}, func(n *object.Node) { n.Capacity, n.Problem = 0, "cannot write to its folder" }, "no node stores data: a cannot write to its folder"},
		"a node is away":                {[]string{"a"}, func(n *object.Node) { n.Connected, n.Capacity, n.Problem = false, 0, "is not connected" }, ""},
		"a disk is full":                {[]string{"a"}, func(n *object.Node) { n.Problem = "has no room" }, ""},
		"a node has just been enrolled": {[]string{"a"}, func(n *object.Node) { n.Capacity, n.Free = 0, 0 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, test.nodes...)
			for _, node := range test.nodes {
				c.disks.Change("uid-"+node, test.change)
			}
			_, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: strings.NewReader("meow"), Size: 4})
			if !errors.Is(err, object.ErrNoQuorum) || errors.Is(err, object.ErrNoStorage) != (test.want != "") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestChunksAreOnAsManyNodesAsTheBucketWants(t *testing.T) {
	for nodes, want := range map[string]int{"a": 1, "a b": 2, "a b c": 3, "a b c d e": 3} {
		t.Run(nodes, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, strings.Fields(nodes)...)
				c.put("k", content(6<<20, 1))
				synctest.Wait() // the copies beyond the quorum
				for _, p := range c.pieces("k") {
					if len(p.Nodes) != want || p.Copies != 3 {
						t.Errorf("a piece is on %d of %d nodes, want %d of 3", len(p.Nodes), p.Copies, want)
					}
				}
			})
		})
	}
}

func TestNodesThatFailAreReplaced(t *testing.T) {
	for name, fault := range map[string]objecttest.Faults{"full": {Full: true}, "gone": {Gone: true}, "stalled": {Stalled: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "a", "b", "c", "d")
				c.disks.Break("uid-a", fault)
				c.disks.Break("uid-b", fault)
				b := photos
				b.Replicas = 2
				data := content(10<<20, 1)
				c.putInto(b, "k", data)
				c.has("k", data)
				for _, p := range c.pieces("k") {
					if slices.Sort(p.Nodes); !slices.Equal(p.Nodes, []string{"uid-c", "uid-d"}) {
						t.Errorf("a piece is on %v, want the nodes that work", p.Nodes)
					}
				}
			})
		})
	}
}

func TestTooFewNodesAreNamed(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.disks.Change("uid-a", func(n *object.Node) { n.Problem = "has a read-only disk" })
	c.disks.Change("uid-b", func(n *object.Node) { n.Connected = false })
	_, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: strings.NewReader("x"), Size: 1})
	if !errors.Is(err, object.ErrNoQuorum) || !strings.Contains(err.Error(), "2 are needed, and 1 of 3 nodes can; a has a read-only disk; b is not connected") {
		t.Errorf("put returns %v, want ErrNoQuorum with the reasons", err)
	}
}

func TestOneOfTwoNodesIsEnoughWhileTheOtherIsGone(t *testing.T) {
	for name, lose := range map[string]func(*cluster){
		"not connected": func(c *cluster) { c.disks.Change("uid-b", func(n *object.Node) { n.Connected = false }) },
		"gone":          func(c *cluster) { c.disks.Break("uid-b", objecttest.Faults{Gone: true}) },
		"full":          func(c *cluster) { c.disks.Break("uid-b", objecttest.Faults{Full: true}) },
		"stalled":       func(c *cluster) { c.disks.Break("uid-b", objecttest.Faults{Stalled: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "a", "b")
				lose(c)
				c.put("k", []byte("data"))
				c.has("k", []byte("data"))
			})
		})
	}
}

func TestPutDoesNotWaitForTheLastCopyAndReportsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		c.disks.Break("uid-c", objecttest.Faults{Delay: time.Second})
		began := time.Now()
		c.put("k", content(5<<20, 1))
		if took := time.Since(began); took != 0 {
			t.Errorf("put waited for %s", took)
		}
		for _, p := range c.pieces("k") {
			if len(p.Nodes) != 2 {
				t.Errorf("at first a piece is on %v, want the two nodes that answered", p.Nodes)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, p := range c.pieces("k") {
			if len(p.Nodes) != 3 {
				t.Errorf("in the end a piece is on %v, want all three nodes", p.Nodes)
			}
		}
	})
}

// advancing is a body during which epochs pass.
type advancing struct {
	t     *testing.T
	names *objecttest.Names
	io.Reader
	after int
}

func (a *advancing) Read(p []byte) (int, error) {
	if a.after--; a.after == 0 {
		for range 3 {
			a.names.AdvanceEpoch(a.t)
		}
	}
	return a.Reader.Read(p)
}

func TestContentIsStoredAgainWhenItsEpochIsOver(t *testing.T) {
	for name, size := range map[string]int{"few blocks": 9 << 20, "staged": 40 << 20} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "a", "b")
			data := content(size, 1)
			body := &advancing{t: t, names: c.names, Reader: bytes.NewReader(data), after: 2}
			if _, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: body, Size: int64(size)}); err != nil {
				t.Fatal(err)
			}
			view := c.names.Store.View()
			defer view.Close()
			for _, p := range c.pieces("k") {
				for _, node := range p.Nodes {
					page, _, err := c.disks.List(t.Context(), node, object.Hash{}, 1000)
					if err != nil {
						t.Fatal(err)
					}
					i := slices.IndexFunc(page, func(h object.Held) bool { return h.Hash == p.Hash })
					if i < 0 || page[i].Epoch+1 < view.Epoch() {
						t.Errorf("node %s has stamped a chunk in an epoch that is over", node)
					}
				}
			}
			c.has("k", data)
		})
	}
}

func TestUnknownOutcomeIsFoundOut(t *testing.T) {
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "a")
			c.put("before", []byte("x")) // so that the node has a number
			c.names.Before(func(*objectv1.Entry) (bool, error) { return applied, objecttest.ErrLost })
			_, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: strings.NewReader("data"), Size: 4})
			if applied != (err == nil) || !applied && !errors.Is(err, objecttest.ErrLost) {
				t.Errorf("put returns %v", err)
			}
			_, err = c.store.Delete(t.Context(), photos, "before", "", object.Condition{})
			if applied != (err == nil) {
				t.Errorf("delete returns %v", err)
			}
		})
	}
}

func TestConditionsHoldBetweenWriters(t *testing.T) {
	c := newCluster(t, "a", "b")
	const writers = 8
	var wg sync.WaitGroup
	won := make(chan string, writers)
	for i := range writers {
		wg.Go(func() {
			data := fmt.Sprint("writer ", i)
			_, err := c.store.Put(t.Context(), photos, object.PutRequest{
				Key: "k", Body: strings.NewReader(data), Size: int64(len(data)), Condition: object.Condition{IfNoneMatch: "*"},
			})
			if err == nil {
				won <- data
			} else if !errors.Is(err, object.ErrPrecondition) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d writers made the same object", len(won))
	}
	c.has("k", []byte(<-won))
}

func TestLastOfTwoWritersWins(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	versions := [][]byte{content(9<<20, 1), content(9<<20, 2)}
	var wg sync.WaitGroup
	for _, data := range versions {
		wg.Go(func() {
			if _, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: bytes.NewReader(data), Size: int64(len(data))}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := c.get("k"); !bytes.Equal(got, versions[0]) && !bytes.Equal(got, versions[1]) {
		t.Error("the object has neither the content of the one nor of the other writer")
	}
}

func TestNodeLostInTheMiddleOfAnUpload(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d")
	data := content(30<<20, 1)
	lost := false
	body := io.MultiReader(bytes.NewReader(data[:15<<20]), readerFunc(func([]byte) (int, error) {
		if !lost {
			lost = true
			c.disks.Break("uid-a", objecttest.Faults{Gone: true})
		}
		return 0, io.EOF
	}), bytes.NewReader(data[15<<20:]))
	if _, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: body, Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	c.has("k", data)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Clients that stop in the middle of a body keep their memory. Others go on with what is left.
func TestStalledUploadsDoNotStopOthers(t *testing.T) {
	c := newClusterOver(t, objecttest.NewNames(t), objecttest.NewDisks("a", "b"), object.Options{Memory: 16 << 20})
	ctx, cancel := context.WithCancel(t.Context())
	var stalled sync.WaitGroup
	var reading sync.WaitGroup
	for range 8 {
		began := false
		reading.Add(1)
		body := readerFunc(func(p []byte) (int, error) {
			if !began {
				began = true
				return copy(p, "some bytes"), nil
			}
			reading.Done()
			<-ctx.Done()
			return 0, ctx.Err()
		})
		stalled.Go(func() {
			if _, err := c.store.Put(t.Context(), photos, object.PutRequest{Key: "stalled", Body: body, Size: 1 << 30}); err == nil {
				t.Error("a put without its content succeeded")
			}
		})
	}
	reading.Wait()
	data := content(9<<20, 1)
	c.put("k", data)
	c.has("k", data)
	cancel()
	stalled.Wait()
}

func TestExpiryIsThatOfTheFirstRule(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := newClusterOver(t, objecttest.NewNames(t), objecttest.NewDisks("a"), object.Options{Now: func() time.Time { return now }})
	b := photos
	b.Expiry = []object.ExpiryRule{{After: 48 * time.Hour}, {Prefix: "tmp/", After: time.Hour}}
	for key, want := range map[string]time.Duration{"tmp/a": time.Hour, "a": 48 * time.Hour} {
		if got := c.putInto(b, key, nil).Version.GetExpireTime(); got != now.Add(want).UnixNano() {
			t.Errorf("%s expires at %s", key, time.Unix(0, got))
		}
	}
	if got := c.put("a", nil).Version.GetExpireTime(); got != 0 {
		t.Errorf("without a rule it expires at %s", time.Unix(0, got))
	}
}

func keysOf(l names.Listing) []string {
	var keys []string
	for _, item := range l.Items {
		keys = append(keys, item.Key)
	}
	return keys
}
