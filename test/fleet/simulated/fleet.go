package simulated

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
)

// Options describes a fleet.
type Options struct {
	// Nodes is how many there are.
	Nodes int
	// Join are addresses of servers; the first that answers lets the nodes join.
	Join []string
	// Token is a join token that may be used as many times.
	Token string

	// Name begins the name of every node; "sim" if empty.
	Name string
	// Labels are those of the i-th node; nil gives none.
	Labels func(i int) map[string]string
	// Status is the i-th node's report about its machine; [DefaultStatus] if nil.
	Status func(i int) *v1.NodeStatus
	// Source is the address from which the i-th node connects; nil leaves that to the kernel.
	Source func(i int) netip.Addr
	// Heartbeat is how often a node reports, until the cluster sets the interval; one second if 0.
	Heartbeat time.Duration
	// Follow are the namespaces whose services the i-th node follows; nil follows none. Network is called with what a
	// server then says of the network; it must not block.
	Follow  func(i int) []string
	Network func(*v1.Network)
	// Delay is how long a replica takes to start and to stop.
	Delay time.Duration
	// Handshakes is how many nodes connect at the same time; 64 if 0.
	Handshakes int
	Logger     *slog.Logger
}

// fill checks the options and fills in defaults.
func (o *Options) fill() error {
	switch {
	case o.Nodes < 1:
		return errors.New("a fleet needs at least one node")
	case len(o.Join) == 0:
		return errors.New("a fleet needs the address of a server to join")
	case o.Heartbeat < 0 || o.Delay < 0 || o.Handshakes < 0:
		return errors.New("the pace, delay and handshakes of a fleet cannot be negative")
	}
	if o.Name == "" {
		o.Name = "sim"
	}
	if o.Labels == nil {
		o.Labels = func(int) map[string]string { return nil }
	}
	if o.Status == nil {
		o.Status = DefaultStatus
	}
	if o.Source == nil {
		o.Source = func(int) netip.Addr { return netip.Addr{} }
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = spec.DefaultLiveness.Heartbeat
	}
	if o.Handshakes == 0 {
		o.Handshakes = 64
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Fleet is nodes that have enrolled.
type Fleet struct {
	options Options
	nodes   []*Node
	trust   *identity.Trust
	// authority is the certificate that ends every node's chain.
	authority  []byte
	handshakes chan struct{}
	shards     []*shard
	beats      beats
	counts     counts
}

// counts are written by all nodes.
type counts struct {
	connected, opened, heartbeats, assigned, reported, running, late atomic.Int64

	mu   sync.Mutex
	last error // that ended a session
}

// Stats is the status of a fleet.
type Stats struct {
	// Nodes is how many there are, and Connected how many have a session.
	Nodes, Connected int
	// Opened is how many sessions were opened so far.
	Opened int64
	// Heartbeats is how many were sent, Assigned how many replicas were assigned or stopped, and Reported how many
	// replica reports were sent.
	Heartbeats, Assigned, Reported int64
	// Running is how many replicas run now.
	Running int64
	// Late is the largest delay of a heartbeat so far: a fleet that is too busy to report goes offline by its own
	// fault.
	Late time.Duration
	// LastError is why a session ended last.
	LastError error
}

// Stats counts.
func (f *Fleet) Stats() Stats {
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	return Stats{
		Nodes: len(f.nodes), Connected: int(f.counts.connected.Load()), Opened: f.counts.opened.Load(),
		Heartbeats: f.counts.heartbeats.Load(), Assigned: f.counts.assigned.Load(), Reported: f.counts.reported.Load(),
		Running: f.counts.running.Load(), Late: time.Duration(f.counts.late.Load()), LastError: f.counts.last,
	}
}

// sent counts a heartbeat that was due a while ago.
func (c *counts) sent(late time.Duration) {
	c.heartbeats.Add(1)
	for {
		most := c.late.Load()
		if int64(late) <= most || c.late.CompareAndSwap(most, int64(late)) {
			return
		}
	}
}

func (c *counts) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = err
}

// Nodes are all nodes, in order.
func (f *Fleet) Nodes() []*Node { return f.nodes }

// Pick returns n nodes that are neither killed nor silent, spread over the fleet, or all of them if there are fewer.
func (f *Fleet) Pick(n int) []*Node {
	var well []*Node
	for _, node := range f.nodes {
		if node.well() {
			well = append(well, node)
		}
	}
	if n >= len(well) {
		return well
	}
	picked := make([]*Node, n)
	for i := range picked {
		picked[i] = well[i*len(well)/n]
	}
	return picked
}

// shards is how many goroutines report for all nodes: one that waits for a server delays only a part of them.
const shards = 4

// Run keeps all nodes connected until ctx ends. It may be called once.
func (f *Fleet) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, s := range f.shards {
		running.Go(func() { s.run(ctx) })
	}
	for _, n := range f.nodes {
		running.Go(func() { n.live(ctx) })
	}
	<-ctx.Done()
	for _, n := range f.nodes {
		n.hangUp()
	}
	running.Wait()
	return nil
}

// config is the TLS configuration of one node, which resumes its last session as an agent does.
func (f *Fleet) config(n *Node) *tls.Config {
	config := identity.ClientTLS(f.trust, func() (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{n.certificate, f.authority}, PrivateKey: n.key}, nil
	})
	config.NextProtos = []string{"h2"}
	config.ClientSessionCache = n
	return config
}
