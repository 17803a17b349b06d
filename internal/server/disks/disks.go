// Package disks reaches the chunks on the disks of the nodes. The agents open a connection to every server; on it the
// node answers, and the server asks. The package implements [object.Disks] with these connections.
//
// It guarantees that
// - a node has one connection: a second one replaces the first when the node has answered on it;
// - chunks that are put together share streams, and a small chunk does not wait for the large ones before it;
// - a call whose context ends returns, and disturbs no other call;
// - a node that stops answering counts as not connected after seconds.
//
// It must not know what chunks are parts of, nor which node should have them. The port refuses everybody but the nodes
// of the cluster, and cuts the connections of those that are removed.
package disks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/transfer"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Protocol is the name of the protocol in ALPN.
const Protocol = transfer.Protocol

// ErrNotConnected says that this server has no connection to a node.
var ErrNotConnected = errors.New("it is not connected to this server")

// Options is what Disks are made of.
type Options struct {
	// Connections are those that nodes open.
	Connections net.Listener
	Store       *state.Store
	Logger      *slog.Logger
	// Metrics may be nil.
	Metrics *telemetry.Chunks
}

// Disks are the disks of all nodes. It implements object.Disks.
type Disks struct {
	connections net.Listener
	store       *state.Store
	log         *slog.Logger
	metrics     *telemetry.Chunks

	// nodes is what Nodes returns, nil after a change.
	nodes atomic.Pointer[[]object.Node]

	mu    sync.Mutex
	links map[string]*link
	// known is what the nodes have last said of their disks, also those that are not connected any more.
	known   map[string]*v1.DiskStatus
	local   string
	changed chan struct{}
	damaged []func(node string, hashes []object.Hash)
}

var _ object.Disks = (*Disks)(nil)

// New returns Disks without any connection. Run accepts them.
func New(o Options) *Disks {
	return &Disks{
		connections: o.Connections, store: o.Store, log: o.Logger, metrics: o.Metrics,
		links: map[string]*link{}, known: map[string]*v1.DiskStatus{}, changed: make(chan struct{}),
	}
}

// Run accepts the connections of nodes until ctx ends.
func (d *Disks) Run(ctx context.Context) error {
	var links sync.WaitGroup
	defer links.Wait()
	defer context.AfterFunc(ctx, func() { _ = d.connections.Close() })()
	for {
		conn, err := d.connections.Accept()
		if err != nil {
			return nil // the port has closed
		}
		links.Go(func() { d.serve(ctx, conn) })
	}
}

// serve uses the connection of a node until it ends.
func (d *Disks) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return
	}
	id, ok := identity.PeerID(secure.ConnectionState())
	if !ok || id.Kind() != identity.KindNode {
		return
	}
	l, err := newLink(ctx, id.Name(), conn)
	if err == nil {
		err = l.run(d)
	}
	if ctx.Err() == nil {
		d.log.DebugContext(ctx, "a connection to the chunks of a node has ended", "node", id.Name(), "error", err)
	}
}

// adopt makes a link the one of its node.
func (d *Disks) adopt(l *link) {
	d.mu.Lock()
	before := d.links[l.node]
	d.links[l.node] = l
	d.mu.Unlock()
	if before != nil {
		before.fail(errReplaced)
	}
	d.touch()
}

// drop forgets a link that has ended.
func (d *Disks) drop(l *link) {
	d.mu.Lock()
	current := d.links[l.node] == l
	if current {
		delete(d.links, l.node)
	}
	d.mu.Unlock()
	if current {
		d.touch()
	}
}

// reported takes what a node says of its disk.
func (d *Disks) reported(l *link, report *v1.DiskReport) {
	if status := report.GetStatus(); status != nil {
		d.mu.Lock()
		d.known[l.node] = status
		d.mu.Unlock()
		d.touch()
	}
	var hashes []object.Hash
	for _, one := range report.GetDamaged() {
		if len(one) == len(object.Hash{}) {
			hashes = append(hashes, object.Hash(one))
		}
	}
	if len(hashes) == 0 {
		return
	}
	d.log.Warn("A node has damaged or missing chunks; others replace them if they can.", "node", l.node, "chunks", len(hashes))
	d.metrics.Damaged(len(hashes))
	d.mu.Lock()
	tell := slices.Clone(d.damaged)
	d.mu.Unlock()
	for _, f := range tell {
		f(l.node, hashes)
	}
}

// OnDamage implements object.Disks.
func (d *Disks) OnDamage(f func(node string, hashes []object.Hash)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.damaged = append(d.damaged, f)
}

// SetLocal says which node is that of this server's machine.
func (d *Disks) SetLocal(node string) {
	d.mu.Lock()
	d.local = node
	d.mu.Unlock()
	d.touch()
}

// Changed implements object.Disks.
func (d *Disks) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// touch says that what Nodes returns has changed.
func (d *Disks) touch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes.Store(nil)
	close(d.changed)
	d.changed = make(chan struct{})
}

// Route notices changes of nodes that concern their disks.
func (d *Disks) Route(c state.Change) {
	if c.Kind != state.KindNode {
		return
	}
	before, _ := c.Old.(*v1.Node)
	after, _ := c.New.(*v1.Node)
	if after == nil {
		d.mu.Lock()
		delete(d.known, before.GetMetadata().GetUid())
		d.mu.Unlock()
	}
	if before == nil || after == nil || placeOf(before) != placeOf(after) {
		d.touch()
	}
}

// CatchUp notices all changes that Route may have missed.
func (d *Disks) CatchUp(snap *state.Snapshot) {
	d.mu.Lock()
	for uid := range d.known {
		if snap.Node(uid) == nil {
			delete(d.known, uid)
		}
	}
	d.mu.Unlock()
	d.touch()
}

// place is what the state says of a node that matters here.
type place struct {
	name, zone string
	draining   bool
}

func placeOf(n *v1.Node) place {
	return place{
		name: n.GetMetadata().GetName(), zone: n.GetMetadata().GetLabels()[spec.LabelZone],
		draining: n.GetSpec().GetAvailability() == spec.NodeDraining,
	}
}

// Nodes implements object.Disks. The list is shared: callers must not change it.
func (d *Disks) Nodes() []object.Node {
	if all := d.nodes.Load(); all != nil {
		return *all
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []object.Node
	for n := range d.store.Snapshot().Nodes("") {
		all = append(all, d.node(n))
	}
	d.nodes.Store(&all)
	return all
}

// node describes a node. The caller holds mu.
func (d *Disks) node(n *v1.Node) object.Node {
	uid, at := n.GetMetadata().GetUid(), placeOf(n)
	disk, l := d.known[uid], d.links[uid]
	described := object.Node{
		UID: uid, Name: at.name, Zone: at.zone, Draining: at.draining, Local: uid == d.local, Connected: l != nil,
		Class: disk.GetClass(), Capacity: disk.GetCapacity(), Used: disk.GetUsed(), Free: disk.GetFree(), Chunks: disk.GetChunks(),
		Address: disk.GetAddress(), Problem: disk.GetProblem(), Damaged: disk.GetDamagedTotal(),
		Idle: disk.GetIdle(),
	}
	if disk.GetScrubbed() > 0 {
		described.Scrubbed = time.Unix(disk.GetScrubbed(), 0)
	}
	if l == nil {
		described.Problem = ErrNotConnected.Error()
	}
	return described
}

// reach returns the connection to a node, and the name to write into errors.
func (d *Disks) reach(node string) (*link, error) {
	d.mu.Lock()
	l := d.links[node]
	d.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("node %s: %w", d.name(node), ErrNotConnected)
	}
	return l, nil
}

// name is what users call a node.
func (d *Disks) name(node string) string {
	if name := d.store.Snapshot().Node(node).GetMetadata().GetName(); name != "" {
		return name
	}
	return node
}

// firstReport is how long a node may take until it has said how its disk is.
const firstReport = 10 * time.Second
