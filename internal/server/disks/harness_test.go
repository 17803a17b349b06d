package disks_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/blake3"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/chunks"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/disks"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster is one server with its port and its state, and real nodes that connect to it.
type cluster struct {
	t     testing.TB
	ca    *identity.CA
	store *state.Store
	feed  *state.Follower
	index uint64
	port  *oneport.Port
	*disks.Disks

	mu      sync.Mutex
	refused map[string]bool
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	ca, err := identity.NewCA("test", time.Now())
	must(t, err)
	c := &cluster{t: t, ca: ca, store: state.New(), refused: map[string]bool{}}
	c.feed = c.store.Follow()
	c.feed.Newest()
	c.port, err = oneport.Listen(t.Context(), oneport.Options{
		Address: "127.0.0.1:0", Trust: ca.Trust(), Certificate: c.member(identity.KindServer, "s-1").Certificate,
		Log: slog.New(slog.DiscardHandler), Nodes: []string{disks.Protocol}, Admit: c.admit,
	})
	must(t, err)
	c.Disks = disks.New(disks.Options{Connections: c.port.Peers(disks.Protocol), Store: c.store, Logger: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = c.port.Run(ctx) })
	running.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(func() {
		stop()
		_ = c.port.Close()
		running.Wait()
	})
	return c
}

// admit refuses nodes that were removed.
func (c *cluster) admit(id identity.ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused[id.Name()] {
		return errors.New("it was removed")
	}
	return nil
}

// cut ends the connections of a node, and admits no others if it was removed.
func (c *cluster) cut(uid string, removed bool) {
	c.mu.Lock()
	c.refused[uid] = removed
	c.mu.Unlock()
	id, err := identity.NewID("test", identity.KindNode, uid)
	must(c.t, err)
	c.port.CloseIdentity(id)
}

func (c *cluster) member(kind identity.Kind, name string) *identity.Credentials {
	c.t.Helper()
	id, err := identity.NewID("test", kind, name)
	must(c.t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must(c.t, err)
	chain, err := c.ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: kind == identity.KindServer, Client: true}, time.Now())
	must(c.t, err)
	member, err := identity.NewCredentials(key, chain)
	must(c.t, err)
	return member
}

// change changes the state, and has the disks notice it.
func (c *cluster) change(b *state.Batch) {
	c.t.Helper()
	c.index++
	_, err := c.store.Apply(c.index, b.Transaction(time.Unix(1_700_000_000, 0)))
	must(c.t, err)
	for _, one := range c.feed.Newest().Changes {
		c.Route(one)
	}
}

// add adds a node to the state. Its name is "node-" and its uid.
func (c *cluster) add(uid, zone string) {
	c.t.Helper()
	var b state.Batch
	b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: uid, Name: "node-" + uid, Labels: map[string]string{spec.LabelZone: zone}}, Spec: &v1.NodeSpec{}})
	c.change(&b)
}

// options are those of a node that is in a mesh on loopback.
func (c *cluster) options(uid string) chunks.Options {
	inMesh := chunks.NewAddresses()
	inMesh.Set([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	return chunks.Options{
		Dir: filepath.Join(c.t.TempDir(), "chunks"), Logger: slog.New(slog.DiscardHandler),
		Trust: c.ca.Trust(), Certificate: c.member(identity.KindNode, uid).Certificate, Mesh: inMesh,
		Others:  func() (float64, error) { return 0, nil },
		Servers: func() ([]string, <-chan struct{}) { return []string{c.port.Addr().String()}, nil },
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		},
	}
}

// run runs a node until stop is called or the test ends, and waits until it is connected.
func (c *cluster) run(o chunks.Options, uid string) (stop func()) {
	c.t.Helper()
	node, err := chunks.Open(o)
	must(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = node.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if err := node.Close(); err != nil {
			c.t.Errorf("close the chunks of %s: %v", uid, err)
		}
	})
	c.t.Cleanup(stop)
	c.await(uid, func(n object.Node) bool { return n.Connected && n.Address != "" })
	return stop
}

// start adds a node and runs it.
func (c *cluster) start(uid string) (stop func()) {
	c.t.Helper()
	c.add(uid, "")
	return c.run(c.options(uid), uid)
}

// node is what is known of a node now.
func (c *cluster) node(uid string) object.Node {
	for _, n := range c.Nodes() {
		if n.UID == uid {
			return n
		}
	}
	return object.Node{}
}

// await waits until a node is as it should be.
func (c *cluster) await(uid string, until func(object.Node) bool) object.Node {
	c.t.Helper()
	for {
		changed := c.Changed()
		if n := c.node(uid); until(n) {
			return n
		}
		<-changed
	}
}

// random returns a chunk of a size.
func random(seed uint64, size int) ([]byte, object.Hash) {
	data := make([]byte, size)
	source := rand.New(rand.NewPCG(seed, 25))
	for i := range data {
		data[i] = byte(source.Uint32())
	}
	return data, blake3.Sum256(data)
}
